"""Folders of image files: every pixel format, every folder layout, and errors."""

import os
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Say
from PIL import Image

from arms.bench import Dataset, load

RANDOM = np.random.default_rng(0)
GRAY = RANDOM.integers(0, 256, (12, 6, 5), dtype=np.uint8)
DEEP = RANDOM.integers(0, 65536, (12, 6, 5), dtype=np.uint16)
DEPTH_NOTE = "images of more than 8 bits rounded to 255 levels"


def pictures(array: Any = GRAY, mode: str | None = None) -> list[Image.Image]:
    found = [Image.fromarray(image) for image in array]
    return [image.convert(mode) for image in found] if mode else found


def write(folder: Path, images: list[Image.Image], suffix: str = ".png", **options: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    start = len(list(folder.iterdir()))
    for index, image in enumerate(images, start):
        image.save(folder / f"{index:03}{suffix}", **options)
    return folder


def sorted_rows(array: Any) -> list[bytes]:
    return sorted(image.tobytes() for image in array)


def all_rows(dataset: Dataset) -> list[bytes]:
    return sorted(
        row.numpy().tobytes()
        for split in ("train", "valid", "test")
        for row in getattr(dataset, split)
    )


# ---- kinds of pixels

GRAY_AGAIN = np.rint(DEEP.astype(float) / 257).astype(np.uint8)


@pytest.mark.parametrize(
    ("suffix", "options", "expected"),
    [
        (".png", {}, GRAY_AGAIN),
        (".pgm", {}, GRAY_AGAIN),
        (".tif", {}, GRAY_AGAIN),
        (
            ".tif",
            {"tiffinfo": {262: 0}},
            np.rint((65535 - DEEP.astype(float)) / 257).astype(np.uint8),
        ),
    ],
    ids=["png", "pgm", "tif", "tif in which 0 is white"],
)
def test_16_bits_are_scaled_by_their_range(
    suffix: str, options: Any, expected: Any, tmp_path: Path
) -> None:
    dataset = load(write(tmp_path / "deep", pictures(DEEP), suffix, **options))
    assert (dataset.levels, dataset.note) == (255, DEPTH_NOTE)
    assert all_rows(dataset) == sorted_rows(expected)


def test_dark_images_of_16_bits_stay_dark(tmp_path: Path) -> None:
    dataset = load(write(tmp_path / "dark", pictures(DEEP // 256)))
    assert dataset.levels == 255
    assert int(dataset.train.max()) <= 1


def test_files_of_1_8_and_16_bits_can_be_mixed(tmp_path: Path) -> None:
    folder = write(tmp_path / "mixed", pictures(DEEP))
    write(folder, pictures())
    write(folder, pictures(mode="1"))
    bits = [np.asarray(image) * np.uint8(255) for image in pictures(mode="1")]
    dataset = load(folder)
    assert dataset.note == DEPTH_NOTE
    assert all_rows(dataset) == sorted_rows([*GRAY_AGAIN, *GRAY, *bits])


def test_a_tiff_of_12_bits_says_so_itself(tmp_path: Path) -> None:
    """Pillow reads this format as 16 bits, and cannot write it: two pixels are three bytes."""
    entries = [
        (256, 2),
        (257, 2),
        (258, 12),
        (259, 1),
        (262, 1),
        (273, 8),
        (277, 1),
        (278, 2),
        (279, 6),
    ]
    tags = b"".join(struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in entries)
    content = b"II*\0" + struct.pack("<I", 14) + bytes.fromhex("fff000 800fff")
    content += struct.pack("<H", len(entries)) + tags + bytes(4)
    for index in range(3):
        (tmp_path / f"{index}.tif").write_bytes(content)
    assert load(tmp_path).train.tolist() == [[255, 0, 128, 255]]


@pytest.mark.parametrize(
    ("mode", "suffix", "note"),
    [
        ("1", ".png", ""),
        ("L", ".png", ""),
        ("LA", ".png", ""),
        ("RGB", ".png", "color images converted to gray"),
        ("RGBA", ".png", "color images converted to gray"),
        ("CMYK", ".tif", "color images converted to gray"),
        ("P", ".gif", "color images converted to gray"),
    ],
)
def test_other_kinds_of_pixels_are_turned_gray(
    mode: str, suffix: str, note: str, tmp_path: Path
) -> None:
    images = pictures(mode=mode)
    dataset = load(write(tmp_path / "images", images, suffix))
    assert dataset.note == note
    assert all_rows(dataset) == sorted_rows(np.asarray(image.convert("L")) for image in images)


def see_through(mode: str) -> list[Image.Image]:
    images = pictures(mode=mode)
    for image in images:
        image.putpixel((0, 0), (0, 0) if mode == "LA" else (0, 0, 0, 0))
    return images


FLOATS = pictures((DEEP / 65535).astype(np.float32))
UNKNOWN_WHITE = (
    "must have pixels of 1, 8 or 16 bits, got TIFF pixels of mode {}, for which the value of white "
    "is unknown"
)


@pytest.mark.parametrize(
    ("images", "suffix", "options", "message"),
    [
        (FLOATS, ".tif", {}, UNKNOWN_WHITE.format("F")),
        (pictures(np.full((3, 6, 5), np.nan, np.float32)), ".tif", {}, UNKNOWN_WHITE.format("F")),
        (pictures(DEEP.astype(np.int32)), ".tif", {}, UNKNOWN_WHITE.format("I")),
        (
            see_through("LA"),
            ".png",
            {},
            "must be opaque, got transparent pixels: put the image on a background first",
        ),
        (see_through("RGBA"), ".png", {}, "must be opaque, got transparent pixels"),
        (
            pictures(mode="P"),
            ".png",
            {"transparency": int(GRAY[0, 0, 0])},
            "must be opaque, got transparent pixels",
        ),
        (
            pictures(),
            ".png",
            {"transparency": int(GRAY[0, 0, 0])},
            "must be opaque, got transparent pixels",
        ),
        (
            pictures(DEEP),
            ".png",
            {"transparency": int(DEEP[0, 0, 0])},
            "must be opaque, got transparent pixels",
        ),
        (pictures(), ".tif", {"tiffinfo": {339: 2}}, "must be unsigned, got signed pixels"),
        *(
            (
                pictures()[:1],
                suffix,
                {"save_all": True, "append_images": pictures()[1:4]},
                "must be one image, got 4 frames",
            )
            for suffix in (".gif", ".tif", ".webp", ".png")
        ),
    ],
)
def test_pixels_that_say_too_little_are_refused(
    images: list[Image.Image], suffix: str, options: Any, message: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "odd", images, suffix, **options)
    with pytest.raises(ValueError, match=f"{re.escape(str(folder))}/000{suffix} {message}"):
        load(folder)


def test_a_photograph_with_previews_is_one_image(tmp_path: Path) -> None:
    color, other = pictures(mode="RGB")[:2]
    write(
        tmp_path / "camera", [color] * 3, ".jpg", format="MPO", save_all=True, append_images=[other]
    )
    assert len(load(tmp_path / "camera").train) == 1


def test_an_image_that_would_fill_the_memory(say: Say) -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    size = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    content = chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    write(Path("images"), pictures())
    Path("images/large.png").write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    code, _, error = say("train", "--dataset", "images", "--steps", "10")
    assert code == 2
    assert error.startswith(
        "arms: images/large.png cannot be read as an image: DecompressionBombError: Image size (36"
    )
    assert len(error.splitlines()) == 1


# ---- layouts


def make_folders(top: Path, counts: dict[str, int]) -> Path:
    for name, count in counts.items():
        write(top / name, pictures()[:count])
    return top


@pytest.mark.parametrize(
    ("counts", "sizes"),
    [
        ({".": 10}, (8, 1, 1)),
        ({"car": 5, "plane": 5}, (8, 1, 1)),
        ({"train": 10, "val": 2, "test": 3}, (10, 2, 3)),
        ({"train_images": 10, "valid_images": 2, "test_images": 3}, (10, 2, 3)),
        ({"x_train": 10, "X_test": 3}, (9, 1, 3)),
        ({"Train/car": 6, "Train/test": 4, "testing": 3, "labels": 0}, (9, 1, 3)),
    ],
)
def test_layouts_that_are_clear(
    counts: dict[str, int], sizes: tuple[int, int, int], tmp_path: Path
) -> None:
    dataset = load(make_folders(tmp_path / "images", counts))
    assert (len(dataset.train), len(dataset.valid), len(dataset.test)) == sizes


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (
            {"car": 5, "plane": 5, "train": 3},
            "or no image in folders named after splits, got images in train, and also",
        ),
        (
            {".": 8, "train": 4},
            "or no image in folders named after splits, got images in train, and also",
        ),
        (
            {"train": 8, "test": 3, "unlabeled": 3},
            "or no image in folders named after splits, got images in test and train, and also",
        ),
        (
            {"train": 8, "val": 3, "validation": 3, "dev": 3},
            "must have only one valid split, got dev and val and validation:",
        ),
        ({"Train": 8, "train": 3}, "one train split, got Train and train"),
        (
            {"all/train": 8, "all/test": 3},
            "folders named after splits must lie directly in .*images, got .*images/all/test: move it",
        ),
        (
            {"train/a": 8, "train/valid": 3},
            "must lie directly in .*images, got .*images/train/valid: move it there, or rename it",
        ),
        ({"train_images": 8, "train": 3}, "one train split, got train and train_images"),
        ({"train": 8, "test": 0}, "must contain images, got none: add files that end in .png,"),
        ({"test": 8}, r"images has no split 'train' \(found: test\): name the split"),
    ],
)
def test_layouts_that_could_mean_two_things_are_refused(
    counts: dict[str, int], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        load(make_folders(tmp_path / "images", counts))


def test_links_to_folders_are_followed(tmp_path: Path) -> None:
    make_folders(tmp_path / "disk", {"car": 5, "plane": 5})
    for name in ("classes", "splits"):
        (tmp_path / name).mkdir()
    (tmp_path / "classes/car").symlink_to(tmp_path / "disk/car")
    (tmp_path / "classes/plane").symlink_to(tmp_path / "disk/plane")
    (tmp_path / "splits/train").symlink_to(tmp_path / "disk")
    assert len(all_rows(load(tmp_path / "classes"))) == 10
    assert len(all_rows(load(tmp_path / "splits"))) == 10
    (tmp_path / "disk/car/up").symlink_to(tmp_path / "disk")
    with pytest.raises(
        ValueError, match=r"links in .*splits must not form a loop, got .*car/up: remove it"
    ):
        load(tmp_path / "splits")


def test_files_that_are_no_files_are_named(tmp_path: Path) -> None:
    write(tmp_path, pictures())
    (tmp_path / "gone.png").symlink_to("nowhere.png")
    with pytest.raises(
        ValueError,
        match=r"gone.png must be an image file, got a broken link or a device: remove it",
    ):
        load(tmp_path)
    (tmp_path / "gone.png").unlink()
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ValueError, match=r"pipe.png must be an image file"):
        load(tmp_path)


@pytest.mark.parametrize("target", ["train", "train/car"])
def test_splits_must_not_share_files(target: str, tmp_path: Path) -> None:
    make_folders(tmp_path / "images", {"train/car": 5, "train/plane": 5})
    (tmp_path / "images/test").symlink_to(target)
    with pytest.raises(ValueError, match="must not share images, got"):
        load(tmp_path / "images")


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_turned_as_their_camera_says(
    orientation: int, suffix: str, tmp_path: Path
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    more: dict[str, Any] = {".jpg": {"quality": 100}, ".tif": {"compression": "tiff_lzw"}}
    options: dict[str, Any] = {"exif": exif, **more.get(suffix, {})}
    black = np.zeros((3, 16, 8), np.uint8)
    black[:, :8, :4] = 255  # the upper left quarter
    dataset = load(write(tmp_path / "images", pictures(black), suffix, **options))
    shape = (16, 8) if orientation < 5 else (8, 16)
    assert (dataset.height, dataset.width) == shape
    image = dataset.train[0].view(shape).numpy() > 127
    rows, columns = np.flatnonzero(image.any(1)), np.flatnonzero(image.any(0))
    # The tag gives the sides at which the first row and the first column are displayed.
    lower, right = orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)
    assert (rows[0], columns[0]) == (lower * shape[0] // 2, right * shape[1] // 2)


def test_an_uncompressed_tiff_on_its_side_is_refused(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    folder = write(tmp_path / "images", pictures(), ".tif", exif=exif)
    with pytest.raises(
        ValueError, match=r"000.tif must be upright, got a rotated uncompressed TIFF"
    ):
        load(folder)


def test_a_transparent_value_that_no_pixel_has_does_no_harm(tmp_path: Path) -> None:
    for number, array in enumerate((GRAY.clip(1), DEEP.clip(1))):
        folder = write(tmp_path / str(number), pictures(array), transparency=0)
        assert len(all_rows(load(folder))) == 12
