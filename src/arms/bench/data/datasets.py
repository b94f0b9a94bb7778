"""Data sets of images, and the catalog of data sets by name.

To add a data set of 28x28 images, add an entry to `_ENTRIES`. Downloads are verified by their md5
checksums.
"""

import gzip
import hashlib
import os
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from torch import Generator, Tensor

from arms.arguments import as_count, described, unknown_name
from arms.random import indicator

Array: TypeAlias = NDArray[Any]
SIDE = 28  # height and width of all images except the 8x8 digits
SPLITS: Mapping[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "valid": ("valid", "validation", "val", "dev"),
    "test": ("test", "testing"),
}
"""For each split, the names that are accepted in an .npz file, a folder or a mapping."""


def shuffled(images: Array) -> Array:
    """Return the images in a fixed random order."""
    return images[np.random.default_rng(0).permutation(len(images))]


def flat(images: Array) -> Tensor:
    """Convert an array `[images, height, width]` to a tensor `[images, pixels]`."""
    return torch.from_numpy(np.ascontiguousarray(images).reshape(len(images), -1))


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Images as flat rows of whole numbers, with training, validation and test splits.

    Args:
        name: The name in configurations, run directories and reports.
        train: Training images, uint8 `[images, pixels]`. The pixels of an image are row by row.
        valid: Validation images, in the same form.
        test: Test images, in the same form.
        height: Height of an image in pixels.
        width: Width of an image in pixels.
        levels: The largest possible pixel value: 255 for gray images, 1 for binary images. A pixel
            is 1 with probability value / levels.
        note: A warning that is shown next to all results on this data set.
        path: For your own data, the file or folder from which it was read.
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
            wanted = "the name of a data set must be a string that is not empty"
            raise ValueError(f"{wanted}, got {self.name!r}")
        for split in SPLITS:
            self._check(split, getattr(self, split))

    def _check(self, split: str, images: object) -> None:
        pixels = self.height * self.width
        expected = f"{split} images of {self.name} must be uint8 [images, {pixels}]"
        if not isinstance(images, Tensor):
            got = type(images).__name__
            raise ValueError(f"{expected}, got {got}: arms.bench.as_dataset converts it")
        if images.dtype != torch.uint8 or images.shape[1:] != (pixels,) or not len(images):
            got = f"{images.dtype} {list(images.shape)}: flatten images, but do not scale them"
            raise ValueError(f"{expected} with at least one image, got {got}")
        if (largest := int(images.max())) > self.levels:
            got = f"the value {largest}: pass levels={largest}"
            raise ValueError(f"{expected} with values from 0 to levels={self.levels}, got {got}")

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(getattr(self, split)):,} {split}" for split in SPLITS)
        size = f"{self.height}x{self.width}, {self.levels} levels"
        return f"Dataset({self.name!r}, {counts} images of {size})"

    def pixel_mean(self) -> Tensor:
        """Return the mean of each pixel over the training images, float32 `[pixels]`.

        The means are between 0 and 1.
        """
        # Sums of integers are exact, so the mean is the same on every machine.
        total = self.train.sum(0, dtype=torch.int64)
        return (total.double() / (len(self.train) * self.levels)).float()


@dataclass(frozen=True, eq=False)
class TrainingImages:
    """The training images of one or more data sets.

    With several data sets, each group of replicas uses one of them.
    """

    images: Tensor  # uint8 [images, pixels], all data sets concatenated
    levels: int
    spans: tuple[Tensor, Tensor] | None = None  # [R, 1] each: first image and number of images
    """For each replica, the part of `images` that it uses. With None, every replica uses all."""

    @classmethod
    def of(cls, datasets: Sequence[Dataset], replicas: int, device: str) -> "TrainingImages":
        """Combine the training images of data sets, and divide the replicas into equal groups.

        The first group uses the first data set, and so on. A data set may occur several times.
        """
        if not datasets or replicas % len(datasets):
            expected = "the number of replicas must be a multiple of the number of data sets"
            got = f"{replicas} replicas and {len(datasets)} data sets"
            raise ValueError(f"{expected}, got {got}")
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
        """Draw `size` random images for each replica, `[R, size, pixels]`.

        Pixels are random bits, or gray values from 0 to 1 if `bits` is False.
        """
        device = self.images.device
        if self.spans is None:
            count = replicas * size
            rows = torch.randint(len(self.images), (count,), generator=generator, device=device)
        else:  # the range 2**62 is so large that the remainder is practically uniform
            numbers = torch.randint(2**62, (replicas, size), generator=generator, device=device)
            rows = (self.spans[0] + numbers % self.spans[1]).flatten()
        images = self.images.index_select(0, rows).unflatten(0, (replicas, -1))
        return observe(images, self.levels, generator, bits=bits)

    def first(self, replicas: int, size: int) -> Tensor:
        """Return the first images of each replica's data set, uint8 `[R, size, pixels]`.

        If all replicas use the same data set, the first axis has length 1. If the smallest data set
        has fewer than `size` images, only this number of images is returned.
        """
        if self.spans is None:
            return self.images[:size].unsqueeze(0)
        least = min(size, int(self.spans[1].min()))
        rows = self.spans[0] + torch.arange(least, device=self.images.device)
        return self.images[rows.expand(replicas, -1)]


def check_same_shape_and_levels(datasets: Sequence[Dataset]) -> None:
    """Raise if the data sets differ in the size of images or in their levels."""
    kinds = {one: (one.train.shape[1], one.levels) for one in datasets}
    if len(set(kinds.values())) > 1:
        each = (f"{one.name} with {p} pixels of {n} levels" for one, (p, n) in kinds.items())
        expected = "data sets that are trained together must have the same image size and levels"
        raise ValueError(f"{expected}, got {', '.join(each)}: train them separately")


def observe(
    images: Tensor, levels: int, generator: Generator | None = None, *, bits: bool = True
) -> Tensor:
    """Convert images to random bits. A bit is 1 with probability pixel value / `levels`.

    With `bits=False`, convert them to gray values from 0 to 1 instead.

    >>> observe(torch.tensor([[0, 255]], dtype=torch.uint8), levels=255)
    tensor([[0., 1.]])
    """
    if not bits:
        return images / levels
    noise = torch.rand(images.shape, generator=generator, device=images.device)
    return indicator(images / levels - noise)


def expand_home(path: Path | str) -> Path:
    """Return a path in which a leading ~ or ~user is replaced by the home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        what = f"the home folder in the path {str(path)!r} cannot be found"
        raise ValueError(f"{what}: write the full path without ~") from None


def import_optional(module: str) -> ModuleType:
    """Import a module, or raise an error that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        remedy = "pip install 'arms-grad[data]'"
        what = f"this data set needs the package {module}, which cannot be imported ({error})"
        raise ValueError(f"{what}: run {remedy}") from None


def read_arrays(path: Path, names: Collection[str] = ()) -> dict[str, Array]:
    """Return the arrays of an .npz or .npy file by name.

    If `names` is not empty, only the arrays with these names are read from an .npz file. The single
    array of an .npy file gets the name "images".
    """
    try:
        with path.open("rb") as file:
            if path.suffix == ".npy":
                return {"images": np.lib.format.read_array(file, allow_pickle=False)}
            with NpzFile(file, allow_pickle=False) as archive:
                # Members that are not arrays are returned as bytes.
                return {name: np.asarray(archive[name]) for name in names or archive.files}
    except Exception as error:  # numpy raises a dozen kinds of errors on damaged files
        raise ValueError(f"{path} cannot be read: {described(error)}") from None


@dataclass(frozen=True)
class Source:
    """A file to download, with its checksum and its addresses in order of preference."""

    file: str
    md5: str
    urls: tuple[str, ...]

    def intact(self, folder: Path) -> bool:
        """Return whether `folder` contains this file, and its checksum is right."""
        path = folder / self.file
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "md5").hexdigest() == self.md5

    def obtain(self, folder: Path) -> Path:
        """Return the path of the file in `folder`. Download it if it is missing or damaged."""
        path = folder / self.file
        if self.intact(folder):
            return path
        retrieve = import_optional("pooch").retrieve
        failures = []
        for url in self.urls:
            try:
                retrieve(url, known_hash=f"md5:{self.md5}", fname=self.file, path=folder)
                return path
            except (OSError, ValueError) as error:
                reason = textwrap.shorten(f"{type(error).__name__}: {error}", 100)
                failures.append(f"{url} ({reason})")
        state = "has a wrong checksum" if path.exists() else "is missing"
        raise ValueError(
            f"the file {path} {state}, and the download from {' and from '.join(failures)} failed: "
            f"download it in another way and put it into {folder} (md5 {self.md5})"
        )


@dataclass(frozen=True)
class Digits:
    """The 8x8 digits of scikit-learn, which need no download."""

    name: str
    description: str

    def find(self, data_dir: Path | None) -> str:
        return "scikit-learn" if find_spec("sklearn") else ""

    def fetch(self, data_dir: Path | None) -> tuple[Path, ...]:
        import_optional("sklearn.datasets")
        return ()

    def load(self, data_dir: Path | None) -> Dataset:
        images = import_optional("sklearn.datasets").load_digits().images.astype(np.uint8)
        train, valid, test = map(flat, np.split(shuffled(images), [1200, 1400]))
        return Dataset(self.name, train, valid, test, height=8, width=8, levels=16)


@dataclass(frozen=True)
class ImageFiles:
    """A data set of 28x28 images.

    The images are read from an .npz file in the user's data folder, or from the published files,
    which are downloaded.
    """

    name: str
    description: str
    archive: str  # an .npz file in the data folder, with an array `<part>_images` for each part
    counts: Mapping[str, int]  # number of images in each part: train, test, and optionally valid
    sources: tuple[Source, ...] = ()  # the published file of each part, in the order of counts
    levels: int = 255
    held_out: int = 0  # number of last training images that are used for validation
    shuffle: bool = False  # whether to shuffle before the split, because images are sorted
    archive_note: str = ""
    drawn_once_from: str = ""  # the data set whose gray values give fixed bits for all runs

    def __post_init__(self) -> None:
        if ("valid" in self.counts) == bool(self.held_out):
            expected = f"{self.name} must have either a count of valid images or held_out"
            got = f"{', '.join(self.counts)} and held_out={self.held_out}"
            raise ValueError(f"{expected}, got {got}: give one of them")

    def find(self, data_dir: Path | None) -> str:
        """Return the place where the data set is on this machine, or "" if it is not there.

        The place is the path of the .npz file, or of the folder with intact published files.
        """
        if archive := self._archive_in(data_dir):
            return str(archive)
        intact = self.sources and all(source.intact(self._cache()) for source in self.sources)
        return str(self._cache()) if intact else ""

    def fetch(self, data_dir: Path | None) -> tuple[Path, ...]:
        """Return the paths of all files of the data set, after verifying them.

        If `data_dir` contains the .npz file, this is the only file. Otherwise, the published files
        are used, and missing ones are downloaded to the cache.
        """
        if archive := self._archive_in(data_dir):
            self._load_archive(archive)
            return (archive,)
        return tuple(dict.fromkeys(self._originals(data_dir)))

    def load(self, data_dir: Path | None) -> Dataset:
        """Return the data set, split into training, validation and test images."""
        if archive := self._archive_in(data_dir):
            return self._load_archive(archive)
        files = zip(self.counts, self._originals(data_dir), strict=True)
        return self._split({part: read_published(path, part) for part, path in files})

    def _archive_in(self, data_dir: Path | None) -> Path | None:
        path = data_dir and data_dir / self.archive
        return path if path and path.is_file() else None

    def _load_archive(self, path: Path) -> Dataset:
        try:
            arrays = read_arrays(path, [f"{part}_images" for part in self.counts])
            parts = dict(zip(self.counts, arrays.values(), strict=True))
            for part, images in parts.items():
                expected = (self.counts[part], SIDE, SIDE)
                if images.dtype != np.uint8 or images.shape != expected:
                    got = f"{images.dtype} of shape {images.shape}"
                    what = f"{part}_images in {path} must be a uint8 array of shape {expected}"
                    raise ValueError(f"{what}, got {got}")
            return self._split(parts, self.archive_note)
        except ValueError as error:
            remedy = ", or delete it to download the data" if self.sources else ""
            raise ValueError(f"{error}: replace {path} with an intact copy{remedy}") from None

    def _cache(self) -> Path:
        named = os.environ.get("ARMS_CACHE_DIR")
        folder = expand_home(named) if named else import_optional("pooch").os_cache("arms-grad")
        # Each data set has a folder, because files of MNIST and Fashion MNIST have the same names.
        return Path(folder, self.drawn_once_from or self.name)

    def _originals(self, data_dir: Path | None) -> tuple[Path, ...]:
        place = data_dir or "a folder, and set ARMS_DATA_DIR to that folder"
        remedy = f"put {self.archive} into {place}"
        if not self.sources:
            raise ValueError(f"{self.name} cannot be downloaded: {remedy}")
        try:
            return tuple(source.obtain(self._cache()) for source in self.sources)
        except ValueError as error:
            raise ValueError(f"{error}, or {remedy}") from None

    def _split(self, parts: Mapping[str, Array], note: str = "") -> Dataset:
        train = shuffled(parts["train"]) if self.shuffle else parts["train"]
        kept = len(train) - self.held_out
        valid = train[kept:] if self.held_out else parts["valid"]
        splits = flat(train[:kept]), flat(valid), flat(parts["test"])
        if not self.drawn_once_from:
            return Dataset(self.name, *splits, SIDE, SIDE, self.levels, note)
        generator = Generator().manual_seed(0)
        bits = tuple(observe(images, self.levels, generator).byte() for images in splits)
        return Dataset(self.name, bits[0], bits[1], bits[2], SIDE, SIDE, 1, note)


def read_published(path: Path, part: str) -> Array:
    """Read the images of a published file, and return them as uint8 `[images, 28, 28]`.

    `part` is "train", "valid" or "test". The caller must verify the checksum of the file before.
    """
    match path.suffix:
        case ".gz":  # IDX: 16 bytes with the shape, then the values
            with gzip.open(path) as file:
                images = np.frombuffer(file.read(), np.uint8, offset=16)
        case ".amat":  # text: bits, one image per line
            digits = path.read_bytes().translate(None, delete=b" \t\r\n")
            images = np.frombuffer(digits, np.uint8) - np.uint8(ord("0"))
        case _:  # MATLAB: probabilities [784, count], and images are stored by columns
            key = "data" if part == "train" else "testdata"
            matrix = import_optional("scipy.io").loadmat(path, variable_names=[key])[key]
            images = np.rint(255 * matrix.astype(np.float64)).astype(np.uint8)
            return np.ascontiguousarray(images.T.reshape(-1, SIDE, SIDE).transpose(0, 2, 1))
    return images.reshape(-1, SIDE, SIDE).copy()


MNIST_HOSTS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
FASHION_HOST = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
OMNIGLOT_HOST = "https://github.com/yburda/iwae/raw/master/datasets/OMNIGLOT/"
STATIC_HOST = "http://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist/"
MNIST_COUNTS = {"train": 60_000, "test": 10_000}
STATIC_COUNTS = {"train": 50_000, "valid": 10_000, "test": 10_000}
TRAIN_IDX, TEST_IDX = "train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"
OMNIGLOT_NOTE = (
    "reconstructed Omniglot: rebuilt from the original drawings, with 8,115 test images where "
    "chardata.mat has 8,070; compare with published numbers only with care"
)


def _source(file: str, md5: str, *hosts: str) -> Source:
    return Source(file, md5, tuple(host + file for host in hosts))


CHARDATA = _source("chardata.mat", "21ecaf34373511aa7691cf2e0802aa3d", OMNIGLOT_HOST)

_MNIST = ImageFiles(
    "dynamic-mnist",
    "MNIST, fresh bits in every batch",
    "mnist.npz",
    MNIST_COUNTS,
    (
        _source(TRAIN_IDX, "f68b3c2dcbeaaa9fbdd348bbdeb94873", *MNIST_HOSTS),
        _source(TEST_IDX, "9fb629c4189551a2d022fa330f9573f3", *MNIST_HOSTS),
    ),
    held_out=10_000,
)
_ENTRIES: tuple[Digits | ImageFiles, ...] = (
    Digits(
        "digits",
        "8x8 handwritten digits of scikit-learn, for quick trials; fresh bits in every batch",
    ),
    _MNIST,
    replace(
        _MNIST,
        name="mnist-drawn-once",
        description="MNIST, bits drawn once from the gray values, so equal in all runs",
        drawn_once_from=_MNIST.name,
    ),
    ImageFiles(
        "static-mnist",
        "MNIST, bits drawn once (Larochelle)",
        "binarized_mnist.npz",
        STATIC_COUNTS,
        (
            _source("binarized_mnist_train.amat", "db28b1a6ae0fe70cbd3da91acf46e477", STATIC_HOST),
            _source("binarized_mnist_valid.amat", "bf37822a04e94123630de6a7dfd9c9ef", STATIC_HOST),
            _source("binarized_mnist_test.amat", "14e41ae11040adba6ab8cb291eda0dd8", STATIC_HOST),
        ),
        levels=1,
    ),
    ImageFiles(
        "fashion-mnist",
        "Fashion MNIST, fresh bits in every batch",
        "fashion_mnist.npz",
        MNIST_COUNTS,
        (
            _source(TRAIN_IDX, "8d4fb7e6c68d591d4c3dfef9ec88bf0d", FASHION_HOST),
            _source(TEST_IDX, "bef4ecab320f06d8554ea6380940ec79", FASHION_HOST),
        ),
        held_out=10_000,
    ),
    ImageFiles(
        "omniglot",
        "Omniglot at 28x28 as in the IWAE paper, fresh bits in every batch",
        "omniglot.npz",
        {"train": 24_345, "test": 8_115},
        (CHARDATA, CHARDATA),
        held_out=1_345,
        shuffle=True,
        archive_note=OMNIGLOT_NOTE,
    ),
)
DATASETS = {entry.name: entry for entry in _ENTRIES}


class Status(NamedTuple):
    """Says whether a data set is on this machine, and where.

    `where` is a path or the name of a package. It is empty if the data set is not available.
    """

    name: str
    description: str
    available: bool
    where: str


def load(name: str | Path, data_dir: Path | str | None = None) -> Dataset:
    """Load a data set by name, from a file, or from a folder.

    Args:
        name: One of `DATASETS` (see `arms data list`), or the path of an .npz or .npy file or of a
            folder of images (see `as_dataset`).
        data_dir: A folder that may contain the data set as an .npz file. This folder is searched
            before the download cache and the network. The default is the environment variable
            ARMS_DATA_DIR.

    >>> load("digits").train.shape
    torch.Size([1200, 64])
    """
    if isinstance(name, Path) or (isinstance(name, str) and _is_path(name)):
        from arms.bench.data.user_data import as_dataset  # avoids a circular import

        return as_dataset(name)
    return _entry(name).load(_data_dir(data_dir))


def fetch(name: str, data_dir: Path | str | None = None) -> tuple[Path, ...]:
    """Return the paths of all files of a data set. Missing files are downloaded.

    All files are verified. `data_dir` is the same as for `load`.
    """
    return _entry(name).fetch(_data_dir(data_dir))


def status(data_dir: Path | str | None = None) -> list[Status]:
    """Return one `Status` for every data set in the catalog.

    It says whether the data set is on this machine, and where. `data_dir` is the same as for
    `load`.
    """
    places = [(entry, entry.find(_data_dir(data_dir))) for entry in DATASETS.values()]
    return [Status(entry.name, entry.description, bool(at), at) for entry, at in places]


def _is_path(name: str) -> bool:
    like_one = name.endswith((".npz", ".npy")) or "/" in name or "\\" in name
    return name not in DATASETS and (like_one or Path(name).exists())


def _entry(name: str) -> Digits | ImageFiles:
    if not isinstance(name, str) or name not in DATASETS:
        or_else = "the path of an .npz or .npy file or a folder of images"
        raise unknown_name("data set", name, DATASETS, or_else=or_else)
    return DATASETS[name]


def _data_dir(given: Path | str | None) -> Path | None:
    named = given or os.environ.get("ARMS_DATA_DIR")
    folder = expand_home(named) if named else None
    if folder and not folder.is_dir():
        what = "the data folder (data_dir or ARMS_DATA_DIR)"
        raise ValueError(
            f"{what} must exist, got {folder}: create the folder, or remove the setting"
        )
    return folder
