"""A user's own images as a data set: files, folders, arrays, tensors, and data sets of torchvision or Hugging Face.

Images are grey or binary, all of one size. What is not split into train, valid and test is split here, always alike.
"""

import hashlib
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from arms.arguments import as_count
from arms.bench.data.dataset import Dataset
from arms.bench.data.packages import import_optional
from arms.bench.data.sources import flat, shuffled

__all__ = ["IMAGE_SUFFIXES", "as_dataset", "is_path", "read_own"]

Array: TypeAlias = NDArray[Any]

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm")
SPLITS: Mapping[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "valid": ("valid", "validation", "val", "dev"),
    "test": ("test", "testing"),
}
"""What each split may be called, in an archive, a folder or a mapping."""
HELD_OUT = 0.1
"""Share of the images that becomes the validation set where there is none, and the test set likewise."""
COLOUR_NOTE = "colour images turned grey"


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
        raise ValueError("images that are no file need a name for runs and reports, got none: as_dataset(x, 'mine')")
    if isinstance(source, Mapping):
        parts = {split: _array(images, f"{name}, {split}") for split, images in _by_split(source, name).items()}
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
    place = Path(path).expanduser()
    note = ""
    if place.is_dir():
        parts, note = _read_folder(place)
    elif not place.exists():
        raise ValueError(f"there is no file or folder {place}: give an .npz or .npy file, or a folder of images")
    elif place.suffix == ".npz":
        parts, found = _read_npz(place)
        levels = levels or found
    elif place.suffix == ".npy":
        parts = {"train": _read_npy(place)}
    else:
        raise ValueError(f"{place} must be an .npz or .npy file, or a folder of images, got a {place.suffix or 'file'}")
    dataset = _build({split: _squeezed(part, str(place)) for split, part in parts.items()}, place.stem, levels, note)
    return replace(dataset, name=name or f"{place.stem}@{_digest(dataset)}", path=str(place.resolve()))


def _digest(dataset: Dataset) -> str:
    digest = hashlib.sha256(f"{dataset.height} {dataset.width} {dataset.levels}".encode())
    for images in (dataset.train, dataset.valid, dataset.test):
        digest.update(images.numpy().tobytes())
    return digest.hexdigest()[:8]


def _build(parts: Mapping[str, Array], name: str, levels: int | None, note: str = "") -> Dataset:
    sizes = {part.shape[1:] for part in parts.values()}
    if len(sizes) > 1:
        got = ", ".join(f"{split} {part.shape[1]}x{part.shape[2]}" for split, part in parts.items())
        raise ValueError(f"all images of {name} must have one size, got {got}: resize them")
    whole, levels = _as_whole_numbers(parts, name, levels)
    split = _split(whole, name)
    ((height, width),) = sizes
    rows = {part: flat(images) for part, images in split.items()}
    return Dataset(name, rows["train"], rows["valid"], rows["test"], height, width, levels=levels, note=note)


def _as_whole_numbers(parts: Mapping[str, Array], name: str, levels: int | None) -> tuple[dict[str, Array], int]:
    """Return the images as uint8, and the number of levels."""
    largest = max(float(part.max()) for part in parts.values())
    smallest = min(float(part.min()) for part in parts.values())
    fractions = any(part.dtype.kind == "f" and (part % 1).any() for part in parts.values())
    top = 1 if fractions else 255
    if not (smallest >= 0 and largest <= top):  # NaN is neither
        kind = "with fractions must lie between 0 and 1" if fractions else "must be whole numbers from 0 to 255"
        raise ValueError(f"the pixels of {name} {kind}, got {smallest:g} to {largest:g}: scale them")
    if fractions:
        if levels not in (None, 255):
            raise ValueError(f"pixels with fractions are rounded to 255 levels, got levels={levels}: leave it out")
        return {split: np.rint(part * 255).astype(np.uint8) for split, part in parts.items()}, 255
    chosen = as_count(levels, 1, "levels") if levels is not None else 1 if largest <= 1 else 255
    return {split: part.astype(np.uint8) for split, part in parts.items()}, chosen


def _split(parts: Mapping[str, Array], name: str) -> dict[str, Array]:
    """Return train, valid and test; those that are missing are taken from the training images."""
    if "train" not in parts:
        raise ValueError(f"{name} must have training images, got {', '.join(parts)} only: call one split train")
    missing = [split for split in ("valid", "test") if split not in parts]
    train = parts["train"]
    held = max(1, round(HELD_OUT * len(train)))
    if len(train) <= held * len(missing):
        raise ValueError(f"{name} must have at least 3 images to split, got {len(train)}: give more")
    found = dict(parts)
    if missing:  # sorted images would make an unfair validation set
        train = shuffled(train)
    for split in missing:
        train, found[split] = train[:-held], train[-held:]
    return {**found, "train": train}


def _by_split(source: Mapping[Any, Any], name: str) -> dict[str, Any]:
    """Return the parts of a mapping under our names of the splits; other entries are not looked at."""
    found = {}
    for split, others in SPLITS.items():
        wanted = {form for other in others for form in (other, f"{other}_images", f"x_{other}")}
        keys = [key for key in source if str(key).lower() in wanted]
        if len(keys) > 1:
            raise ValueError(f"{name} must have one array for {split}, got {' and '.join(map(str, keys))}: rename one")
        if keys:
            found[split] = source[keys[0]]
    if not found:
        raise ValueError(
            f"{name} must be split into train, valid and test, got {', '.join(map(str, source)) or 'nothing'}: "
            "rename them"
        )
    return found


def _read_npz(path: Path) -> tuple[dict[str, Array], int | None]:
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} must be an npz archive, got another kind of file, or a truncated one")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    levels = int(arrays.pop("levels")) if "levels" in arrays and arrays["levels"].size == 1 else None
    if len(images := {name: array for name, array in arrays.items() if array.ndim >= 2}) == 1:
        (array,) = images.values()
        return {"train": array}, levels
    return _by_split(arrays, str(path)), levels


def _read_npy(path: Path) -> Array:
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path} must hold one array, got an archive: call it .npz")
    return array


def _read_folder(folder: Path) -> tuple[dict[str, Array], str]:
    """Return the images in a folder, or in its folders train, valid and test; at any depth, in order of their names."""
    names = {other: split for split, others in SPLITS.items() for other in others}
    inner = {names[path.name.lower()]: path for path in sorted(folder.iterdir()) if path.name.lower() in names}
    files = {split: _image_files(path) for split, path in (inner or {"train": folder}).items()}
    if empty := [str((inner or {"train": folder})[split]) for split, found in files.items() if not found]:
        raise ValueError(f"there is no image in {empty[0]}: images end in {', '.join(IMAGE_SUFFIXES)}")
    first, colours, parts = None, False, {}
    for split, found in files.items():
        images = []
        for file in found:
            image, coloured = _read_image(file)
            first, colours = first or (file, image.shape), colours or coloured
            if image.shape != first[1]:
                raise ValueError(
                    f"all images must have one size, got {_size(first[1])} in {first[0]} and {_size(image.shape)} in "
                    f"{file}: resize them"
                )
            images.append(image)
        parts[split] = np.stack(images)
    return parts, COLOUR_NOTE if colours else ""


def _image_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)


def _read_image(path: Path) -> tuple[Array, bool]:
    """Return an image as grey values, and whether it was a coloured one."""
    pillow = import_optional("PIL.Image")
    try:
        with pillow.open(path) as image:
            coloured = image.mode not in ("1", "L", "LA", "I", "I;16", "F")
            return np.asarray(image.convert("L")), coloured
    except (OSError, ValueError, SyntaxError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from None


def _array(source: object, what: str) -> Array:
    """Return images `[images, height, width]` of whatever holds them."""
    if isinstance(source, torch.Tensor):
        return _squeezed(source.detach().cpu().numpy(), what)
    if isinstance(source, np.ndarray):
        return _squeezed(source, what)
    if isinstance(source, str) or not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
        raise ValueError(
            f"{what} must be a tensor, an array, or a data set of images, got {type(source).__name__}: "
            "pass [images, height, width]"
        )
    images = [_one_image(source[index], what) for index in range(len(source))]
    if not images:
        raise ValueError(f"{what} must hold images, got none")
    sizes = {image.shape for image in images}
    if len(sizes) > 1:
        raise ValueError(f"all images of {what} must have one size, got {' and '.join(map(_size, sorted(sizes)[:2]))}")
    return np.stack(images)


def _one_image(item: Any, what: str) -> Array:
    """Return the image in an item of a data set object: the item itself, the first of a pair, or its `image`."""
    if isinstance(item, Mapping):
        keys = [key for key in ("image", "img", "pixel_values") if key in item]
        if not keys:
            raise ValueError(f"an item of {what} must have an image, got {', '.join(map(str, item))}: call it image")
        item = item[keys[0]]
    elif isinstance(item, Sequence) and not isinstance(item, str):
        item = item[0]
    array: Array = item.detach().cpu().numpy() if isinstance(item, torch.Tensor) else np.asarray(item)
    image: Array = _squeezed(array[None], what)[0]
    return image


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
        raise ValueError(f"{what} must be images [images, height, width], at least one, got {shape}: {remedy}")
    return array


def _size(shape: Sequence[int]) -> str:
    return re.sub(r"[^\d]+", "x", str(tuple(shape))).strip("x")
