"""Likelihoods p(x|b) of pixels: what the outputs of a decoder mean."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from arms.arguments import as_count, as_positive
from arms.bench.models.likelihood import bernoulli_log_prob


class PixelLikelihood(ABC):
    """p(x|b) for `DiscreteVAE(..., likelihood=...)`, where x are grey values from 0 to 1."""

    binarizes_input: ClassVar[bool] = False
    """Whether x are bits drawn from the grey values, instead of the grey values themselves."""

    @abstractmethod
    def outputs(self, pixels: int) -> int:
        """Return how many numbers the decoder must return for an image of that many pixels."""

    @abstractmethod
    def log_prob(self, outputs: Tensor, x: Tensor) -> Tensor:
        """Return log p(x|b), the sum over pixels, `[*lead, R, B]`.

        Args:
            outputs: What the decoder returned, `[*lead, R, B, outputs]`.
            x: Pixels from 0 to 1, `[R, B, pixels]`.
        """

    @abstractmethod
    def mean(self, outputs: Tensor) -> Tensor:
        """Return the mean of every pixel, `[*lead, R, B, pixels]`, for pictures."""

    def initial_outputs(self, pixel_mean: Tensor) -> Tensor:
        """Return the outputs that a built-in decoder starts from, given the mean of each pixel."""
        return pixel_mean.new_zeros(self.outputs(len(pixel_mean)))

    def check_levels(self, levels: int) -> None:  # noqa: B027 (most take any)
        """Raise if this likelihood is for images with another number of levels."""


@dataclass(frozen=True)
class BernoulliPixels(PixelLikelihood):
    """Bits, drawn anew from the grey values in every batch; the decoder returns their logits."""

    binarizes_input = True

    def outputs(self, pixels: int) -> int:
        return pixels

    def log_prob(self, outputs: Tensor, x: Tensor) -> Tensor:
        return bernoulli_log_prob(outputs, x)

    def mean(self, outputs: Tensor) -> Tensor:
        return torch.sigmoid(outputs)

    def initial_outputs(self, pixel_mean: Tensor) -> Tensor:
        return torch.logit(pixel_mean.clamp(0.001, 0.999))


@dataclass(frozen=True)
class GaussianPixels(PixelLikelihood):
    """Grey values with normal noise. This is a density, so bounds may be positive.

    Args:
        std: Standard deviation of the noise, where black is 0 and white is 1. Unless given, the
            decoder returns two numbers per pixel: all means, then all log-variances.

    >>> GaussianPixels(std=0.1).outputs(64), GaussianPixels().outputs(64)
    (64, 128)
    """

    std: float | None = None

    def __post_init__(self) -> None:
        if self.std is not None:
            object.__setattr__(self, "std", as_positive(self.std, "std"))

    def outputs(self, pixels: int) -> int:
        return pixels if self.std is not None else 2 * pixels

    def log_prob(self, outputs: Tensor, x: Tensor) -> Tensor:
        mean, log_variance = self._split(outputs)
        squares = (x - mean).square() * torch.exp(-log_variance)
        return -0.5 * (squares + log_variance + math.log(2 * math.pi)).sum(-1)

    def mean(self, outputs: Tensor) -> Tensor:
        return self._split(outputs)[0].clamp(0, 1)

    def initial_outputs(self, pixel_mean: Tensor) -> Tensor:
        pixels = len(pixel_mean)
        return pad(pixel_mean, (0, self.outputs(pixels) - pixels))  # log-variances are zero

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and log-variances."""
        if self.std is None:
            mean, log_variance = outputs.chunk(2, -1)
            return mean, log_variance
        return outputs, torch.full_like(outputs[..., :1], 2 * math.log(self.std))


@dataclass(frozen=True)
class CategoricalPixels(PixelLikelihood):
    """Every pixel is one of levels + 1 grey values, each with its own probability.

    The decoder returns levels + 1 logits per pixel, those of one pixel side by side.

    Args:
        levels: The largest pixel value of the data set.

    >>> CategoricalPixels(levels=3).outputs(64)
    256
    """

    levels: int = 255

    def __post_init__(self) -> None:
        as_count(self.levels, 1, "levels")

    def outputs(self, pixels: int) -> int:
        return pixels * (self.levels + 1)

    def log_prob(self, outputs: Tensor, x: Tensor) -> Tensor:
        log_probs = torch.log_softmax(outputs.unflatten(-1, (-1, self.levels + 1)), -1)
        values = (x * self.levels).round().long().expand(log_probs.shape[:-1])
        return log_probs.gather(-1, values.unsqueeze(-1)).squeeze(-1).sum(-1)

    def mean(self, outputs: Tensor) -> Tensor:
        probs = torch.softmax(outputs.unflatten(-1, (-1, self.levels + 1)), -1)
        return probs @ self._grey_values(outputs)

    def initial_outputs(self, pixel_mean: Tensor) -> Tensor:
        # Dark pixels prefer dark values. With one level these are the logits of bits.
        logits = torch.logit(pixel_mean.clamp(0.001, 0.999))
        return torch.outer(logits, self._grey_values(logits)).flatten()

    def check_levels(self, levels: int) -> None:
        if levels != self.levels:
            both = f"pixels have levels 0 to {self.levels}, the data set 0 to {levels}"
            raise ValueError(f"the model's {both}: use CategoricalPixels({levels})")

    def _grey_values(self, like: Tensor) -> Tensor:
        return torch.linspace(0, 1, self.levels + 1, dtype=like.dtype, device=like.device)


LIKELIHOODS: Mapping[str, Callable[[int], PixelLikelihood]] = {
    "bernoulli": lambda levels: BernoulliPixels(),
    "gaussian": lambda levels: GaussianPixels(std=0.1),
    "categorical": CategoricalPixels,
}
"""Likelihoods of the built-in networks, made from the levels of the data set."""
