"""A data set in memory, and the bits drawn from its grey values."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from arms.arguments import as_count
from arms.couplings import step


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images as flat rows of whole numbers, split three ways."""

    name: str
    train: Tensor
    """uint8 `[images, pixels]`, pixels row by row, as are `valid` and `test`."""
    valid: Tensor
    test: Tensor
    height: int
    width: int
    levels: int
    """A pixel's bit is 1 with probability value / levels: 255 for grey images, 1 for binary ones."""
    note: str = ""
    """What must be said beside numbers measured on it."""

    def pixel_mean(self) -> Tensor:
        """Return the mean of every training pixel as a probability, float32 `[pixels]`."""
        # Whole numbers add up exactly, so the mean is the same on every machine.
        total = self.train.sum(0, dtype=torch.int64)
        return (total.double() / (len(self.train) * self.levels)).float()


def binarize(images: Tensor, levels: int, generator: Generator | None = None) -> Tensor:
    """Draw float32 bits, 1 with probability value / levels, on the images' device; 0 and `levels` never miss.

    >>> binarize(torch.tensor([[0, 255]], dtype=torch.uint8), levels=255)
    tensor([[0., 1.]])
    """
    if images.dtype != torch.uint8:
        raise ValueError(f"images must be uint8 values from 0 to {levels}, got {images.dtype}: pass them unscaled")
    probs = images / as_count(levels, 1, "levels")
    return step(probs - torch.rand(images.shape, generator=generator, device=images.device))
