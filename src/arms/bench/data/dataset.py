"""A data set in memory, the training images of one or several, and the bits drawn from their grey values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Generator, Tensor

from arms.arguments import as_count
from arms.random import indicator

SPLITS: Mapping[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "valid": ("valid", "validation", "val", "dev"),
    "test": ("test", "testing"),
}
"""What each split may be called in an archive, a folder or a mapping."""


def split_of(name: str) -> str | None:
    """Return the split that a name stands for, None if it stands for none.

    >>> split_of("Val"), split_of("x_train"), split_of("test_images"), split_of("car")
    ('valid', 'train', 'test', None)
    """
    own = name.lower()
    forms = {own, own.removeprefix("x_"), own.removesuffix("_images")}
    return next((split for split, names in SPLITS.items() if forms & set(names)), None)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Images as flat rows of whole numbers, split into training, validation and test images.

    Args:
        name: Its name in configurations, run directories and reports.
        train: Training images, uint8 `[images, pixels]`, pixels row by row.
        valid: Validation images, in the same form.
        test: Test images, in the same form.
        height: Height of an image in pixels.
        width: Width of an image in pixels.
        levels: Largest value: a pixel is 1 with probability value / levels. 255 for grey images, 1 for binary ones.
        note: A warning that is shown beside all numbers measured on it.
        path: The file or folder it was read from, where it is none of the catalogue's.
    """

    name: str
    train: Tensor
    valid: Tensor
    test: Tensor
    height: int
    width: int
    levels: int
    note: str = ""
    path: str = ""

    def __post_init__(self) -> None:
        for size in ("levels", "height", "width"):
            as_count(getattr(self, size), 1, size)
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"a data set must have a name, got {self.name!r}")
        for split in ("train", "valid", "test"):
            images: Tensor = getattr(self, split)
            if not isinstance(images, Tensor):
                raise ValueError(
                    f"{split} images of {self.name} must be a uint8 tensor [images, pixels], got "
                    f"{type(images).__name__}: arms.bench.as_dataset takes arrays, files and data set objects"
                )
            expected = (
                f"{split} images of {self.name} must be uint8 [images, {self.height * self.width}]"
            )
            if (
                images.dtype != torch.uint8
                or images.ndim != 2
                or images.shape[1] != self.height * self.width
            ):
                got = f"{images.dtype} {list(images.shape)}"
                raise ValueError(
                    f"{expected}, height {self.height} times width {self.width}, got {got}: flatten the images, and "
                    "leave their values unscaled"
                )
            if not len(images):
                raise ValueError(
                    f"{expected}, at least one, got none: move some images there from another split"
                )
            if (largest := int(images.max())) > self.levels:
                raise ValueError(
                    f"{expected} from 0 to levels = {self.levels}, got {largest}: try levels={largest}"
                )

    def __repr__(self) -> str:
        counts = ", ".join(
            f"{len(getattr(self, split)):,} {split}" for split in ("train", "valid", "test")
        )
        return f"Dataset({self.name!r}, {counts} images of {self.height}x{self.width}, {self.levels} levels)"

    def pixel_mean(self) -> Tensor:
        """Return the mean of every training pixel as a probability, float32 `[pixels]`."""
        # Whole numbers add up exactly, so the mean is the same on every machine.
        total = self.train.sum(0, dtype=torch.int64)
        return (total.double() / (len(self.train) * self.levels)).float()


@dataclass(frozen=True, eq=False)
class TrainingImages:
    """What replicas learn from: the training images of one data set, or of several, each for some of the replicas."""

    images: Tensor
    """uint8 `[images, pixels]`, those of all data sets, one after the other."""
    levels: int
    spans: tuple[Tensor, Tensor] | None = None
    """First image and number of images per replica, `[R, 1]` each; None where all replicas learn from all images."""

    @classmethod
    def of(cls, datasets: Sequence[Dataset], replicas: int, device: str) -> "TrainingImages":
        """Return the images of data sets with the same image shape and levels.

        Args:
            datasets: One per group of replicas; a data set may occur in several groups.
            replicas: How many replicas in all, which the groups share evenly, in order.
            device: Where the images are put.
        """
        if not datasets or replicas % len(datasets):
            raise ValueError(
                f"replicas must be a multiple of the data sets, got {replicas} for {len(datasets)} of them"
            )
        check_same_shape_and_levels(datasets)
        different = list(dict.fromkeys(datasets))
        first = different[0]
        if len(different) == 1:
            return cls(first.train.to(device), first.levels)
        counts = {dataset: len(dataset.train) for dataset in different}
        starts = dict(zip(different, [0, *accumulate(counts.values())], strict=False))
        each = replicas // len(datasets)
        spans = [
            torch.tensor([of[dataset] for dataset in datasets], device=device)
            .repeat_interleave(each)
            .unsqueeze(1)
            for of in (starts, counts)
        ]
        return cls(
            torch.cat([dataset.train for dataset in different]).to(device),
            first.levels,
            (spans[0], spans[1]),
        )

    def batch(
        self, replicas: int, size: int, generator: Generator | None, *, bits: bool = True
    ) -> Tensor:
        """Draw random images for each replica separately, `[R, size, pixels]`: their bits, or their grey values."""
        device = self.images.device
        if self.spans is None:
            rows = torch.randint(
                len(self.images), (replicas * size,), generator=generator, device=device
            )
        else:  # a range so wide that the remainder favours no image
            numbers = torch.randint(2**62, (replicas, size), generator=generator, device=device)
            rows = (self.spans[0] + numbers % self.spans[1]).flatten()
        images = self.images.index_select(0, rows).unflatten(0, (replicas, -1))
        return observe(images, self.levels, generator, bits=bits)


def check_same_shape_and_levels(datasets: Sequence[Dataset]) -> None:
    """Raise unless the images of all data sets have the same number of pixels and of levels."""
    different = list(dict.fromkeys(datasets))
    if len({(dataset.train.shape[1], dataset.levels) for dataset in different}) > 1:
        got = ", ".join(
            f"{one.name} with {one.train.shape[1]} pixels of {one.levels} levels"
            for one in different
        )
        raise ValueError(
            f"data sets trained together must have the same image shape and levels, got {got}: train them separately"
        )


def observe(
    images: Tensor, levels: int, generator: Generator | None = None, *, bits: bool = True
) -> Tensor:
    """Return what a model sees of images: bits drawn from their grey values, or the grey values, from 0 to 1."""
    return _bits(images, levels, generator) if bits else images / levels


def binarize(images: Tensor, levels: int, generator: Generator | None = None) -> Tensor:
    """Draw float32 bits on the images' device, 1 with probability value / levels: at 0 never, at `levels` always.

    >>> binarize(torch.tensor([[0, 255]], dtype=torch.uint8), levels=255)
    tensor([[0., 1.]])
    """
    if images.dtype != torch.uint8:
        raise ValueError(
            f"images must be uint8 values from 0 to {levels}, got {images.dtype}: pass them unscaled"
        )
    largest = int(images.max()) if images.numel() else 0
    if largest > as_count(levels, 1, "levels"):
        raise ValueError(
            f"images must be values from 0 to levels = {levels}, got {largest}: try levels={largest}"
        )
    return _bits(images, levels, generator)


def _bits(images: Tensor, levels: int, generator: Generator | None) -> Tensor:
    probs = images / levels
    return indicator(probs - torch.rand(images.shape, generator=generator, device=images.device))
