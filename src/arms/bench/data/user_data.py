"""Convert a user's own images to a data set.

The images may be files, folders, arrays, tensors or data set objects. All images must be gray or
binary, and must have the same size. Images without splits are split in a fixed way. If a folder is
ambiguous, or if a file does not define which value is white, an error is raised.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from arms.arguments import as_count, described
from arms.bench.data.datasets import (
    SPLITS,
    Array,
    Dataset,
    expand_home,
    flat,
    import_optional,
    read_arrays,
    shuffled,
)

HELD_OUT = 0.1  # share of the images for a missing validation set, and for a missing test set
TO_GRAY = "convert them to gray values, for example with image.convert('L')"
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm")
COLOR_NOTE = "color images converted to gray"
DEPTH_NOTE = "images of more than 8 bits rounded to 255 levels"

# Pillow's names for pixel formats.
DEEP_MODES = ("F", "I", "I;16", "I;16B", "I;16L", "I;16N")
GRAY_MODES = ("1", "L", "LA", *DEEP_MODES)
MODES_WITH_ALPHA = ("LA", "PA", "RGBA")

# Tags of TIFF files, and some of their values. Other formats also have the orientation tag.
BITS_PER_SAMPLE = 258
PHOTOMETRIC, WHITE_IS_ZERO = 262, 0
SAMPLE_FORMAT, SIGNED = 339, 2
ORIENTATION, ON_ITS_SIDE = 274, (5, 6, 7, 8)


def as_dataset(source: object, name: str | None = None, *, levels: int | None = None) -> Dataset:
    """Convert your own images to a data set.

    Args:
        source: One of
            the path of an .npz or .npy file, or of a folder of images;
            a tensor or array `[images, height, width]`, perhaps with a channel axis of length 1;
            a data set object whose items are images, (image, label) or {"image": ...}, as in
            torchvision and Hugging Face;
            or a mapping from "train", "valid" and "test" to tensors, arrays or data set objects.
            An .npz file contains one array of images, or one array for each split (`train`,
            `train_images`, `x_train` and so on), and optionally the number `levels`.
            Without splits, a tenth of the images becomes the validation set, and another tenth the
            test set. If only one of these two sets is missing, it gets a tenth of the training
            images.
        name: The name in runs and reports. If `source` is a path, the default is the name of the
            file or folder, followed by a digest of the images.
        levels: The largest possible pixel value. A pixel is 1 with probability value / levels. The
            default is 1 if no pixel is above 1, and 255 otherwise. Fractions must be between 0 and
            1, and are rounded to 255 levels.

    >>> as_dataset(torch.rand(100, 8, 8), "noise")
    Dataset('noise', 80 train, 10 valid, 10 test images of 8x8, 255 levels)
    """
    if isinstance(source, Dataset):
        return source
    if isinstance(source, str | Path):
        return _from_path(expand_home(source), name, levels)
    if name is None:
        expected = "images that do not come from a file need a name for runs and reports"
        raise ValueError(f"{expected}, got none: for example, write as_dataset(x, 'mine')")
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
        other = "another kind of file or folder: convert it"
        got = other if place.exists() else "a path that does not exist: check the path"
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
    """Build a data set from the images of each split. Error messages call the images `what`."""
    if "train" not in splits:
        found = ", ".join(splits) or "no splits"
        remedy = "name the split with the training images 'train'"
        raise ValueError(f"{what} has no split 'train' (found: {found}): {remedy}")
    parts = {split: _as_images(images, what) for split, images in splits.items()}
    check_one_size({f"{split} of {what}": part.shape[1:] for split, part in parts.items()})
    whole, levels = _as_whole_numbers(parts, what, levels)
    train, valid, test = map(flat, _split(whole, what))
    height, width = parts["train"].shape[1:]
    return Dataset(name, train, valid, test, height, width, levels, note)


def _as_whole_numbers(
    parts: Mapping[str, Array], what: str, levels: int | None
) -> tuple[dict[str, Array], int]:
    """Return the images of each split as whole numbers (uint8), and the data set's levels.

    `levels` is the value of white. If it is None, it is determined from the pixels.
    """
    tops = {split: float(part.max()) for split, part in parts.items()}
    largest = max(tops.values())
    smallest = min(float(part.min()) for part in parts.values())
    floats = [part for part in parts.values() if part.dtype.kind == "f"]
    fractions = any((part != np.rint(part)).any() for part in floats)
    white = 255 if levels is None else as_count(levels, 1, "levels")
    if fractions and white != 255:
        expected = f"levels must be 255 because the pixels of {what} are fractions"
        raise ValueError(f"{expected}, got levels={levels}: remove levels")
    if not 0 <= smallest <= largest <= (1 if fractions else min(white, 255)):
        kind = "fractions from 0 to 1" if fractions else f"whole numbers from 0 to {white}"
        got = f"values from {smallest:g} to {largest:g}: scale them, or change levels"
        raise ValueError(f"the pixels of {what} must be {kind}, got {got}")
    if fractions:
        return {split: np.rint(part * 255).astype(np.uint8) for split, part in parts.items()}, 255
    if levels is None and largest > 1 and 1 in tops.values():
        got = ", ".join(f"{split} from 0 to {top:g}" for split, top in tops.items())
        wanted = f"all splits of {what} must have the same range of values"
        raise ValueError(f"{wanted}, got {got}: scale them in the same way")
    binary = levels is None and largest <= 1
    return {split: part.astype(np.uint8) for split, part in parts.items()}, 1 if binary else white


def _split(parts: Mapping[str, Array], what: str) -> list[Array]:
    """Return training, validation and test images.

    If the validation or test images are missing, some of the training images are used for them.
    """
    found = dict(parts)
    missing = [split for split in ("valid", "test") if split not in parts]
    held = max(1, round(HELD_OUT * len(parts["train"])))
    if len(parts["train"]) <= held * len(missing):
        splits = " and ".join(["train", *missing])
        expected = f"{what} must have at least {len(missing) + 1} images to split into {splits}"
        raise ValueError(f"{expected}, got {len(parts['train'])}: add images")
    if missing:  # if images are sorted, the last ones are not representative
        found["train"] = shuffled(parts["train"])
    for split in missing:
        found["train"], found[split] = found["train"][:-held], found["train"][-held:]
    return [found[split] for split in SPLITS]


def _as_images(source: Any, what: str) -> Array:
    """Convert a container of images to an array `[images, height, width]`."""
    if isinstance(source, torch.Tensor | np.ndarray):
        return _as_array(source, what, batch=True)
    if isinstance(source, str) or not hasattr(source, "__getitem__"):
        got = f"{type(source).__name__}: pass an array [images, height, width]"
        raise ValueError(f"{what} must be a tensor, an array, or a data set of images, got {got}")
    images = [_one_image(source[index], what) for index in range(len(source))]
    if not images:
        raise ValueError(f"{what} must contain at least one image, got none")
    check_one_size({f"item {i} of {what}": image.shape for i, image in enumerate(images)})
    if len(kinds := {str(image.dtype) for image in images}) > 1:
        got = f"{' and '.join(sorted(kinds))}: convert the images to one dtype"
        raise ValueError(f"all images of {what} must have the same dtype, got {got}")
    return np.stack(images)


def _one_image(item: Any, what: str) -> Array:
    """Return the image `[height, width]` that one item of a data set contains.

    The item may be an image, a tuple (image, label) or a mapping with the key "image".
    """
    if isinstance(item, Mapping):
        keys = [key for key in ("image", "img", "pixel_values") if key in item]
        if not keys:
            got = ", ".join(map(str, item))
            remedy = "rename the key of the images to 'image'"
            raise ValueError(
                f"items of {what} must have the key 'image', got the keys {got}: {remedy}"
            )
        item = item[keys[0]]
    elif isinstance(item, tuple) and item:
        item = item[0]
    image: Array = _as_array(item, what, batch=False)[0]
    return image


def _as_array(images: Any, what: str, *, batch: bool) -> Array:
    """Convert a tensor, an array or a Pillow image to an array `[images, height, width]`.

    `batch` says whether `images` contains several images or is a single image.
    """
    if getattr(images, "mode", "") == "P":  # pixels are indices into a palette
        raise ValueError(f"the images of {what} must be gray, got mode P (palette): {TO_GRAY}")
    try:
        array = np.asanyarray(images.detach().cpu() if isinstance(images, torch.Tensor) else images)
    except (TypeError, ValueError, RuntimeError) as error:
        expected = f"{what} must contain dense arrays of integers or floats"
        raise ValueError(
            f"{expected}, but reading raised {described(error)}: convert them"
        ) from None
    if np.ma.is_masked(array):
        expected = f"{what} must have a value for every pixel"
        raise ValueError(f"{expected}, got a masked array: call .filled() on it first")
    if array.dtype.kind not in "buif":
        raise ValueError(f"{what} must contain numbers, got {array.dtype}: pass gray values")
    array = np.asarray(array) if batch else np.asarray(array)[None]
    shape = list(array.shape)
    if array.ndim == 4 and 1 in (shape[1], shape[3]):  # a channel axis
        array = array.squeeze(1 if shape[1] == 1 else 3)
    if array.ndim != 3 or 0 in shape:
        remedy = TO_GRAY if array.ndim == 4 else "reshape them"
        expected = f"{what} must have shape [images, height, width] with no axis of length 0"
        raise ValueError(f"{expected}, got {shape}: {remedy}")
    return array


def split_of(name: str) -> str | None:
    """Return the split that a name stands for: "train", "valid", "test" or None.

    >>> split_of("Val"), split_of("x_train"), split_of("test_images"), split_of("car")
    ('valid', 'train', 'test', None)
    """
    own = name.lower()
    forms = {own, own.removeprefix("x_"), own.removesuffix("_images")}
    return next((split for split, names in SPLITS.items() if forms & set(names)), None)


def by_split(source: Mapping[Any, Any], what: str) -> dict[str, Any]:
    """Return the entries of a mapping that are splits, with the keys "train", "valid" and "test".

    Keys such as "val" or "x_train" are recognized. Other entries are left out.
    """
    found: dict[str, Any] = {}
    for key, part in source.items():
        split = split_of(str(key))
        if split in found:
            keys = " and ".join(str(other) for other in source if split_of(str(other)) == split)
            raise ValueError(
                f"{what} must have only one {split} split, got {keys}: rename one of them"
            )
        if split:
            found[split] = part
    return found


def check_one_size(sizes: Mapping[str, Sequence[int]]) -> None:
    """Raise if images do not all have the same size (height, width).

    The keys of `sizes` describe the images in the message.
    """
    (first, size), *others = sizes.items()
    for name, other in others:
        if other != size:
            got = " and ".join(f"{h}x{w} in {at}" for at, (h, w) in ((first, size), (name, other)))
            raise ValueError(f"all images must have the same size, got {got}: resize them")


class _Image(NamedTuple):
    path: Path
    values: Array  # from 0 (black) to `white`
    white: int
    colored: bool


def read_folder(folder: Path) -> tuple[dict[str, Array], str]:
    """Return the images of each split, `[images, height, width]`, and a note for reports.

    The note says how the images were converted, and may be empty. Images are in the order of their
    file names. Pixels are uint8 from 0 to 255. If any file has more than 8 bits per pixel, pixels
    are fractions from 0 to 1 instead.
    """
    files = _files_of_splits(folder)
    images = {split: [_read_image(path) for path in paths] for split, paths in files.items()}
    every = [image for part in images.values() for image in part]
    check_one_size({str(image.path): image.values.shape for image in every})
    colored = any(image.colored for image in every)
    deep = any(image.white != 255 for image in every)
    notes = [note for note, holds in ((COLOR_NOTE, colored), (DEPTH_NOTE, deep)) if holds]

    def pixels(image: _Image) -> Array:
        # Each file is scaled by its own range, so that files of 1, 8 and 16 bits can be mixed.
        return image.values.astype(np.float32) / image.white if deep else image.values

    parts = {split: np.stack([pixels(image) for image in part]) for split, part in images.items()}
    return parts, "; ".join(notes)


def _files_of_splits(folder: Path) -> dict[str, list[Path]]:
    """Return the paths of the image files of each split.

    If no folder is named after a split, all files are training images.
    """
    files = _image_files(folder)
    folders = {path.name: path for path in sorted(folder.iterdir()) if path.is_dir()}
    named = by_split(folders, str(folder))
    # Inside the folder of a split, a folder that is also named after a split is a class.
    above = (place for file in files for place in file.relative_to(folder).parents)
    if below := [place for place in above if split_of(place.name) not in (None, *named)]:
        got = f"{folder / below[0]}: move it there, or rename it if it is a class"
        raise ValueError(f"folders named after splits must lie directly in {folder}, got {got}")
    places = named or {"train": folder}
    found = {key: [file for file in files if file.is_relative_to(places[key])] for key in places}
    if empty := [places[split] for split, part in found.items() if not part]:
        suffixes = ", ".join(IMAGE_SUFFIXES)
        what = f"the folder {empty[0]} must contain images, got none"
        raise ValueError(f"{what}: add files that end in {suffixes}")
    if outside := set(files).difference(*found.values()):
        expected = f"{folder} must have either all images or no image in folders named after splits"
        names = " and ".join(place.name for place in named.values())
        remedy = f"move this image into a split, or rename {names} if the name means a class"
        raise ValueError(f"{expected}, got images in {names}, and also {min(outside)}: {remedy}")
    owners: dict[Path, str] = {}
    for split, file in ((split, file) for split, part in found.items() for file in part):
        if (other := owners.setdefault(file.resolve(), split)) != split:
            got = f"{file} both in {split} and in {other}: remove the link"
            raise ValueError(f"splits of {folder} must not share images, got {got}")
    return found


def _image_files(folder: Path) -> list[Path]:
    """Return the sorted paths of all image files in a folder and its subfolders.

    Links to folders are followed.
    """
    found = []
    for place, folders, names in os.walk(folder, onerror=_fail, followlinks=True):
        for link in (path for name in folders if (path := Path(place, name)).is_symlink()):
            if link.resolve() in [path.resolve() for path in link.parents]:
                raise ValueError(f"links in {folder} must not form a loop, got {link}: remove it")
        found += [Path(place, name) for name in names if name.lower().endswith(IMAGE_SUFFIXES)]
    if other := [path for path in found if not path.is_file()]:
        got = "a broken link or a device"
        raise ValueError(f"{other[0]} must be an image file, got {got}: remove it")
    return sorted(found)


def _fail(error: OSError) -> None:
    """Raise the given error, which `os.walk` would otherwise ignore.

    An example is a folder without permission to read it.
    """
    raise error


def _read_image(path: Path) -> _Image:
    pillow, turning = import_optional("PIL.Image"), import_optional("PIL.ImageOps")
    try:
        with pillow.open(path) as image:
            frames = getattr(image, "n_frames", 1)  # `load` comes later
            # Pillow (tried on 13.0) confuses height and width if an image lies on its side.
            on_its_side = image.getexif().get(ORIENTATION, 1) in ON_ITS_SIDE
            uncompressed = any(tile[0] == "raw" for tile in image.tile)
            scrambled = image.format == "TIFF" and uncompressed and on_its_side
            image.load()
            turning.exif_transpose(image, in_place=True)  # rotate as image viewers do
    except Exception as error:  # Pillow raises a dozen kinds of errors on damaged files
        raise ValueError(f"{path} cannot be read as an image: {described(error)}") from None
    read = _deep_values if image.mode in DEEP_MODES else _gray_values
    values, white, transparent = read(path, image)
    tags = image.tag_v2 if image.format == "TIFF" else {}
    signed = SIGNED in tags.get(SAMPLE_FORMAT, ()) and image.mode not in DEEP_MODES
    # The frames of a camera's MPO file are a photograph and previews, so only the first is used.
    for refused, expected, got in (
        (frames > 1 and image.format != "MPO", "one image", f"{frames} frames: save each frame"),
        (scrambled, "upright", "a rotated uncompressed TIFF, which Pillow misreads: rotate it"),
        (signed, "unsigned", "signed pixels, whose black is unknown: save unsigned pixels"),
        (transparent, "opaque", "transparent pixels: put the image on a background first"),
    ):
        if refused:
            raise ValueError(f"the image {path} must be {expected}, got {got}")
    return _Image(path, values, white, image.mode not in GRAY_MODES)


def _gray_values(path: Path, image: Any) -> tuple[Array, int, bool]:
    """Return the gray values of an image's pixels, `[height, width]`, and two facts about them.

    The facts are the value of white, and whether any pixel is transparent.
    """
    try:
        alpha = image.mode in MODES_WITH_ALPHA or "transparency" in image.info
        transparent = alpha and image.convert("RGBA").getextrema()[3][0] < 255
        return np.asarray(image.convert("L")), 255, transparent
    except ValueError as error:  # Pillow cannot convert this color space to gray values
        raise ValueError(f"{path} cannot be read as gray values: {error}") from None


def _deep_values(path: Path, image: Any) -> tuple[Array, int, bool]:
    """Do the same as `_gray_values` for an image of more than 8 bits per pixel.

    If Pillow converted such an image to gray values, it would clip the pixels.
    """
    values: Array = np.asarray(image)
    if image.format == "TIFF" and image.mode.startswith("I;16"):
        white = int(2 ** image.tag_v2[BITS_PER_SAMPLE][0] - 1)
        if image.tag_v2.get(PHOTOMETRIC) == WHITE_IS_ZERO:
            values = white - values
        return values, white, False
    if image.format in ("PNG", "PPM") and image.mode != "F":
        return values, 65535, bool((values == image.info.get("transparency", -1)).any())
    raise ValueError(
        f"the image {path} must have pixels of 1, 8 or 16 bits, got {image.format} pixels of mode "
        f"{image.mode}, for which the value of white is unknown: save it with 8 bits"
    )
