"""Data sets: splits, intact and damaged files of every format, downloads from a real server, and drawn bits."""

import gzip
import hashlib
import os
import re
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, TypeAlias

import numpy as np
import pytest
import scipy.io
import scipy.stats
import torch
from sklearn.datasets import load_digits
from torch import Generator, Tensor

from arms.bench import data
from arms.bench.data.datasets import Array, ImageFiles, Source, read_arrays, read_published
from arms.checks.verdicts import FAILURE_RATE

Save: TypeAlias = Callable[..., None]
savez: Save = np.savez  # its stub takes **arrays for allow_pickle

ARCHIVES = {
    "mnist.npz": {"train": 60_000, "test": 10_000},
    "fashion_mnist.npz": {"train": 60_000, "test": 10_000},
    "binarized_mnist.npz": {"train": 50_000, "valid": 10_000, "test": 10_000},
    "omniglot.npz": {"train": 24_345, "test": 8_115},
}


def numbered(count: int) -> Array:
    """Return binary images whose first 16 pixels encode the index of the image."""
    images = np.zeros((count, 28, 28), dtype=np.uint8)
    images.reshape(count, -1)[:, :16] = np.arange(count)[:, None] >> np.arange(16) & 1
    return images


def numbers(images: Tensor) -> list[int]:
    weights = 1 << torch.arange(16)
    return (images[:, :16].long() @ weights).tolist()


def random_images(count: int, largest: int = 255) -> Array:
    return np.random.default_rng(count).integers(0, largest + 1, (count, 28, 28), dtype=np.uint8)


def idx(images: Array) -> bytes:
    return (
        bytes([0, 0, 8, images.ndim])
        + np.array(images.shape, dtype=">u4").tobytes()
        + images.tobytes()
    )


# Splits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archives")
    for file, counts in ARCHIVES.items():
        savez(path / file, **{f"{part}_images": numbered(count) for part, count in counts.items()})
    return path


def test_digits_are_all_there_once_in_a_fixed_order() -> None:
    first, again = data.load("digits"), data.load("digits")
    rows = torch.cat([first.train, first.valid, first.test])
    published = load_digits().data.astype(np.uint8)
    assert [len(first.train), len(first.valid), len(first.test)] == [1200, 200, 397]
    assert (first.height, first.width, first.levels, first.note) == (8, 8, 16, "")
    assert rows.dtype == torch.uint8
    assert sorted(rows.tolist()) == sorted(published.tolist())
    assert torch.equal(rows, torch.cat([again.train, again.valid, again.test]))


def test_the_shuffle_never_changes() -> None:
    # A different order would change the validation set, and results of different machines would not be comparable.
    permutation = np.random.default_rng(0).permutation(1797)[:3].tolist()
    assert permutation == [360, 1773, 1482]
    assert np.array_equal(data.load("digits").train[:3], load_digits().data[permutation])


@pytest.mark.parametrize("name", ["dynamic-mnist", "fashion-mnist"])
def test_mnist_keeps_its_order_and_holds_out_the_last(name: str, folder: Path) -> None:
    found = data.load(name, folder)
    assert numbers(found.train) == list(range(50_000))
    assert numbers(found.valid) == list(range(50_000, 60_000))
    assert numbers(found.test) == list(range(10_000))
    assert (found.name, found.height, found.width, found.levels, found.note) == (
        name,
        28,
        28,
        255,
        "",
    )


def test_static_mnist_has_its_own_validation_set(folder: Path) -> None:
    found = data.load("static-mnist", folder)
    assert [numbers(part) for part in (found.train, found.valid, found.test)] == [
        list(range(count)) for count in (50_000, 10_000, 10_000)
    ]
    assert found.levels == 1


def test_omniglot_is_shuffled_before_the_split(folder: Path) -> None:
    found = data.load("omniglot", folder)
    train, valid = numbers(found.train), numbers(found.valid)
    assert (len(train), len(valid)) == (23_000, 1_345)
    assert sorted(train + valid) == list(range(24_345))
    assert min(valid) < 100
    assert numbers(found.test) == list(range(8_115))
    assert "reconstructed" in found.note


def test_pixel_mean_is_a_probability_per_pixel(folder: Path) -> None:
    found = data.load("static-mnist", folder)
    assert torch.equal(found.pixel_mean(), found.train.double().mean(0).float())
    digits = data.load("digits")
    assert torch.allclose(digits.pixel_mean(), digits.train.float().mean(0) / 16, atol=1e-6)
    assert digits.pixel_mean().dtype == torch.float32


def test_the_environment_names_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARMS_DATA_DIR", str(folder))
    assert data.fetch("omniglot") == (folder / "omniglot.npz",)
    rows = {row.name: row for row in data.status()}
    assert list(rows) == list(data.DATASETS)
    assert all(row.available for row in rows.values())
    assert rows["omniglot"].where == str(folder / "omniglot.npz")


def test_wrong_names_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'mnist'.*digits, dynamic-mnist"):
        data.load("mnist")
    with pytest.raises(ValueError, match="nowhere"):
        data.load("dynamic-mnist", tmp_path / "nowhere")


def test_the_catalogue_is_well_formed() -> None:
    assert list(data.DATASETS) == [
        "digits",
        "dynamic-mnist",
        "mnist-drawn-once",
        "static-mnist",
        "fashion-mnist",
        "omniglot",
    ]
    for name, entry in data.DATASETS.items():
        assert entry.name == name
        assert "\n" not in entry.description
        for source in entry.sources if isinstance(entry, ImageFiles) else ():
            assert len(bytes.fromhex(source.md5)) == 16
            assert all(
                url.startswith("http") and url.endswith(f"/{source.file}") for url in source.urls
            )


def test_a_data_folder_needs_torch_and_numpy_only(folder: Path) -> None:
    script = f"""
import sys
sys.modules.update(dict.fromkeys(["pooch", "scipy", "sklearn", "requests"]))
from arms.bench import data
assert len(data.load("static-mnist", {str(folder)!r}).train) == 50_000
try:
    data.load("digits")
except ValueError as error:
    assert "arms-grad[data]" in str(error), error
else:
    raise AssertionError("digits without scikit-learn")
"""
    subprocess.run([sys.executable, "-c", script], check=True)


# Formats


TINY = ImageFiles("tiny", "three images", "some.npz", {"train": 3, "test": 1}, held_out=1, levels=1)


def load_tiny(folder: Path, **arrays: Any) -> Any:
    savez(folder / "some.npz", test_images=random_images(1, largest=1), **arrays)
    return TINY.load(folder)


def test_npz_round_trip_reads_only_what_is_asked(tmp_path: Path) -> None:
    images = random_images(3, largest=1)
    found = load_tiny(tmp_path, train_images=images, train_labels=np.array([{}], dtype=object))
    assert np.array_equal(torch.cat([found.train, found.valid]).view(3, 28, 28), images)


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"images": random_images(3)}, "cannot be read: KeyError: 'train_images"),
        ({"train_images": random_images(2)}, r"\(3, 28, 28\).*\(2, 28, 28\)"),
        ({"train_images": random_images(3).reshape(3, 784)}, r"\(3, 784\)"),
        ({"train_images": random_images(3).astype(np.float32)}, "float32"),
        ({"train_images": np.array([None] * 3, dtype=object)}, "Object arrays"),
        ({"train_images": random_images(3, largest=2)}, "with values from 0 to levels=1"),
    ],
)
def test_npz_with_other_content_is_refused(
    arrays: dict[str, Array], complaint: str, tmp_path: Path
) -> None:
    remedy = rf"replace {re.escape(str(tmp_path))}/some\.npz with an intact copy$"
    with pytest.raises(ValueError, match=rf"{complaint}.*: {remedy}"):
        load_tiny(tmp_path, **arrays)


def test_only_what_can_be_downloaded_is_to_be_deleted(tmp_path: Path) -> None:
    (tmp_path / "some.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"cannot be read: BadZipFile.*with an intact copy$"):
        TINY.fetch(tmp_path)
    published = replace(TINY, sources=(Source("some.gz", "", ()),) * 2)
    with pytest.raises(ValueError, match=r"copy, or delete it to download the data$"):
        published.fetch(tmp_path)
    with pytest.raises(ValueError, match=r"tiny cannot be downloaded: put some\.npz into"):
        TINY.load(None)


@pytest.mark.parametrize(
    ("counts", "held_out"), [({"train": 3, "test": 1}, 0), ({"train": 3, "valid": 1, "test": 1}, 1)]
)
def test_validation_images_come_from_one_place(counts: dict[str, int], held_out: int) -> None:
    with pytest.raises(ValueError, match="either a count of valid images or held_out, got train"):
        replace(TINY, counts=counts, held_out=held_out)


@pytest.mark.parametrize("name", ["train_images", "train_images.npy"])
@pytest.mark.parametrize("shape", [(10**15, 28, 28), (10**30, 28, 28)])
def test_npz_with_a_member_that_is_no_array_is_refused(
    name: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    """Without an array's suffix, numpy returns bytes. With the suffix, it allocates the shape in the header."""
    path = tmp_path / "some.npz"
    savez(path, test_images=random_images(1, largest=1))
    with zipfile.ZipFile(path, "a") as archive, archive.open(name, "w") as member:
        np.lib.format.write_array_header_1_0(
            member, {"descr": "|u1", "fortran_order": False, "shape": shape}
        )
    with pytest.raises(ValueError, match=r"some\.npz (must be|cannot be read)"):
        TINY.load(tmp_path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_damaged_anywhere_is_refused_or_harmless(save: Save, tmp_path: Path) -> None:
    path, images = tmp_path / "some.npz", numbered(3)

    def complaint(content: bytes) -> str:
        path.write_bytes(content)
        try:
            found = read_arrays(path, ["train_images"])["train_images"]
        except ValueError as error:
            return str(error)
        return "" if np.array_equal(found, images) else "wrong images were read"

    save(path, train_images=images)
    whole = path.read_bytes()
    flipped = [
        whole[:i] + bytes([whole[i] ^ 0x55]) + whole[i + 1 :] for i in range(0, len(whole), 2)
    ]
    complaints = [
        complaint(damaged) for damaged in flipped + [whole[:i] for i in range(0, len(whole), 7)]
    ]
    assert all("some.npz" in words for words in complaints if words)
    assert sum(map(bool, complaints)) > len(complaints) // 2


def test_idx_file(tmp_path: Path) -> None:
    path, images = tmp_path / "some.gz", random_images(3)
    path.write_bytes(gzip.compress(idx(images)))
    found = read_published(path, "train")
    assert np.array_equal(found, images)
    assert found.flags.writeable


def test_mat_columns_are_images_column_by_column(tmp_path: Path) -> None:
    path, images = tmp_path / "some.mat", random_images(3)
    columns = np.stack([image.ravel(order="F") for image in images], axis=1)
    scipy.io.savemat(path, {"data": columns / 255, "testdata": columns[:, :2] / 255})
    assert np.array_equal(read_published(path, "train"), images)
    assert np.array_equal(read_published(path, "test"), images[:2])


def test_mat_values_are_rounded_to_gray_levels(tmp_path: Path) -> None:
    path = tmp_path / "some.mat"
    scipy.io.savemat(path, {"data": np.full((784, 1), 0.5019)})
    assert np.unique(read_published(path, "train")).tolist() == [128]


def test_amat(tmp_path: Path) -> None:
    path, images = tmp_path / "some.amat", random_images(3, largest=1)
    text = "".join(" ".join(map(str, image.ravel())) + "\n" for image in images)
    path.write_text(text)
    assert np.array_equal(read_published(path, "train"), images)


# Downloads


@dataclass
class Server:
    """Serves `files` by path; a path in `cut` breaks off half way through."""

    url: str
    files: dict[str, bytes]
    cut: set[str]

    def source(self, file: str, content: bytes, *more: str) -> Source:
        return Source(file, hashlib.md5(content).hexdigest(), (*more, f"{self.url}/{file}"))


class Handler(BaseHTTPRequestHandler):
    def __init__(self, shared: Server, *connection: object) -> None:
        self.shared = shared
        super().__init__(*connection)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        content = self.shared.files.get(self.path[1:])
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(
            content[: len(content) // 2] if self.path[1:] in self.shared.cut else content
        )

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    shared = Server("", {}, set())
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, shared)) as http:
        shared.url = f"http://127.0.0.1:{http.server_port}"
        thread = Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield shared
        http.shutdown()
        thread.join()


@pytest.fixture
def closed_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


CONTENT = bytes(range(256)) * 100


def test_download_then_no_need_of_the_network(server: Server, tmp_path: Path) -> None:
    source = server.source("some.bin", CONTENT)
    server.files["some.bin"] = CONTENT
    path = source.obtain(tmp_path / "new" / "folder")
    assert path.read_bytes() == CONTENT
    server.files.clear()
    assert source.obtain(path.parent) == path
    assert list(path.parent.iterdir()) == [path]


def test_mirrors_are_tried_in_order(server: Server, closed_port: str, tmp_path: Path) -> None:
    server.files["some.bin"] = CONTENT
    source = server.source(
        "some.bin", CONTENT, f"{closed_port}/some.bin", f"{server.url}/gone/some.bin"
    )
    assert source.obtain(tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("content", [CONTENT[:-1], b"", b"<html>please log in</html>"])
def test_wrong_checksum_leaves_nothing_and_a_retry_works(
    content: bytes, server: Server, tmp_path: Path
) -> None:
    source = server.source("some.bin", CONTENT)
    server.files["some.bin"] = content
    with pytest.raises(ValueError, match=r"some\.bin is missing.*hash"):
        source.obtain(tmp_path)
    assert list(tmp_path.iterdir()) == []
    server.files["some.bin"] = CONTENT
    assert source.obtain(tmp_path).read_bytes() == CONTENT


def test_broken_connection_leaves_nothing_and_a_retry_works(server: Server, tmp_path: Path) -> None:
    source = server.source("some.bin", CONTENT)
    server.files["some.bin"] = CONTENT
    server.cut.add("some.bin")
    with pytest.raises(ValueError, match=r"some\.bin is missing"):
        source.obtain(tmp_path)
    assert list(tmp_path.iterdir()) == []
    server.cut.clear()
    assert source.obtain(tmp_path).read_bytes() == CONTENT


def test_file_put_there_by_hand_is_checked(server: Server, tmp_path: Path) -> None:
    source = server.source("some.bin", CONTENT)
    path = tmp_path / "some.bin"
    path.write_bytes(CONTENT)
    assert source.obtain(tmp_path) == path
    path.write_bytes(b"another")
    with pytest.raises(ValueError, match=r"some\.bin has a wrong checksum.*404"):
        source.obtain(tmp_path)
    assert path.read_bytes() == b"another"
    server.files["some.bin"] = CONTENT
    assert source.obtain(tmp_path).read_bytes() == CONTENT


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of downloads."""
    monkeypatch.setenv("ARMS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tiny(server: Server, cache: Path) -> ImageFiles:
    """MNIST of seven images, published by the local server."""
    parts = {"train": numbered(5), "test": numbered(2)}
    server.files.update(
        {f"{part}.gz": gzip.compress(idx(images), mtime=0) for part, images in parts.items()}
    )
    entry = data.DATASETS["dynamic-mnist"]
    assert isinstance(entry, ImageFiles)
    return replace(
        entry,
        counts={"train": 5, "test": 2},
        sources=tuple(server.source(file, content) for file, content in server.files.items()),
        held_out=2,
    )


def test_data_set_from_the_network(tiny: ImageFiles, server: Server, cache: Path) -> None:
    assert not tiny.find(None)
    paths = tiny.fetch(None)
    server.files.clear()
    assert tiny.find(None) == str(cache / "dynamic-mnist")
    assert {path.parent for path in paths} == {cache / "dynamic-mnist"}
    found = tiny.load(None)
    assert [numbers(part) for part in (found.train, found.valid, found.test)] == [
        [0, 1, 2],
        [3, 4],
        [0, 1],
    ]
    paths[0].write_bytes(b"")
    assert not tiny.find(None)


def published_in(cache: Path, name: str, files: dict[str, bytes]) -> ImageFiles:
    """Return the entry with this name, with these cached files as the published files."""
    entry = data.DATASETS[name]
    assert isinstance(entry, ImageFiles)
    (cache / name).mkdir(parents=True)
    for file, content in files.items():
        (cache / name / file).write_bytes(content)
    md5s = {file: hashlib.md5(content).hexdigest() for file, content in files.items()}
    return replace(
        entry, sources=tuple(replace(source, md5=md5s[source.file]) for source in entry.sources)
    )


@pytest.mark.parametrize("name", ["dynamic-mnist", "fashion-mnist"])
def test_published_mnist_is_split_like_its_archive(name: str, cache: Path) -> None:
    train, test = (
        gzip.compress(idx(numbered(count)), compresslevel=1) for count in (60_000, 10_000)
    )
    files = {"train-images-idx3-ubyte.gz": train, "t10k-images-idx3-ubyte.gz": test}
    found = published_in(cache, name, files).load(None)
    assert numbers(found.train) == list(range(50_000))
    assert numbers(found.valid) == list(range(50_000, 60_000))
    assert numbers(found.test) == list(range(10_000))


def test_published_omniglot_is_split_like_its_archive(
    folder: Path, tmp_path: Path, cache: Path
) -> None:
    columns = {
        key: numbered(count).transpose(0, 2, 1).reshape(count, 784).T
        for key, count in {"data": 24_345, "testdata": 8_070}.items()
    }
    scipy.io.savemat(tmp_path / "chardata.mat", columns)
    content = (tmp_path / "chardata.mat").read_bytes()
    found = published_in(cache, "omniglot", {"chardata.mat": content}).load(None)
    rebuilt = data.load("omniglot", folder)
    assert torch.equal(found.train, 255 * rebuilt.train)
    assert torch.equal(found.valid, 255 * rebuilt.valid)
    assert numbers(found.test // 255) == list(range(8_070))
    assert found.note == ""


def test_data_folder_comes_before_the_cache(
    tiny: ImageFiles, server: Server, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    assert numbers(tiny.load(folder).train) == [0, 1, 2]
    savez(folder / "mnist.npz", train_images=numbered(5)[::-1], test_images=numbered(2))
    assert numbers(tiny.load(folder).train) == [4, 3, 2]
    (folder / "mnist.npz").write_bytes(b"PK")
    for refusing in (tiny.load, tiny.fetch):
        with pytest.raises(ValueError, match=r"mnist\.npz cannot be read"):
            refusing(folder)


def test_without_network_the_error_says_what_to_put_where(
    closed_port: str, tmp_path: Path, cache: Path
) -> None:
    entry = data.DATASETS["omniglot"]
    assert isinstance(entry, ImageFiles)
    url = f"{closed_port}/chardata.mat"
    offline = replace(
        entry, sources=tuple(replace(source, urls=(url,)) for source in entry.sources)
    )
    with pytest.raises(ValueError, match=r"chardata\.mat is missing") as raised:
        offline.load(None)
    for part in (
        url,
        str(cache / "omniglot"),
        "ARMS_DATA_DIR",
        "omniglot.npz",
        entry.sources[0].md5,
    ):
        assert part in str(raised.value)
    folder = tmp_path / "empty"
    folder.mkdir()
    with pytest.raises(ValueError, match=rf"put omniglot\.npz into {re.escape(str(folder))}$"):
        offline.fetch(folder)


def test_the_cache_folder_is_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARMS_DATA_DIR", raising=False)
    monkeypatch.setenv("ARMS_CACHE_DIR", str(tmp_path))
    assert [row.name for row in data.status() if row.available] == ["digits"]
    assert {row.where for row in data.status() if not row.available} == {""}


# Bits


def test_same_generator_same_bits_and_any_shape() -> None:
    images = torch.from_numpy(random_images(12)).reshape(3, 4, 784)
    bits = [data.observe(images, 255, Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert bits[0].shape == (3, 4, 784)
    assert bits[0].dtype == torch.float32
    assert torch.equal(bits[0], bits[1])
    assert not torch.equal(bits[0], bits[2])


@pytest.mark.parametrize("levels", [1, 16, 255])
def test_extremes_are_exact(levels: int) -> None:
    images = torch.tensor([0, levels], dtype=torch.uint8).repeat(500_000, 1)
    assert torch.equal(data.observe(images, levels), images / levels)


def least_tail(counts: Tensor, draws: int, probs: Tensor) -> float:
    """Return the smallest two-sided binomial tail, which is exact because rare bits are far from normal."""
    binomial = scipy.stats.binom(draws, probs.numpy())
    below, above = binomial.cdf(counts.numpy()), binomial.sf(counts.numpy() - 1)
    return float(2 * np.minimum(below, above).min())


@pytest.mark.parametrize("levels", [16, 255])
def test_frequencies_are_value_over_levels(levels: int) -> None:
    draws = 4_000
    values = torch.arange(1, levels, dtype=torch.uint8)
    bits = data.observe(values.repeat(draws, 1), levels, Generator().manual_seed(levels))
    probs = values.double() / levels
    limit = FAILURE_RATE / (2 * len(values))
    assert least_tail(bits.sum(0), draws, probs) > limit
    # Two images of one batch must not share their noise.
    assert least_tail((bits[::2] * bits[1::2]).sum(0), draws // 2, probs**2) > limit


# The real files, where they are


needs_files = pytest.mark.skipif(
    not os.environ.get("ARMS_DATA_DIR"), reason="ARMS_DATA_DIR names no data folder"
)


@needs_files
@pytest.mark.parametrize(
    ("name", "train_mean", "test_mean"),
    [
        ("dynamic-mnist", 0.13066, 0.13251),
        ("fashion-mnist", 0.28604, 0.28685),
        ("static-mnist", (5 * 0.13056 + 0.13113) / 6, 0.13251),
        ("omniglot", 0.08300, 0.08199),
    ],
)
def test_real_images_have_their_known_means(name: str, train_mean: float, test_mean: float) -> None:
    found = data.load(name)
    means = [
        part.double().mean() / found.levels
        for part in (torch.cat([found.train, found.valid]), found.test)
    ]
    assert means == pytest.approx([train_mean, test_mean], abs=1e-5)


@needs_files
def test_static_mnist_is_the_published_text(cache: Path) -> None:
    found, entry = data.load("static-mnist"), data.DATASETS["static-mnist"]
    assert isinstance(entry, ImageFiles)
    (cache / entry.name).mkdir(parents=True)
    for source, part in zip(entry.sources, (found.train, found.valid, found.test), strict=True):
        text = np.full((len(part), 784, 2), ord(" "), dtype=np.uint8)
        text[:, :, 0] = part.numpy() + ord("0")
        text[:, -1, 1] = ord("\n")
        (cache / entry.name / source.file).write_bytes(text.tobytes())
    offline = replace(entry, sources=tuple(replace(source, urls=()) for source in entry.sources))
    published = offline.load(None)
    assert torch.equal(published.train, found.train)
    assert torch.equal(published.valid, found.valid)
    assert torch.equal(published.test, found.test)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"levels": 1},
            r"\[images, 64\] with values from 0 to levels=1, got the value 16: pass levels=16",
        ),
        ({"levels": 0}, "levels must be an integer >= 1, got 0"),
        (
            {"height": 28, "width": 28},
            r"uint8 \[images, 784\] with at least one image, got torch.uint8 \[1200, 64\]: flatten",
        ),
        (
            {"test": torch.zeros(5, 30, dtype=torch.uint8)},
            r"test images .*, got torch.uint8 \[5, 30\]",
        ),
        (
            {"valid": torch.zeros(5, 8, 8, dtype=torch.uint8)},
            r"valid images .*, got torch.uint8 \[5, 8, 8\]",
        ),
        ({"train": torch.zeros(5, 64)}, r"train images .*, got torch.float32 \[5, 64\]"),
    ],
)
def test_a_data_set_of_ones_own_is_checked(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(data.load("digits"), **changed)
