"""Two likelihoods of gray values from published benchmarks, and all likelihoods by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from arms.bench.models.networks import (
    BernoulliPixels,
    CategoricalPixels,
    GaussianPixels,
    PixelLikelihood,
    bernoulli_table,
    smooth_log_prob,
)

LEAST_VARIANCE = 1e-3


@dataclass(frozen=True)
class GrayPixels(PixelLikelihood):
    """Binary cross-entropy between gray values and the decoder's probabilities.

    This is not a density of gray values. Compare a bound only with other bounds that use this
    likelihood.
    """

    def outputs(self, pixels: int) -> int:
        return pixels

    def log_prob(self, outputs: Tensor, x: Tensor) -> Tensor:
        return smooth_log_prob(outputs, x)

    def log_prob_table(self, outputs: Tensor, x: Tensor) -> Tensor:
        return bernoulli_table(outputs, x)

    def mean(self, outputs: Tensor) -> Tensor:
        return torch.sigmoid(outputs)

    def initial_outputs(self, pixel_mean: Tensor) -> Tensor:
        return BernoulliPixels().initial_outputs(pixel_mean)


class PixelVariances(nn.Module):
    """Appends log-variances to the means: one learned number per pixel, equal for all images."""

    def __init__(self, replicas: int, pixels: int) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.full((replicas, 1, pixels), -0.5))

    def forward(self, means: Tensor) -> Tensor:
        log_variance = softplus(self.raw).clamp(min=LEAST_VARIANCE).log()
        return torch.cat([means, log_variance.expand_as(means)], -1)


@dataclass(frozen=True)
class ScaledGaussianPixels(GaussianPixels):
    """Gray values from -1 to 1, with normal noise whose variance is learned for each pixel.

    This is a density of the scaled values. The log-density is lower by log 2 per pixel than for
    values from 0 to 1.

    >>> ScaledGaussianPixels().scaled(torch.tensor([0.0, 1.0]))
    tensor([-1.,  1.])
    """

    def scaled(self, x: Tensor) -> Tensor:
        return 2 * x - 1

    def head(self, replicas: int, pixels: int) -> nn.Module:
        return PixelVariances(replicas, pixels)

    def log_prob(self, outputs: Tensor, x: Tensor) -> Tensor:
        return super().log_prob(outputs, self.scaled(x))

    def mean(self, outputs: Tensor) -> Tensor:
        return ((outputs.chunk(2, -1)[0] + 1) / 2).clamp(0, 1)

    def initial_outputs(self, pixel_mean: Tensor) -> Tensor:
        return self.scaled(pixel_mean)


LIKELIHOODS: Mapping[str, Callable[[int], PixelLikelihood]] = {
    "bernoulli": lambda levels: BernoulliPixels(),
    "gaussian": lambda levels: GaussianPixels(std=0.1),
    "categorical": CategoricalPixels,
    "gray": lambda levels: GrayPixels(),
    "scaled-gaussian": lambda levels: ScaledGaussianPixels(),
}
"""The likelihoods by name. Each value is a function from a data set's levels to a likelihood."""
