"""A data set in memory, and the bits drawn from its grey values."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

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

    def __post_init__(self) -> None:
        as_count(self.levels, 1, "levels")
        for split in ("train", "valid", "test"):
            images: Tensor = getattr(self, split)
            expected = f"{split} images of {self.name} must be uint8 [images, {self.height * self.width}]"
            if images.dtype != torch.uint8 or images.ndim != 2 or images.shape[1] != self.height * self.width:
                got = f"{images.dtype} {list(images.shape)}"
                raise ValueError(f"{expected}, height {self.height} times width {self.width}, got {got}")
            if not len(images):
                raise ValueError(f"{expected}, at least one, got none: put some of the others there")
            if (largest := int(images.max())) > self.levels:
                raise ValueError(f"{expected} from 0 to levels = {self.levels}, got {largest}: is it {largest} levels?")

    def pixel_mean(self) -> Tensor:
        """Return the mean of every training pixel as a probability, float32 `[pixels]`."""
        # Whole numbers add up exactly, so the mean is the same on every machine.
        total = self.train.sum(0, dtype=torch.int64)
        return (total.double() / (len(self.train) * self.levels)).float()


@dataclass(frozen=True, eq=False)
class TrainingImages:
    """What replicas learn from: the training images of one data set, or of several, each for its share of them."""

    images: Tensor
    """uint8 `[images, pixels]`, those of all data sets."""
    levels: int
    spans: tuple[Tensor, Tensor] | None = None
    """First image and number of images of every replica, `[R, 1]` each; None where all learn from all images."""

    @classmethod
    def of(cls, datasets: Sequence[Dataset], replicas: int, device: str) -> "TrainingImages":
        """Return the images of data sets of one form, each for the same number of replicas, in order."""
        if not datasets or replicas % len(datasets):
            raise ValueError(f"{replicas} replicas must be shared evenly by the data sets, got {len(datasets)} of them")
        check_same_form(datasets)
        different = list(dict.fromkeys(datasets))
        first = different[0]
        if len(different) == 1:
            return cls(first.train.to(device), first.levels)
        counts = {dataset: len(dataset.train) for dataset in different}
        starts = dict(zip(different, [0, *accumulate(counts.values())], strict=False))
        each = replicas // len(datasets)
        spans = [
            torch.tensor([of[dataset] for dataset in datasets], device=device).repeat_interleave(each).unsqueeze(1)
            for of in (starts, counts)
        ]
        return cls(torch.cat([dataset.train for dataset in different]).to(device), first.levels, (spans[0], spans[1]))

    def batch(self, replicas: int, size: int, generator: Generator | None) -> Tensor:
        """Draw bits of random images `[R, size, pixels]`, each replica its own."""
        device = self.images.device
        if self.spans is None:
            rows = torch.randint(len(self.images), (replicas * size,), generator=generator, device=device)
        else:  # so many numbers that none is favoured by the remainder
            numbers = torch.randint(2**62, (replicas, size), generator=generator, device=device)
            rows = (self.spans[0] + numbers % self.spans[1]).flatten()
        return binarize(self.images.index_select(0, rows).unflatten(0, (replicas, -1)), self.levels, generator)


def check_same_form(datasets: Sequence[Dataset]) -> None:
    """Raise unless the images of all data sets have the same size and number of levels."""
    forms = [(dataset.train.shape[1], dataset.levels) for dataset in dict.fromkeys(datasets)]
    if len(set(forms)) > 1:
        names = [dataset.name for dataset in dict.fromkeys(datasets)]
        found = ", ".join(
            f"{name} {form[0]} pixels of {form[1]} levels" for name, form in zip(names, forms, strict=True)
        )
        raise ValueError(
            f"data sets trained together must have the same image size and levels, got {found}: train them separately"
        )


def binarize(images: Tensor, levels: int, generator: Generator | None = None) -> Tensor:
    """Draw float32 bits, 1 with probability value / levels, on the images' device; 0 and `levels` never miss.

    >>> binarize(torch.tensor([[0, 255]], dtype=torch.uint8), levels=255)
    tensor([[0., 1.]])
    """
    if images.dtype != torch.uint8:
        raise ValueError(f"images must be uint8 values from 0 to {levels}, got {images.dtype}: pass them unscaled")
    probs = images / as_count(levels, 1, "levels")
    return step(probs - torch.rand(images.shape, generator=generator, device=images.device))
