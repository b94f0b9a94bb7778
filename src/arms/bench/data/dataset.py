"""A data set in memory, the training images of one or several, and the bits drawn from them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from torch import Generator, Tensor

from arms.arguments import as_count, described
from arms.random import indicator

Array: TypeAlias = NDArray[Any]
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


def by_split(source: Mapping[Any, Any], what: str) -> dict[str, Any]:
    """Return the parts of a mapping under our names of the splits; other entries are ignored."""
    found: dict[str, Any] = {}
    for key, part in source.items():
        split = split_of(str(key))
        if split in found:
            keys = " and ".join(str(other) for other in source if split_of(str(other)) == split)
            raise ValueError(f"{what} must have one {split} split, got {keys}: rename one")
        if split:
            found[split] = part
    return found


def check_one_size(sizes: Mapping[str, Sequence[int]]) -> None:
    """Raise unless all sizes are the same; the keys say what has them."""
    (first, size), *others = sizes.items()
    for name, other in others:
        if other != size:
            got = " and ".join(f"{h}x{w} in {at}" for at, (h, w) in ((first, size), (name, other)))
            raise ValueError(f"all images must have one size, got {got}: resize them")


def shuffled(images: Array) -> Array:
    """Return the images in a random order that is the same every time."""
    return images[np.random.default_rng(0).permutation(len(images))]


def flat(images: Array) -> Tensor:
    """Return images `[count, height, width]` as a tensor `[count, pixels]`."""
    return torch.from_numpy(np.ascontiguousarray(images).reshape(len(images), -1))


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
        levels: Largest value: a pixel is 1 with probability value / levels. 255 for grey images,
            1 for binary ones.
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
        for split in SPLITS:
            self._check(split, getattr(self, split))

    def _check(self, split: str, images: object) -> None:
        pixels = self.height * self.width
        expected = f"{split} images of {self.name} must be uint8 [images, {pixels}]"
        if not isinstance(images, Tensor):
            got = type(images).__name__
            raise ValueError(f"{expected}, got {got}: arms.bench.as_dataset converts it")
        if images.dtype != torch.uint8 or images.shape[1:] != (pixels,) or not len(images):
            got = f"{images.dtype} {list(images.shape)}: flatten them, and do not scale them"
            raise ValueError(f"{expected}, height times width, at least one, got {got}")
        if (largest := int(images.max())) > self.levels:
            got = f"{largest}: try levels={largest}"
            raise ValueError(f"{expected} from 0 to levels = {self.levels}, got {got}")

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(getattr(self, split)):,} {split}" for split in SPLITS)
        size = f"{self.height}x{self.width}, {self.levels} levels"
        return f"Dataset({self.name!r}, {counts} images of {size})"

    def pixel_mean(self) -> Tensor:
        """Return the mean of every training pixel as a probability, float32 `[pixels]`."""
        # Whole numbers add up exactly, so the mean is the same on every machine.
        total = self.train.sum(0, dtype=torch.int64)
        return (total.double() / (len(self.train) * self.levels)).float()


@dataclass(frozen=True, eq=False)
class TrainingImages:
    """The training images of one data set, or of several, each for some of the replicas."""

    images: Tensor  # uint8 [images, pixels], those of all data sets, one after the other
    levels: int
    spans: tuple[Tensor, Tensor] | None = None  # [R, 1] each: first image, number; None: all

    @classmethod
    def of(cls, datasets: Sequence[Dataset], replicas: int, device: str) -> "TrainingImages":
        """Return the images of one data set per group of replicas, some perhaps the same."""
        if not datasets or replicas % len(datasets):
            got = f"{replicas} for {len(datasets)} of them"
            raise ValueError(f"replicas must be a multiple of the data sets, got {got}")
        check_same_shape_and_levels(datasets)
        different = list(dict.fromkeys(datasets))
        levels = different[0].levels
        if len(different) == 1:
            return cls(different[0].train.to(device), levels)
        counts = {dataset: len(dataset.train) for dataset in different}
        starts = dict(zip(different, [0, *accumulate(counts.values())], strict=False))
        groups = [[numbers[one] for one in datasets] for numbers in (starts, counts)]
        spans = torch.tensor(groups, device=device).repeat_interleave(replicas // len(datasets), 1)
        images = torch.cat([dataset.train for dataset in different]).to(device)
        return cls(images, levels, (spans[0].unsqueeze(1), spans[1].unsqueeze(1)))

    def batch(
        self, replicas: int, size: int, generator: Generator | None, *, bits: bool = True
    ) -> Tensor:
        """Draw random images for each replica, `[R, size, pixels]`: bits, or grey values."""
        device = self.images.device
        if self.spans is None:
            count = replicas * size
            rows = torch.randint(len(self.images), (count,), generator=generator, device=device)
        else:  # a range so wide that the remainder favours no image
            numbers = torch.randint(2**62, (replicas, size), generator=generator, device=device)
            rows = (self.spans[0] + numbers % self.spans[1]).flatten()
        images = self.images.index_select(0, rows).unflatten(0, (replicas, -1))
        return observe(images, self.levels, generator, bits=bits)


def check_same_shape_and_levels(datasets: Sequence[Dataset]) -> None:
    """Raise unless the images of all data sets have the same number of pixels and of levels."""
    kinds = {one: (one.train.shape[1], one.levels) for one in datasets}
    if len(set(kinds.values())) > 1:
        each = (f"{one.name} with {p} pixels of {n} levels" for one, (p, n) in kinds.items())
        expected = "data sets trained together must have the same image shape and levels"
        raise ValueError(f"{expected}, got {', '.join(each)}: train them separately")


def observe(
    images: Tensor, levels: int, generator: Generator | None = None, *, bits: bool = True
) -> Tensor:
    """Return what a model sees of images: bits, 1 with probability value / levels, or that value.

    >>> observe(torch.tensor([[0, 255]], dtype=torch.uint8), levels=255)
    tensor([[0., 1.]])
    """
    if not bits:
        return images / levels
    noise = torch.rand(images.shape, generator=generator, device=images.device)
    return indicator(images / levels - noise)


def expand_home(path: Path | str) -> Path:
    """Return a path with the home folder in place of ~ or ~user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        expected, remedy = "the home folder of a path must be known", "write the whole path"
        raise ValueError(f"{expected}, got {str(path)!r}: {remedy}") from None


def import_optional(module: str) -> ModuleType:
    """Return a module, or raise a `ValueError` that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        remedy = "pip install 'arms-grad[data]'"
        raise ValueError(f"this data set needs {module} ({error}): {remedy}") from None


def read_arrays(path: Path, names: Collection[str] = ()) -> dict[str, Array]:
    """Read the arrays of an .npz file, all or those named, or the one array of an .npy file."""
    try:
        with path.open("rb") as file:
            if path.suffix == ".npy":
                return {"images": np.lib.format.read_array(file, allow_pickle=False)}
            with NpzFile(file, allow_pickle=False) as archive:
                # A member that is no array comes as bytes.
                return {name: np.asarray(archive[name]) for name in names or archive.files}
    except Exception as error:  # numpy raises a dozen kinds of errors on damaged files
        raise ValueError(f"{path} cannot be read: {described(error)}") from None
