"""The catalogue: every data set by name, with its public origins. A new one is one entry in DATASETS."""

from collections.abc import Mapping
from pathlib import Path

from arms.bench.data.download import Source
from arms.bench.data.formats import read_amat, read_idx, read_mat
from arms.bench.data.sources import Archive, Digits, Entry, ImageFiles, Parts

MNIST_HOSTS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
FASHION_HOSTS = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)
OMNIGLOT_HOSTS = ("https://github.com/yburda/iwae/raw/master/datasets/OMNIGLOT/",)
STATIC_HOSTS = ("http://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist/",)

TRAIN_IDX, TEST_IDX = "train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"
MNIST_COUNTS = {"train": 60_000, "test": 10_000}
STATIC_COUNTS = {"train": 50_000, "valid": 10_000, "test": 10_000}
OMNIGLOT_COUNTS = {"train": 24_345, "test": 8_070}
RECONSTRUCTED_COUNTS = {"train": 24_345, "test": 8_115}
RECONSTRUCTED = (
    "reconstructed Omniglot: rebuilt from the original drawings, with 8,115 test images where "
    "chardata.mat has 8,070; compare with published numbers only with care"
)


def _source(file: str, md5: str, hosts: tuple[str, ...]) -> Source:
    return Source(file, md5, tuple(host + file for host in hosts))


def _read_idx_pair(paths: tuple[Path, ...]) -> Parts:
    return {
        part: read_idx(path, count)
        for path, (part, count) in zip(paths, MNIST_COUNTS.items(), strict=True)
    }


def _read_amat_triple(paths: tuple[Path, ...]) -> Parts:
    return {
        part: read_amat(path, count)
        for path, (part, count) in zip(paths, STATIC_COUNTS.items(), strict=True)
    }


def _read_chardata(paths: tuple[Path, ...]) -> Parts:
    (path,) = paths
    keys = {"train": "data", "test": "testdata"}
    return {part: read_mat(path, keys[part], count) for part, count in OMNIGLOT_COUNTS.items()}


DATASETS: Mapping[str, Entry] = {
    entry.name: entry
    for entry in (
        Digits(
            "digits",
            "8x8 handwritten digits of scikit-learn, for quick trials; fresh bits in every batch",
        ),
        ImageFiles(
            "dynamic-mnist",
            "MNIST, fresh bits in every batch",
            archive=Archive("mnist.npz", MNIST_COUNTS),
            sources=(
                _source(TRAIN_IDX, "f68b3c2dcbeaaa9fbdd348bbdeb94873", MNIST_HOSTS),
                _source(TEST_IDX, "9fb629c4189551a2d022fa330f9573f3", MNIST_HOSTS),
            ),
            read=_read_idx_pair,
            held_out=10_000,
        ),
        ImageFiles(
            "static-mnist",
            "MNIST, bits drawn once (Larochelle)",
            archive=Archive("binarized_mnist.npz", STATIC_COUNTS),
            sources=(
                _source(
                    "binarized_mnist_train.amat", "db28b1a6ae0fe70cbd3da91acf46e477", STATIC_HOSTS
                ),
                _source(
                    "binarized_mnist_valid.amat", "bf37822a04e94123630de6a7dfd9c9ef", STATIC_HOSTS
                ),
                _source(
                    "binarized_mnist_test.amat", "14e41ae11040adba6ab8cb291eda0dd8", STATIC_HOSTS
                ),
            ),
            read=_read_amat_triple,
            levels=1,
        ),
        ImageFiles(
            "fashion-mnist",
            "Fashion MNIST, fresh bits in every batch",
            archive=Archive("fashion_mnist.npz", MNIST_COUNTS),
            sources=(
                _source(TRAIN_IDX, "8d4fb7e6c68d591d4c3dfef9ec88bf0d", FASHION_HOSTS),
                _source(TEST_IDX, "bef4ecab320f06d8554ea6380940ec79", FASHION_HOSTS),
            ),
            read=_read_idx_pair,
            held_out=10_000,
        ),
        ImageFiles(
            "omniglot",
            "Omniglot at 28x28 as in the IWAE paper, fresh bits in every batch",
            archive=Archive("omniglot.npz", RECONSTRUCTED_COUNTS, note=RECONSTRUCTED),
            sources=(_source("chardata.mat", "21ecaf34373511aa7691cf2e0802aa3d", OMNIGLOT_HOSTS),),
            read=_read_chardata,
            held_out=1_345,
            shuffle=True,
        ),
    )
}
