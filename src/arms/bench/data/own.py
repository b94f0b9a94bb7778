"""A user's own images as a data set: files, folders, arrays, tensors, and data set objects.

Images are grey or binary and all of one size. Images that are not split into train, valid and test
are split here, in the same way every time.
"""

import hashlib
import math
import os
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from arms.arguments import as_count, described
from arms.bench.data.dataset import SPLITS, Dataset, split_of
from arms.bench.data.download import expand_home
from arms.bench.data.folders import in_words, read_folder
from arms.bench.data.sources import flat, shuffled

Array: TypeAlias = NDArray[Any]

HELD_OUT = 0.1
"""Share of the images that becomes the validation set if there is none; the same for the test set."""
GREY_MODES = ("1", "L", "I", "I;16", "I;16B", "I;16L", "F")
"""Kinds of pixels of a Pillow image that are one number each, and not an index of a palette."""


def is_path(name: str) -> bool:
    """Whether what is no name of a data set is meant as a file or a folder.

    >>> is_path("faces.npz"), is_path("./faces"), is_path("digist")
    (True, True, False)
    """
    return name.endswith((".npz", ".npy")) or "/" in name or "\\" in name or Path(name).exists()


def as_dataset(source: object, name: str | None = None, *, levels: int | None = None) -> Dataset:
    """Return images of your own as a data set.

    Args:
        source: One of
            an .npz or .npy file, or a folder of images, as a path;
            a tensor or array `[images, height, width]`, perhaps with a channel axis of length 1;
            a data set object whose items are images, (image, label) or {"image": ...}, as torchvision's and
            Hugging Face's are;
            or a mapping from "train", "valid" and "test" to tensors, arrays or data set objects.
            Where there are no splits, a tenth each becomes the validation and the test set; where only one of the two
            is missing, it is a tenth of the training images.
        name: Its name in runs and reports; for a path, unless given, the file's name and a digest of its contents.
        levels: Largest value: a pixel is 1 with probability value / levels. Unless given, 1 where no value is larger,
            else 255; numbers with fractions must lie between 0 and 1, and are rounded to 255 levels.

    >>> as_dataset(torch.rand(100, 8, 8), "noise")
    Dataset('noise', 80 train, 10 valid, 10 test images of 8x8, 255 levels)
    """
    if isinstance(source, Dataset):
        return source
    if isinstance(source, str | Path):
        return read_own(source, name, levels=levels)
    if name is None:
        raise ValueError(
            "images that are no file need a name for runs and reports, got none: as_dataset(x, 'mine')"
        )
    if isinstance(source, Mapping):
        parts = {
            split: _array(images, f"{name}, {split}")
            for split, images in _by_split(source, name).items()
        }
    else:
        parts = {"train": _array(source, name)}
    return _build(parts, name, levels)


def read_own(path: Path | str, name: str | None = None, *, levels: int | None = None) -> Dataset:
    """Return the data set in a file or a folder: .npz, .npy, or images, perhaps in train, valid and test.

    An .npz file holds one array of images, or one for each split (`train`, `train_images` or `x_train`, and so on), and
    perhaps the number `levels`. Nothing is unpickled.

    Args:
        path: The file or folder.
        name: Its name in runs and reports; unless given, that of the file and a digest of the images.
        levels: As for `as_dataset`.
    """
    place = expand_home(path)
    note = ""
    if place.is_dir():
        parts, note = read_folder(place)
    elif not place.exists():
        raise ValueError(
            f"there is no file or folder {place}: give an .npz or .npy file, or a folder of images"
        )
    elif place.suffix not in (".npz", ".npy") or not place.is_file():
        kind = f"a {place.suffix} file" if place.is_file() and place.suffix else "something else"
        raise ValueError(
            f"{place} must be an .npz or .npy file, or a folder of images, got {kind}: convert it"
        )
    elif place.suffix == ".npz":
        parts, found = _read_npz(place)
        levels = found if levels is None else levels
    else:
        parts = {"train": _read_npy(place)}
    parts = {split: _squeezed(part, str(place)) for split, part in parts.items()}
    stem = Path(os.path.abspath(place)).stem or "images"  # also for "." and ".."
    dataset = _build(parts, stem, levels, note, what=str(place))
    return replace(dataset, name=name or f"{stem}@{_digest(dataset)}", path=str(place.resolve()))


def _digest(dataset: Dataset) -> str:
    digest = hashlib.sha256(f"{dataset.height} {dataset.width} {dataset.levels}".encode())
    for images in (dataset.train, dataset.valid, dataset.test):
        digest.update(images.numpy().tobytes())
    return digest.hexdigest()[:8]


def _build(
    parts: Mapping[str, Array], name: str, levels: int | None, note: str = "", what: str = ""
) -> Dataset:
    """Return images `[images, height, width]` of splits as a data set; errors call it `what`."""
    what = what or name
    sizes = {part.shape[1:] for part in parts.values()}
    if len(sizes) > 1:
        got = ", ".join(f"{split} {in_words(part.shape[1:])}" for split, part in parts.items())
        raise ValueError(f"all images of {what} must have one size, got {got}: resize them")
    whole, levels = _as_whole_numbers(parts, what, levels)
    split = _split(whole, what)
    ((height, width),) = sizes
    rows = {part: flat(images) for part, images in split.items()}
    return Dataset(
        name, rows["train"], rows["valid"], rows["test"], height, width, levels=levels, note=note
    )


def _as_whole_numbers(
    parts: Mapping[str, Array], what: str, levels: int | None
) -> tuple[dict[str, Array], int]:
    """Return the images as uint8, and the number of levels."""
    tops = {split: float(part.max()) for split, part in parts.items()}
    largest = max(tops.values())
    smallest = min(float(part.min()) for part in parts.values())
    if not (math.isfinite(smallest) and math.isfinite(largest)):
        raise ValueError(
            f"the pixels of {what} must be finite, got {smallest:g} to {largest:g}: replace these values"
        )
    fractions = any(part.dtype.kind == "f" and (part % 1).any() for part in parts.values())
    if not 0 <= smallest <= largest <= (1 if fractions else 255):
        kind = (
            "with fractions must lie between 0 and 1"
            if fractions
            else "must be whole numbers from 0 to 255"
        )
        raise ValueError(
            f"the pixels of {what} {kind}, got {smallest:g} to {largest:g}: scale them"
        )
    if fractions:
        if levels not in (None, 255):
            raise ValueError(
                f"pixels with fractions, as in {what}, are rounded to 255 levels, got levels={levels}: leave it out"
            )
        return {split: np.rint(part * 255).astype(np.uint8) for split, part in parts.items()}, 255
    whole = {split: part.astype(np.uint8) for split, part in parts.items()}
    if levels is None:
        if largest > 1 and 1 in tops.values():
            got = ", ".join(f"{split} from 0 to {value:g}" for split, value in tops.items())
            raise ValueError(
                f"all splits of {what} must have the same range, got {got}: scale them alike"
            )
        return whole, 1 if largest <= 1 else 255
    if largest > as_count(levels, 1, "levels"):
        raise ValueError(
            f"the pixels of {what} must be whole numbers from 0 to levels = {levels}, got "
            f"{largest:g}: try levels={largest:g}"
        )
    return whole, levels


def _split(parts: Mapping[str, Array], what: str) -> dict[str, Array]:
    """Return train, valid and test; splits that are missing are taken from the training images."""
    if "train" not in parts:
        raise ValueError(
            f"{what} must have training images, got {', '.join(parts)} only: call one split train"
        )
    missing = [split for split in ("valid", "test") if split not in parts]
    train = parts["train"]
    held = max(1, round(HELD_OUT * len(train)))
    if len(train) <= held * len(missing):
        raise ValueError(
            f"{what} must have at least {len(missing) + 1} images to split, got {len(train)}: give more"
        )
    found = dict(parts)
    if missing:  # sorted images would make an unfair validation set
        train = shuffled(train)
    for split in missing:
        train, found[split] = train[:-held], train[-held:]
    return {**found, "train": train}


def _by_split(source: Mapping[Any, Any], what: str) -> dict[str, Any]:
    """Return the parts of a mapping under our names of the splits; other entries are ignored."""
    found = {}
    for split in SPLITS:
        keys = [key for key in source if split_of(str(key)) == split]
        if len(keys) > 1:
            raise ValueError(
                f"{what} must have one array for {split}, got {' and '.join(map(str, keys))}: rename one"
            )
        if keys:
            found[split] = source[keys[0]]
    if not found:
        raise ValueError(
            f"{what} must be split into train, valid and test, got "
            f"{', '.join(map(str, source)) or 'nothing'}: rename them"
        )
    return found


def _read_npz(path: Path) -> tuple[dict[str, Array], int | None]:
    if not zipfile.is_zipfile(path):
        raise ValueError(
            f"{path} must be an npz archive, got another kind of file, or a truncated one"
        )
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            loaded = {name: archive[name] for name in archive.files}
    except Exception as error:  # numpy raises a dozen kinds of errors on damaged files
        raise ValueError(f"{path} cannot be read: {described(error)}") from None
    arrays = {name: array for name, array in loaded.items() if isinstance(array, np.ndarray)}
    levels = _as_levels(arrays.pop("levels"), path) if "levels" in arrays else None
    images = [name for name, array in arrays.items() if array.ndim >= 2]
    if len(images) == 1 and split_of(images[0]) is None:
        return {"train": arrays[images[0]]}, levels
    return _by_split(arrays, str(path)), levels


def _as_levels(array: Array, path: Path) -> int:
    """Return the number of levels that an archive holds."""
    number = array.item() if array.size == 1 else None
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        got = repr(number) if array.size == 1 else f"an array {list(array.shape)}"
        raise ValueError(
            f"levels in {path} must be a whole number >= 1, got {got}: save the value of white"
        )
    return number


def _read_npy(path: Path) -> Array:
    try:
        array = np.load(path, allow_pickle=False)
    except Exception as error:  # numpy raises a dozen kinds of errors on damaged files
        raise ValueError(f"{path} cannot be read: {described(error)}") from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise ValueError(f"{path} must hold one array, got an archive: call it .npz")
    return array


def _array(source: object, what: str) -> Array:
    """Return images `[images, height, width]` of whatever holds them."""
    if isinstance(source, torch.Tensor | np.ndarray):
        return _squeezed(_as_array(source, what), what)
    if isinstance(source, str) or not (
        hasattr(source, "__len__") and hasattr(source, "__getitem__")
    ):
        raise ValueError(
            f"{what} must be a tensor, an array, or a data set of images, got {type(source).__name__}: "
            "pass [images, height, width]"
        )
    images = [_one_image(source[index], what) for index in range(len(source))]
    if not images:
        raise ValueError(f"{what} must hold images, got none")
    sizes = {image.shape for image in images}
    if len(sizes) > 1:
        got = " and ".join(map(in_words, sorted(sizes)[:2]))
        raise ValueError(f"all images of {what} must have one size, got {got}: resize them")
    if len(kinds := {str(image.dtype) for image in images}) > 1:
        got = " and ".join(sorted(kinds))
        raise ValueError(
            f"all images of {what} must have one type of number, got {got}: convert them"
        )
    return np.stack(images)


def _one_image(item: Any, what: str) -> Array:
    """Return the image in an item of a data set object: the item itself, the first of a pair, or its `image`."""
    if isinstance(item, Mapping):
        keys = [key for key in ("image", "img", "pixel_values") if key in item]
        if not keys:
            raise ValueError(
                f"an item of {what} must have an image, got {', '.join(map(str, item))}: call it image"
            )
        item = item[keys[0]]
    elif isinstance(item, list | tuple) and item and not _is_rows(item):
        item = item[0]
    image: Array = _squeezed(_as_array(item, what)[None], what)[0]
    return image


def _is_rows(item: list[Any] | tuple[Any, ...]) -> bool:
    """Whether an item is an image as a list of rows, and not a pair of an image and a label."""
    return isinstance(item, list) and isinstance(item[0], list | Real)


def _as_array(images: Any, what: str) -> Array:
    """Return a tensor, an array or an image of Pillow as an array."""
    mode = getattr(images, "mode", "L")
    if hasattr(images, "getbands") and mode not in GREY_MODES:
        raise ValueError(
            f"the images of {what} must be grey, got mode {mode}: turn colours into grey values, image.convert('L')"
        )
    try:
        array = np.asanyarray(images.detach().cpu() if isinstance(images, torch.Tensor) else images)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{what} must hold dense arrays of integers or floats, got {described(error)}: convert them"
        ) from None
    if np.ma.is_masked(array):
        raise ValueError(
            f"{what} must have a value for every pixel, got a masked array: fill it first"
        )
    return np.asarray(array)


def _squeezed(array: Array, what: str) -> Array:
    """Return `[images, height, width]`, without a channel axis of length 1."""
    if array.dtype.kind not in "buif":
        raise ValueError(f"{what} must hold numbers, got {array.dtype}: pass grey values")
    shape = list(array.shape)
    if array.ndim == 4 and 1 in (shape[1], shape[3]):
        array = array.squeeze(1 if shape[1] == 1 else 3)
    if array.ndim != 3 or 0 in array.shape:
        colour = array.ndim == 4 and (shape[1] in (3, 4) or shape[3] in (3, 4))
        remedy = "turn colours into grey values, image.convert('L')" if colour else "reshape them"
        raise ValueError(
            f"{what} must be images [images, height, width], at least one, got {shape}: {remedy}"
        )
    return array
