"""Read a folder of image files as grey values.

The images lie directly in the folder, in folders named after classes, or in folders named after
the splits. A layout that could mean two things is refused, and so is a file that does not say
which of its values is white.
"""

import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from arms.arguments import described
from arms.bench.data.dataset import split_of
from arms.bench.data.packages import import_optional

Array: TypeAlias = NDArray[Any]

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm")
COLOUR_NOTE = "colour images turned grey"
DEPTH_NOTE = "images of more than 8 bits rounded to 255 levels"
DEEP_MODES = ("F", "I", "I;16", "I;16B", "I;16L", "I;16N")
GREY_MODES = ("1", "L", "LA", *DEEP_MODES)
MODES_WITH_ALPHA = ("LA", "PA", "RGBA")
"""Names that Pillow has for kinds of pixels."""
BITS_PER_SAMPLE, PHOTOMETRIC, WHITE_IS_ZERO = 258, 262, 0
"""Two tags of a TIFF file, and the value of the second that says that 0 is white."""
SAMPLE_FORMAT, SIGNED = 339, 2
"""Another tag, and the value that says that numbers have signs."""
ORIENTATION, ON_ITS_SIDE = 274, (5, 6, 7, 8)
"""A tag that cameras write, and its values that exchange height and width."""


@dataclass(frozen=True)
class _Image:
    path: Path
    values: Array
    white: int
    """The value that means white; 0 is black."""
    coloured: bool

    def fractions(self) -> Array:
        """Return the values from 0 to 1."""
        return self.values.astype(np.float32) / self.white


def read_folder(folder: Path) -> tuple[dict[str, Array], str]:
    """Return the images of every split `[images, height, width]`, and a note on what was changed.

    Images are in the order of their names. They are uint8 from 0 to 255, or fractions from 0 to 1
    if any file has more than 8 bits.
    """
    files = _files_of_splits(folder)
    images = {split: [_read_image(path) for path in paths] for split, paths in files.items()}
    every = [image for part in images.values() for image in part]
    _check_one_size(every)
    notes = [COLOUR_NOTE] if any(image.coloured for image in every) else []
    deep = any(image.white != 255 for image in every)
    parts = {}
    for split, part in images.items():
        # Each file is scaled by its own range, so that files of 1, 8 and 16 bits can be mixed.
        parts[split] = np.stack([image.fractions() if deep else image.values for image in part])
    return parts, "; ".join([*notes, DEPTH_NOTE] if deep else notes)


def in_words(shape: Sequence[int]) -> str:
    """Return the size of an image as text.

    >>> in_words((28, 30))
    '28x30'
    """
    return "x".join(map(str, shape))


def _check_one_size(images: Sequence[_Image]) -> None:
    first = images[0]
    for image in images:
        if image.values.shape != first.values.shape:
            raise ValueError(
                f"all images must have one size, got {in_words(first.values.shape)} in "
                f"{first.path} and {in_words(image.values.shape)} in {image.path}: resize them"
            )


def _files_of_splits(folder: Path) -> dict[str, list[Path]]:
    """Return the image files of every split; all are training images if no folder names a split."""
    files = _image_files(folder)
    named = [path for path in sorted(folder.iterdir()) if path.is_dir() and split_of(path.name)]
    found: dict[str, list[Path]] = {}
    places: dict[str, Path] = {}
    for place in named:
        split = split_of(place.name)
        assert split is not None
        if split in places:
            raise ValueError(
                f"{folder} must have one folder of {split} images, got {places[split].name} and "
                f"{place.name}: merge them, or rename one"
            )
        places[split] = place
        found[split] = [file for file in files if file.relative_to(folder).parts[0] == place.name]
    _check_no_split_below(folder, files, set(places))
    _check_no_shared_file(folder, found)
    if not named:
        places, found = {"train": folder}, {"train": files}
    inside = {file for part in found.values() for file in part}
    if outside := [file for file in files if file not in inside]:
        names = " and ".join(place.name for place in named)
        raise ValueError(
            f"{folder} must have all of its images in folders named after splits, or none, got "
            f"{names} and also {outside[0]}: move that into a split, or rename {names} if it is "
            "no split but a class"
        )
    if empty := [places[split] for split, part in found.items() if not part]:
        raise ValueError(
            f"there is no image in {empty[0]}: images end in {', '.join(IMAGE_SUFFIXES)}"
        )
    return found


def _check_no_split_below(folder: Path, files: Sequence[Path], known: Set[str]) -> None:
    """Raise if images lie in a folder that is named after a split, but further down.

    Where the split is known, because a folder above has its name too, the one below is a class.
    """
    for file in files:
        above = file.relative_to(folder).parts[:-1]
        splits = [split_of(name) for name in above]
        if inner := [depth for depth, split in enumerate(splits) if split and split not in known]:
            place = folder.joinpath(*above[: inner[0] + 1])
            remedy = "move it there" if known else f"give {place.parent} as the data set"
            raise ValueError(
                f"folders named after splits must lie directly in {folder}, got {place}: {remedy}, "
                f"or rename {place.name} if it is a class"
            )


def _check_no_shared_file(folder: Path, splits: Mapping[str, Sequence[Path]]) -> None:
    """Raise if links make one file an image of two splits, so that it is trained and tested on."""
    seen: dict[Path, tuple[str, Path]] = {}
    for split, files in splits.items():
        for file in files:
            other, first = seen.setdefault(file.resolve(), (split, file))
            if other != split:
                raise ValueError(
                    f"splits of {folder} must have images of their own, got one file as {first} and "
                    f"{file}: remove the link"
                )


def _image_files(folder: Path) -> list[Path]:
    """Return all image files below a folder, in order; links to folders are followed."""
    found = []
    for place, folders, names in os.walk(folder, onerror=_fail, followlinks=True):
        for link in (path for name in folders if (path := Path(place, name)).is_symlink()):
            _check_no_loop(link, folder)
        found += [Path(place, name) for name in names if name.lower().endswith(IMAGE_SUFFIXES)]
    if other := [path for path in found if not path.is_file()]:
        raise ValueError(
            f"{other[0]} must be an image file, got a broken link or a device: remove it"
        )
    return sorted(found)


def _fail(error: OSError) -> None:
    """Raise what `os.walk` would ignore, such as a folder that may not be read."""
    raise error


def _check_no_loop(link: Path, folder: Path) -> None:
    """Raise if a link below a folder leads back to a folder that it lies in."""
    above = link.parents[: len(link.relative_to(folder).parts)]
    if link.resolve() in [path.resolve() for path in above]:
        raise ValueError(f"links in {folder} must not form a loop, got {link}: remove it")


def _read_image(path: Path) -> _Image:
    pillow, turning = import_optional("PIL.Image"), import_optional("PIL.ImageOps")
    try:
        with pillow.open(path) as image:
            frames = getattr(image, "n_frames", 1)  # before `load`: counting moves through the file
            scrambled = _is_scrambled(image)
            image.load()
            turning.exif_transpose(image, in_place=True)  # as viewers show a camera's photographs
    except Exception as error:  # Pillow raises a dozen kinds of errors on damaged files
        raise ValueError(f"{path} cannot be read as an image: {described(error)}") from None
    # A camera's MPO file is a photograph with previews. In all other formats every frame counts.
    if frames > 1 and image.format != "MPO":
        raise ValueError(
            f"{path} must be one image, got {frames} frames: save each as its own file"
        )
    if scrambled:
        raise ValueError(
            f"{path} must be upright, got an uncompressed TIFF that is to be shown on its side, "
            "which Pillow does not read right: turn it, or save it with compression"
        )
    signed = image.format == "TIFF" and SIGNED in image.tag_v2.get(SAMPLE_FORMAT, ())
    if signed and image.mode not in DEEP_MODES:
        raise ValueError(
            f"{path} must have pixels without signs, got signed numbers, for which the file does not "
            "say what is black: save it with unsigned numbers"
        )
    read = _deep_values if image.mode in DEEP_MODES else _grey_values
    values, white, transparent = read(path, image)
    if transparent:
        raise ValueError(
            f"{path} must be opaque, got transparent pixels: put it on a background first"
        )
    return _Image(path, values, white, image.mode not in GREY_MODES)


def _is_scrambled(image: Any) -> bool:
    """Whether Pillow, seen with version 13.0, takes the height of an image for its width."""
    raw = any(tile[0] == "raw" for tile in image.tile)
    return image.format == "TIFF" and raw and image.getexif().get(ORIENTATION, 1) in ON_ITS_SIDE


def _grey_values(path: Path, image: Any) -> tuple[Array, int, bool]:
    """Return the pixels of an image, the value that means white, and whether any is transparent."""
    try:
        alpha = image.mode in MODES_WITH_ALPHA or "transparency" in image.info
        transparent = alpha and image.convert("RGBA").getextrema()[3][0] < 255
        return np.asarray(image.convert("L")), 255, transparent
    except ValueError as error:  # a colour space that Pillow does not turn into grey values
        raise ValueError(f"{path} cannot be read as grey values: {error}") from None


def _deep_values(path: Path, image: Any) -> tuple[Array, int, bool]:
    """Return the same for an image of more than 8 bits.

    Pillow's conversion to 8 bits clips its values instead of scaling them.
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
        f"{path} must have pixels of 1, 8 or 16 bits, got {image.format} pixels of mode "
        f"{image.mode}, for which the file does not say what is white: save it with 8 bits, or "
        "give the pixels as an array of numbers from 0 to 1"
    )
