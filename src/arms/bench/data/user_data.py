"""A user's own images as a data set: files, folders, arrays, tensors, and data set objects.

Images are grey or binary and all of one size. Images that are not split into train, valid and test
are split here, in the same way every time.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arms.arguments import as_count, described
from arms.bench.data.datasets import (
    SPLITS,
    Array,
    Dataset,
    expand_home,
    flat,
    read_arrays,
    shuffled,
)
from arms.bench.data.folders import by_split, check_one_size, read_folder

HELD_OUT = 0.1  # share of the images for a validation set if there is none; also for a test set
TO_GREY = "turn colours into grey values, image.convert('L')"


def as_dataset(source: object, name: str | None = None, *, levels: int | None = None) -> Dataset:
    """Return images of your own as a data set.

    Args:
        source: One of
            the path of an .npz or .npy file, or of a folder of images;
            a tensor or array `[images, height, width]`, perhaps with a channel axis of length 1;
            a data set object whose items are images, (image, label) or {"image": ...}, as
            torchvision's and Hugging Face's are;
            or a mapping from "train", "valid" and "test" to tensors, arrays or data set objects.
            An .npz file holds one array of images, or one for each split (`train`,
            `train_images` or `x_train`, and so on), and perhaps the number `levels`.
            Where there are no splits, a tenth each becomes the validation and the test set;
            where only one of the two is missing, it is a tenth of the training images.
        name: Its name in runs and reports; for a path, unless given, the file's name and a digest
            of the images.
        levels: Largest value: a pixel is 1 with probability value / levels. Unless given, 1 where
            no value is larger, else 255; numbers with fractions must lie between 0 and 1, and are
            rounded to 255 levels.

    >>> as_dataset(torch.rand(100, 8, 8), "noise")
    Dataset('noise', 80 train, 10 valid, 10 test images of 8x8, 255 levels)
    """
    if isinstance(source, Dataset):
        return source
    if isinstance(source, str | Path):
        return _from_path(expand_home(source), name, levels)
    if name is None:
        expected = "images that are no file need a name for runs and reports"
        raise ValueError(f"{expected}, got none: as_dataset(x, 'mine')")
    splits = by_split(source, name) if isinstance(source, Mapping) else {"train": source}
    return _build(splits, name, levels, what=name)


def _from_path(place: Path, name: str | None, levels: int | None) -> Dataset:
    note = ""
    if place.is_dir():
        splits, note = read_folder(place)
    elif place.is_file() and place.suffix in (".npz", ".npy"):
        arrays = read_arrays(place)
        saved = _as_levels(arrays.pop("levels"), place) if "levels" in arrays else None
        levels = saved if levels is None else levels
        splits = by_split(arrays, str(place))
        images = [array for array in arrays.values() if array.ndim >= 2] or list(arrays.values())
        if not splits and len(images) == 1:
            splits = {"train": images[0]}
    else:
        got = "something else: convert it" if place.exists() else "nothing: check the path"
        raise ValueError(f"{place} must be an .npz or .npy file, or a folder of images, got {got}")
    stem = Path(os.path.abspath(place)).stem or "images"  # also for "." and ".."
    dataset = _build(splits, stem, levels, what=str(place), note=note)
    return replace(dataset, name=name or f"{stem}@{_digest(dataset)}", path=str(place.resolve()))


def _as_levels(array: Array, path: Path) -> int:
    number: Any = array.item() if array.size == 1 else list(array.shape)
    whole = isinstance(number, float) and number.is_integer()
    return as_count(int(number) if whole else number, 1, f"levels in {path}")


def _digest(dataset: Dataset) -> str:
    digest = hashlib.sha256(f"{dataset.height} {dataset.width} {dataset.levels}".encode())
    for images in (dataset.train, dataset.valid, dataset.test):
        digest.update(images.numpy().tobytes())
    return digest.hexdigest()[:8]


def _build(
    splits: Mapping[str, object], name: str, levels: int | None, what: str, note: str = ""
) -> Dataset:
    """Return a data set of whatever holds the images of its splits; errors call it `what`."""
    if "train" not in splits:
        got = f"{', '.join(splits)} only" if splits else "none"
        raise ValueError(f"{what} must have training images, got {got}: call them train")
    parts = {split: _as_images(images, what) for split, images in splits.items()}
    check_one_size({f"{split} of {what}": part.shape[1:] for split, part in parts.items()})
    whole, levels = _as_whole_numbers(parts, what, levels)
    train, valid, test = map(flat, _split(whole, what))
    height, width = parts["train"].shape[1:]
    return Dataset(name, train, valid, test, height, width, levels, note)


def _as_whole_numbers(
    parts: Mapping[str, Array], what: str, levels: int | None
) -> tuple[dict[str, Array], int]:
    """Return the images as uint8, and the number of levels."""
    tops = {split: float(part.max()) for split, part in parts.items()}
    largest = max(tops.values())
    smallest = min(float(part.min()) for part in parts.values())
    floats = [part for part in parts.values() if part.dtype.kind == "f"]
    fractions = any((part != np.rint(part)).any() for part in floats)
    white = 255 if levels is None else as_count(levels, 1, "levels")
    if fractions and white != 255:
        expected = f"pixels of {what} with fractions are rounded to 255 levels"
        raise ValueError(f"{expected}, got levels={levels}: leave it out")
    if not 0 <= smallest <= largest <= (1 if fractions else min(white, 255)):
        kind = "fractions from 0 to 1" if fractions else f"whole numbers from 0 to {white}"
        got = f"{smallest:g} to {largest:g}: scale them, or change levels"
        raise ValueError(f"the pixels of {what} must be {kind}, got {got}")
    if fractions:
        return {split: np.rint(part * 255).astype(np.uint8) for split, part in parts.items()}, 255
    if levels is None and largest > 1 and 1 in tops.values():
        got = ", ".join(f"{split} from 0 to {top:g}" for split, top in tops.items())
        raise ValueError(f"all splits of {what} must have the same range, got {got}: scale them")
    binary = levels is None and largest <= 1
    return {split: part.astype(np.uint8) for split, part in parts.items()}, 1 if binary else white


def _split(parts: Mapping[str, Array], what: str) -> list[Array]:
    """Return train, valid and test; splits that are missing are taken from the training images."""
    found = dict(parts)
    missing = [split for split in ("valid", "test") if split not in parts]
    held = max(1, round(HELD_OUT * len(parts["train"])))
    if len(parts["train"]) <= held * len(missing):
        expected = f"{what} must have at least {len(missing) + 1} images to split"
        raise ValueError(f"{expected}, got {len(parts['train'])}: give more")
    if missing:  # sorted images would make an unfair validation set
        found["train"] = shuffled(parts["train"])
    for split in missing:
        found["train"], found[split] = found["train"][:-held], found["train"][-held:]
    return [found[split] for split in SPLITS]


def _as_images(source: Any, what: str) -> Array:
    """Return images `[images, height, width]` of whatever holds them."""
    if isinstance(source, torch.Tensor | np.ndarray):
        return _as_array(source, what, batch=True)
    if isinstance(source, str) or not hasattr(source, "__getitem__"):
        got = f"{type(source).__name__}: pass [images, height, width]"
        raise ValueError(f"{what} must be a tensor, an array, or a data set of images, got {got}")
    images = [_one_image(source[index], what) for index in range(len(source))]
    if not images:
        raise ValueError(f"{what} must hold images, got none")
    check_one_size({f"item {i} of {what}": image.shape for i, image in enumerate(images)})
    if len(kinds := {str(image.dtype) for image in images}) > 1:
        got = f"{' and '.join(sorted(kinds))}: convert them"
        raise ValueError(f"all images of {what} must have one type of number, got {got}")
    return np.stack(images)


def _one_image(item: Any, what: str) -> Array:
    """Return the image in an item: the item itself, the first of a pair, or its `image`."""
    if isinstance(item, Mapping):
        keys = [key for key in ("image", "img", "pixel_values") if key in item]
        if not keys:
            got = ", ".join(map(str, item))
            raise ValueError(f"an item of {what} must have an image, got {got}: call it image")
        item = item[keys[0]]
    elif isinstance(item, tuple) and item:
        item = item[0]
    image: Array = _as_array(item, what, batch=False)[0]
    return image


def _as_array(images: Any, what: str, *, batch: bool) -> Array:
    """Return a tensor, an array or an image of Pillow as `[images, height, width]`."""
    if getattr(images, "mode", "") == "P":  # its pixels are indices of a palette
        raise ValueError(f"the images of {what} must be grey, got mode P: {TO_GREY}")
    try:
        array = np.asanyarray(images.detach().cpu() if isinstance(images, torch.Tensor) else images)
    except (TypeError, ValueError, RuntimeError) as error:
        expected = f"{what} must hold dense arrays of integers or floats"
        raise ValueError(f"{expected}, got {described(error)}: convert them") from None
    if np.ma.is_masked(array):
        expected = f"{what} must have a value for every pixel"
        raise ValueError(f"{expected}, got a masked array: fill it first")
    if array.dtype.kind not in "buif":
        raise ValueError(f"{what} must hold numbers, got {array.dtype}: pass grey values")
    array = np.asarray(array) if batch else np.asarray(array)[None]
    shape = list(array.shape)
    if array.ndim == 4 and 1 in (shape[1], shape[3]):  # a channel axis
        array = array.squeeze(1 if shape[1] == 1 else 3)
    if array.ndim != 3 or 0 in shape:
        remedy = TO_GREY if array.ndim == 4 else "reshape them"
        expected = f"{what} must be images [images, height, width], at least one"
        raise ValueError(f"{expected}, got {shape}: {remedy}")
    return array
