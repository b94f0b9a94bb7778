"""Read a folder of image files as grey values.

The images lie directly in the folder, in folders named after classes, or in folders named after
the splits. A layout that could mean two things is refused, and so is a file that does not say
which of its values is white.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from arms.arguments import described
from arms.bench.data.datasets import SPLITS, Array, import_optional

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm")
COLOUR_NOTE = "colour images turned grey"
DEPTH_NOTE = "images of more than 8 bits rounded to 255 levels"

# Names that Pillow has for kinds of pixels.
DEEP_MODES = ("F", "I", "I;16", "I;16B", "I;16L", "I;16N")
GREY_MODES = ("1", "L", "LA", *DEEP_MODES)
MODES_WITH_ALPHA = ("LA", "PA", "RGBA")

# Tags of TIFF files, and some of their values. Cameras write the orientation into other files too.
BITS_PER_SAMPLE = 258
PHOTOMETRIC, WHITE_IS_ZERO = 262, 0
SAMPLE_FORMAT, SIGNED = 339, 2
ORIENTATION, ON_ITS_SIDE = 274, (5, 6, 7, 8)


class _Image(NamedTuple):
    path: Path
    values: Array  # from 0, black, to white
    white: int
    coloured: bool


def read_folder(folder: Path) -> tuple[dict[str, Array], str]:
    """Return the images of every split `[images, height, width]`, and a note on what was changed.

    Images are in the order of their names. They are uint8 from 0 to 255, or fractions from 0 to 1
    if any file has more than 8 bits.
    """
    files = _files_of_splits(folder)
    images = {split: [_read_image(path) for path in paths] for split, paths in files.items()}
    every = [image for part in images.values() for image in part]
    check_one_size({str(image.path): image.values.shape for image in every})
    coloured = any(image.coloured for image in every)
    deep = any(image.white != 255 for image in every)
    notes = [note for note, holds in ((COLOUR_NOTE, coloured), (DEPTH_NOTE, deep)) if holds]

    def pixels(image: _Image) -> Array:
        # Each file is scaled by its own range, so that files of 1, 8 and 16 bits can be mixed.
        return image.values.astype(np.float32) / image.white if deep else image.values

    parts = {split: np.stack([pixels(image) for image in part]) for split, part in images.items()}
    return parts, "; ".join(notes)


def _files_of_splits(folder: Path) -> dict[str, list[Path]]:
    """Return the image files of every split; all are training images if no folder names a split."""
    files = _image_files(folder)
    folders = {path.name: path for path in sorted(folder.iterdir()) if path.is_dir()}
    named = by_split(folders, str(folder))
    # Where a folder above has the name of a split too, one further down is a class.
    above = (place for file in files for place in file.relative_to(folder).parents)
    if below := [place for place in above if split_of(place.name) not in (None, *named)]:
        got = f"{folder / below[0]}: move it there, or rename it if it is a class"
        raise ValueError(f"folders named after splits must lie directly in {folder}, got {got}")
    places = named or {"train": folder}
    found = {key: [file for file in files if file.is_relative_to(places[key])] for key in places}
    if empty := [places[split] for split, part in found.items() if not part]:
        suffixes = ", ".join(IMAGE_SUFFIXES)
        raise ValueError(f"there is no image in {empty[0]}: images end in {suffixes}")
    if outside := set(files).difference(*found.values()):
        expected = f"{folder} must have all images in folders named after splits, or none"
        names = " and ".join(place.name for place in named.values())
        remedy = f"move it into a split, or rename {names} if it is no split but a class"
        raise ValueError(f"{expected}, got {names} and also {min(outside)}: {remedy}")
    owners: dict[Path, str] = {}
    for split, file in ((split, file) for split, part in found.items() for file in part):
        if (other := owners.setdefault(file.resolve(), split)) != split:
            got = f"{file} also in {other}: remove the link"
            raise ValueError(f"splits of {folder} must have images of their own, got {got}")
    return found


def _image_files(folder: Path) -> list[Path]:
    """Return all image files below a folder, in order; links to folders are followed."""
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
    """Raise what `os.walk` would ignore, such as a folder that may not be read."""
    raise error


def _read_image(path: Path) -> _Image:
    pillow, turning = import_optional("PIL.Image"), import_optional("PIL.ImageOps")
    try:
        with pillow.open(path) as image:
            frames = getattr(image, "n_frames", 1)  # before `load`: counting moves through the file
            # Pillow, seen with version 13.0, takes the height of such an image for its width.
            on_its_side = image.getexif().get(ORIENTATION, 1) in ON_ITS_SIDE
            uncompressed = any(tile[0] == "raw" for tile in image.tile)
            scrambled = image.format == "TIFF" and uncompressed and on_its_side
            image.load()
            turning.exif_transpose(image, in_place=True)  # as viewers show a camera's photographs
    except Exception as error:  # Pillow raises a dozen kinds of errors on damaged files
        raise ValueError(f"{path} cannot be read as an image: {described(error)}") from None
    read = _deep_values if image.mode in DEEP_MODES else _grey_values
    values, white, transparent = read(path, image)
    tags = image.tag_v2 if image.format == "TIFF" else {}
    signed = SIGNED in tags.get(SAMPLE_FORMAT, ()) and image.mode not in DEEP_MODES
    # A camera's MPO file is a photograph with previews. In all other formats every frame counts.
    for refused, expected, got in (
        (frames > 1 and image.format != "MPO", "one image", f"{frames} frames: save each one"),
        (scrambled, "upright", "an uncompressed TIFF on its side, misread by Pillow: turn it"),
        (signed, "without signed numbers", "some, and no word on what is black: save it unsigned"),
        (transparent, "opaque", "transparent pixels: put it on a background first"),
    ):
        if refused:
            raise ValueError(f"{path} must be {expected}, got {got}")
    return _Image(path, values, white, image.mode not in GREY_MODES)


def _grey_values(path: Path, image: Any) -> tuple[Array, int, bool]:
    """Return the pixels of an image, the value that means white, and whether any is transparent."""
    try:
        alpha = image.mode in MODES_WITH_ALPHA or "transparency" in image.info
        transparent = alpha and image.convert("RGBA").getextrema()[3][0] < 255
        return np.asarray(image.convert("L")), 255, transparent
    except ValueError as error:  # a colour space that Pillow does not turn into grey values
        raise ValueError(f"{path} cannot be read as grey values: {error}") from None


def _deep_values(path: Path, image: Any) -> tuple[Array, int, bool]:
    """Return the same for more than 8 bits, which Pillow would clip instead of scaling."""
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
        f"{image.mode}, for which the file does not say what is white: save it with 8 bits"
    )


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
