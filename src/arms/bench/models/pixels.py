"""Likelihoods of pixels that are more than bits: what the outputs of a decoder say of grey values from 0 to 1."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from arms.arguments import as_count, as_positive


class Pixels(ABC):
    """p(x|b) of grey images, for `DiscreteVAE(..., likelihood=...)`: given one, x is value / levels instead of bits."""

    @abstractmethod
    def outputs(self, pixels: int) -> int:
        """Return how many numbers the decoder must return for an image of that many pixels."""

    @abstractmethod
    def log_prob(self, outputs: Tensor, x: Tensor) -> Tensor:
        """Return log p(x|b), the sum over pixels.

        Args:
            outputs: The decoder's, `[*lead, R, B, outputs]`.
            x: Grey values from 0 to 1, `[R, B, pixels]`.

        Returns:
            `[*lead, R, B]`.
        """

    @abstractmethod
    def mean(self, outputs: Tensor) -> Tensor:
        """Return the mean of every pixel, `[*lead, R, B, pixels]`, for pictures."""

    def check_levels(self, levels: int) -> None:  # noqa: B027 (most take any)
        """Raise if the images of a data set have another number of levels than this likelihood is for."""


@dataclass(frozen=True)
class GaussianPixels(Pixels):
    """Grey values with normal noise: a density, so that bounds may be positive.

    Args:
        std: Standard deviation of the noise, in units of the whole range from black to white. Unless given, the decoder
            returns two numbers per pixel, all means and then all log-variances.

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
        if self.std is not None:
            mean, log_variance = outputs, torch.full_like(outputs[..., :1], 2 * math.log(self.std))
        else:
            mean, log_variance = outputs.chunk(2, -1)
        squares = (x - mean).square() * torch.exp(-log_variance)
        return -0.5 * (squares + log_variance + math.log(2 * math.pi)).sum(-1)

    def mean(self, outputs: Tensor) -> Tensor:
        mean = outputs if self.std is not None else outputs.chunk(2, -1)[0]
        return mean.clamp(0, 1)


@dataclass(frozen=True)
class CategoricalPixels(Pixels):
    """Every pixel one of levels + 1 grey values, each with a probability of its own.

    The decoder returns levels + 1 logits per pixel, those of one pixel side by side.

    Args:
        levels: The data set's.

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
        return probs @ torch.linspace(
            0, 1, self.levels + 1, dtype=outputs.dtype, device=outputs.device
        )

    def check_levels(self, levels: int) -> None:
        if levels != self.levels:
            raise ValueError(
                f"the model's pixels have levels 0 to {self.levels}, and those of the data set 0 to {levels}: "
                f"make it with CategoricalPixels({levels})"
            )
