"""Readers of image files (npz, IDX, MATLAB, text) to uint8 `[count, 28, 28]`; errors name the file."""

import gzip
import math
import zipfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from arms.arguments import described
from arms.bench.data.packages import import_optional

Images: TypeAlias = NDArray[np.uint8]

IMAGE_SIDE = 28
"""Height and width of every image but the 8x8 digits."""
IDX_UINT8 = 0x08


def read_npz(path: Path, counts: Mapping[str, int], levels: int) -> dict[str, Images]:
    """Read the array `<part>_images` of every part in `counts`; nothing in the file is unpickled."""
    names = {part: f"{part}_images" for part in counts}
    arrays = _npz_arrays(path, names.values())
    for part, name in names.items():
        _check_images(path, name, arrays[name], counts[part])
        if (largest := arrays[name].max()) > levels:
            raise _error(path, f"{name} from 0 to {levels}", f"values up to {largest}")
    return {part: arrays[name] for part, name in names.items()}


def read_idx(path: Path, count: int) -> Images:
    """Read a gzipped IDX file of images."""
    try:
        with gzip.open(path) as file:
            images = parse_idx(file.read())
    except (ValueError, EOFError, OSError, zlib.error) as error:
        raise _error(path, "a gzipped IDX array", str(error)) from None
    _check_images(path, "the images", images, count)
    return images


def parse_idx(data: bytes) -> Images:
    """Return the array in an IDX file: two zero bytes, type, number of axes, big-endian lengths, values.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
    array([7, 8, 9], dtype=uint8)
    """
    if len(data) < 4 or data[:3] != bytes([0, 0, IDX_UINT8]):
        raise ValueError(
            f"the magic number must be 000008 (uint8) and the number of axes, got {data[:4].hex()!r}"
        )
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise ValueError(f"the header must have {start} bytes, got {len(data)}")
    shape = tuple(np.frombuffer(data[4:start], dtype=">u4").tolist())
    if len(data) - start != math.prod(shape):
        raise ValueError(f"the header promises {math.prod(shape)} values, got {len(data) - start}")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape).copy()


def read_mat(path: Path, key: str, count: int) -> Images:
    """Read a matrix of probabilities `[784, count]` from a MATLAB file; each column is an image, stored by columns."""
    loadmat = import_optional("scipy.io").loadmat
    try:
        matrix = np.asarray(loadmat(path, variable_names=[key])[key], dtype=np.float64)
    except Exception as error:  # scipy raises its own and a dozen built-in errors on damaged files
        raise _error(path, f"a matrix called {key}", described(error)) from None
    if matrix.shape != (IMAGE_SIDE * IMAGE_SIDE, count):
        raise _error(path, f"{key} of shape {(IMAGE_SIDE * IMAGE_SIDE, count)}", str(matrix.shape))
    if not ((matrix >= 0) & (matrix <= 1)).all():
        raise _error(path, f"{key} from 0 to 1", "values outside")
    grey = np.rint(255 * matrix).astype(np.uint8)
    return np.ascontiguousarray(grey.T.reshape(count, IMAGE_SIDE, IMAGE_SIDE).transpose(0, 2, 1))


def read_amat(path: Path, count: int) -> Images:
    """Read a text file of bits, one image per line."""
    digits = path.read_bytes().translate(None, delete=b" \t\r\n")
    bits = np.frombuffer(digits, dtype=np.uint8) - np.uint8(ord("0"))
    if bits.size != count * IMAGE_SIDE * IMAGE_SIDE or bits.max() > 1:
        raise _error(
            path,
            f"{count} x {IMAGE_SIDE * IMAGE_SIDE} bits",
            f"{bits.size} characters, {(bits > 1).sum()} not 0 or 1",
        )
    return bits.reshape(count, IMAGE_SIDE, IMAGE_SIDE)


def _npz_arrays(path: Path, names: Collection[str]) -> dict[str, Images]:
    if not zipfile.is_zipfile(path):
        raise _error(path, "an npz archive", "another kind of file, or a truncated one")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: np.asarray(archive[name]) for name in names}  # bytes if it is no array
    except KeyError as error:
        raise _error(path, f"arrays {', '.join(names)}", str(error)) from None
    except Exception as error:  # numpy raises a dozen kinds of errors on damaged files
        raise _error(path, "an intact npz archive", described(error)) from None


def _check_images(path: Path, name: str, images: Images, count: int) -> None:
    expected = (count, IMAGE_SIDE, IMAGE_SIDE)
    if images.dtype != np.uint8 or images.shape != expected:
        raise _error(path, f"{name} as uint8 {expected}", f"{images.dtype} {images.shape}")


def _error(path: Path, expected: str, got: str) -> ValueError:
    return ValueError(
        f"{path} must hold {expected}, got {got}: replace it by an intact copy, or delete it to download the data"
    )
