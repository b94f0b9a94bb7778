"""Readers of image files: npz and npy; IDX, text and MATLAB as published. None unpickles."""

import gzip
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from arms.arguments import described
from arms.bench.data.download import import_optional

Array: TypeAlias = NDArray[Any]
SIDE = 28
"""Height and width of every published image but the 8x8 digits."""
MAT_KEYS = {"train": "data", "test": "testdata"}


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


def read_published(path: Path, part: str) -> Array:
    """Read a part of a data set from a published file, whose checksum is known to be right."""
    match path.suffix:
        case ".gz":  # IDX: 16 bytes with the shape, then the values
            with gzip.open(path) as file:
                images = np.frombuffer(file.read(), np.uint8, offset=16)
        case ".amat":  # text: bits, one image per line
            digits = path.read_bytes().translate(None, delete=b" \t\r\n")
            images = np.frombuffer(digits, np.uint8) - np.uint8(ord("0"))
        case _:  # MATLAB: probabilities [784, count], and images are stored by columns
            key = MAT_KEYS[part]
            matrix = import_optional("scipy.io").loadmat(path, variable_names=[key])[key]
            images = np.rint(255 * matrix.astype(np.float64)).astype(np.uint8)
            return np.ascontiguousarray(images.T.reshape(-1, SIDE, SIDE).transpose(0, 2, 1))
    return images.reshape(-1, SIDE, SIDE).copy()
