"""A user's own images as a data set: files, folders, arrays and data set objects, and errors."""

import io
import os
import re
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Say
from PIL import Image

from arms.bench import Run, TrainConfig, as_dataset, evaluate, load, load_model, train
from arms.bench.cli import main

RANDOM = np.random.default_rng(0)
GRAY = RANDOM.integers(0, 256, (50, 6, 5), dtype=np.uint8)
CONFIG = TrainConfig(steps=10, report_every=10, latents=4, num_samples=2)


class Pairs:
    """A data set like torchvision's, with PIL images and labels."""

    def __init__(self, images: Any = GRAY) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.images[index]), 0


class Rows(Pairs):
    """A data set like Hugging Face's."""

    def __getitem__(self, index: int) -> Any:
        return {"image": Image.fromarray(self.images[index]), "label": 0}


def rows(dataset: Any) -> list[bytes]:
    return sorted(
        row.numpy().tobytes()
        for split in ("train", "valid", "test")
        for row in getattr(dataset, split)
    )


@pytest.mark.parametrize(
    "source",
    [
        GRAY,
        GRAY[:, None],
        GRAY[..., None],
        torch.from_numpy(GRAY),
        GRAY.astype(np.int64),
        GRAY.astype(np.float32),
        Pairs(),
        Rows(),
        {"train": Rows()},
        GRAY.tolist(),
        GRAY[..., None].tolist(),
        [(image.tolist(), 0) for image in GRAY],
        GRAY.astype(">u2"),
        torch.from_numpy(GRAY / 255),
        {"train": GRAY[:30], "validation": GRAY[30:40], "test": GRAY[40:]},
    ],
)
def test_every_kind_of_source(source: Any) -> None:
    dataset = as_dataset(source, "mine")
    assert (dataset.name, dataset.height, dataset.width, dataset.levels) == ("mine", 6, 5, 255)
    assert rows(dataset) == sorted(image.tobytes() for image in GRAY), "every image once"
    assert repr(as_dataset(source, "mine")) == repr(dataset)
    assert torch.equal(as_dataset(source, "mine").valid, dataset.valid), "split alike every time"


def test_splits_that_are_there_are_kept() -> None:
    dataset = as_dataset({"train": GRAY[:30], "val": GRAY[30:40], "test": GRAY[40:]}, "mine")
    assert torch.equal(dataset.valid, torch.from_numpy(GRAY[30:40].reshape(10, -1)))
    assert repr(dataset) == "Dataset('mine', 30 train, 10 valid, 10 test images of 6x5, 255 levels)"
    without = as_dataset({"train": GRAY[:30], "test": GRAY[40:]}, "mine")
    assert (len(without.train), len(without.valid), len(without.test)) == (27, 3, 10)


def test_levels() -> None:
    assert as_dataset(GRAY > 100, "bits").levels == 1
    assert as_dataset((GRAY > 100).astype(float), "bits").levels == 1
    fractions = as_dataset(GRAY / 255, "fractions")
    assert fractions.levels == 255
    assert rows(fractions) == rows(as_dataset(GRAY, "mine"))
    assert as_dataset(GRAY // 16, "few", levels=15).levels == 15


def test_files(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", GRAY)
    np.savez(tmp_path / "one.npz", GRAY)
    np.savez(
        tmp_path / "keras.npz",
        x_train=GRAY[:40],
        x_test=GRAY[40:],
        y_train=np.zeros(40),
        y_test=np.zeros(10),
    )
    np.savez(tmp_path / "few.npz", train=GRAY[:40] // 16, test_images=GRAY[40:] // 16, levels=15)
    one, also = load(tmp_path / "one.npy"), load(str(tmp_path / "one.npz"))
    assert one.name == also.name
    assert one.name.startswith("one@")
    assert one.path == str(tmp_path / "one.npy")
    assert rows(one) == rows(as_dataset(GRAY, "mine"))
    assert len(load(tmp_path / "keras.npz").test) == 10
    assert load(tmp_path / "few.npz").levels == 15
    np.save(tmp_path / "one.npy", GRAY[:49])
    assert load(tmp_path / "one.npy").name != one.name, "other images are another data set"


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split, images in {"train": GRAY[:40], "test": GRAY[40:]}.items():
        for index, image in enumerate(images):
            folder = tmp_path / "faces" / split / str(index % 2)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{index}.png")
    monkeypatch.chdir(tmp_path)
    dataset = load("faces")
    assert (len(dataset.train), len(dataset.valid), len(dataset.test)) == (36, 4, 10)
    assert rows(dataset) == rows(as_dataset(GRAY, "mine"))
    assert dataset.note == ""
    assert rows(load(tmp_path / "faces" / "test")) == sorted(image.tobytes() for image in GRAY[40:])
    colored = np.stack([GRAY[0]] * 3, -1)
    Image.fromarray(colored).save(tmp_path / "faces" / "train" / "color.png")
    assert load("faces").note == "color images converted to gray"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            np.zeros((5, 3, 8, 8)),
            r"height, width\] with no axis of length 0, got \[5, 3, 8, 8\]: convert them to",
        ),
        (
            np.zeros((5, 64)),
            r"height, width\] with no axis of length 0, got \[5, 64\]: reshape them",
        ),
        (
            np.zeros((0, 8, 8)),
            r"height, width\] with no axis of length 0, got \[0, 8, 8\]: reshape them",
        ),
        (np.zeros((2, 8, 8)), "to split into train and valid and test, got 2: add images"),
        (
            np.full((5, 8, 8), 1.5),
            "of mine must be fractions from 0 to 1, got values from 1.5 to 1.5: scale",
        ),
        (
            np.full((5, 8, 8), -1),
            "of mine must be whole numbers from 0 to 255, got values from -1 to -1: scale them,",
        ),
        (
            np.full((5, 8, 8), np.nan),
            "of mine must be fractions from 0 to 1, got values from nan to nan: scale",
        ),
        (
            np.full((5, 8, 8), np.inf),
            "of mine must be whole numbers from 0 to 255, got values from inf to inf: scale",
        ),
        (
            np.ma.masked_greater(GRAY, 100),
            r"mine must have a value for every pixel, got a masked array: call .filled\(\) on",
        ),
        (
            torch.rand(5, 8, 8).bfloat16(),
            "mine must contain dense arrays of integers or floats, but reading raised",
        ),
        (
            torch.rand(5, 8, 8).to_sparse(),
            "mine must contain dense arrays of integers or floats, but reading raised",
        ),
        (
            torch.empty(5, 8, 8, device="meta"),
            "mine must contain dense arrays of integers or floats, but reading raised",
        ),
        (np.full((5, 8, 8), "a"), "mine must contain numbers, got <U1: pass gray values"),
        ({"a": GRAY}, r"has no split 'train' \(found: no splits\): name the split"),
        ({"test": GRAY}, r"has no split 'train' \(found: test\)"),
        (
            {"train": GRAY, "training": GRAY},
            "mine must have only one train split, got train and training: rename one of them",
        ),
        (
            {"train": GRAY, "test": GRAY > 9},
            "of mine must have the same range of values, got train from 0 to 255, test from 0",
        ),
        (
            {"train": GRAY[:1], "test": GRAY},
            "mine must have at least 2 images to split into train and valid, got 1: add images",
        ),
        ({"valid": GRAY, "test": GRAY}, r"has no split 'train' \(found: valid, test\)"),
        (
            {"train": GRAY, "test": GRAY[:, 1:]},
            "all images must have the same size, got 6x5 in train of mine and 5x5 in",
        ),
        (
            [GRAY[0], GRAY[1, 1:]],
            "all images must have the same size, got 6x5 in item 0 of mine and 5x5 in",
        ),
        (
            [GRAY[0], GRAY[1] > 9],
            "all images of mine must have the same dtype, got bool and uint8: convert the images",
        ),
        (
            [Image.fromarray(GRAY[0]).convert("P")],
            r"the images of mine must be gray, got mode P \(palette\): convert them",
        ),
        (
            [Image.fromarray(GRAY[0]).convert("LA")],
            r"height, width\] with no axis of length 0, got \[1, 6, 5, 2\]: convert them to",
        ),
        ([()], r"height, width\] with no axis of length 0, got \[1, 0\]: reshape them"),
        (
            [{"picture": 1}],
            "items of mine must have the key 'image', got the keys picture: rename the key",
        ),
        ([], "mine must contain at least one image, got none"),
        (7, "must be a tensor, an array, or a data set of images, got int"),
    ],
)
def test_what_is_refused(source: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_dataset(source, "mine")


def test_what_is_refused_of_files(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"an .npz or .npy file, or a folder of images, got a path that does not exist: check",
    ):
        load(tmp_path / "nowhere.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(
        ValueError, match=r"text.npz cannot be read: BadZipFile: File is not a zip file"
    ):
        load(tmp_path / "text.npz")
    (tmp_path / "text.npy").write_text("hello")
    with pytest.raises(ValueError, match=r"text.npy cannot be read: "):
        load(tmp_path / "text.npy")
    np.save(tmp_path / "object.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"object.npy cannot be read: .*allow_pickle=False"):
        load(tmp_path / "object.npy")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(
        ValueError,
        match=r"notes.txt must be an .npz or .npy file, or a folder of images, got another kind of file",
    ):
        load(tmp_path / "notes.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        ValueError,
        match=r"the folder .*empty must contain images, got none: add files that end in .png",
    ):
        load(tmp_path / "empty")
    (tmp_path / "empty" / "a.png").write_text("hello")
    with pytest.raises(ValueError, match=r"a.png cannot be read as an image"):
        load(tmp_path / "empty")
    for name, image in (("a", GRAY[0]), ("b", GRAY[1, 1:])):
        Image.fromarray(image).save(tmp_path / "empty" / f"{name}.png")
    with pytest.raises(
        ValueError,
        match=r"all images must have the same size, got 6x5 in .*a.png and 5x5 in .*b.png: resize them",
    ):
        load(tmp_path / "empty")
    with pytest.raises(ValueError, match="need a name for runs and reports"):
        as_dataset(GRAY)


# ---- files that are not what they seem


def header(shape: tuple[int, ...]) -> bytes:
    """Return the header of an .npy file of this shape."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": "|u1", "fortran_order": False, "shape": shape}
    )
    return buffer.getvalue() + bytes(100)


BRACKETS = b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header((10**15, 8, 8)), "Error: "),
        (header((10**30, 8, 8)), "Error: "),
        (header((-5, 8, 8)), "Error: "),
        (BRACKETS, "Error: "),
        (b"", "ValueError: EOF|BadZipFile"),
    ],
    ids=["petabytes", "beyond counting", "negative", "brackets", "empty"],
)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_damaged_files_are_named_in_one_line(
    suffix: str, content: bytes, message: str, say: Say
) -> None:
    path = Path(f"odd{suffix}")
    if suffix == ".npy" or not content:
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("train.npy", content)
    code, _, error = say("train", "--dataset", str(path), "--steps", "10")
    assert code == 2
    assert error.startswith(f"arms: {path} ")
    assert len(error.splitlines()) == 1
    with pytest.raises(ValueError, match=message):
        load(path)


@pytest.mark.parametrize(
    ("levels", "got"),
    [
        (np.inf, "inf"),
        (np.nan, "nan"),
        (1 + 2j, r"\(1\+2j\)"),
        (np.datetime64("2020-01-01"), r"datetime.date\(2020, 1, 1\)"),
        (np.zeros((), "i,i"), r"\(0, 0\)"),
        ("sixteen", "'sixteen'"),
        (0, "0"),
        (-3, "-3"),
        (16.7, "16.7"),
        (True, "True"),
        ([16, 16], r"\[2\]"),
    ],
    ids=str,
)
def test_levels_in_an_archive_are_a_whole_number(levels: Any, got: str, tmp_path: Path) -> None:
    path = tmp_path / "few.npz"
    np.savez(path, train=GRAY // 16, levels=np.array(levels))
    with pytest.raises(
        ValueError, match=rf"levels in .*few.npz must be an integer >= 1, got {got}"
    ):
        load(path)


@pytest.mark.parametrize("levels", [16.0, [16]])
def test_levels_in_an_archive_may_be_stored_otherwise(levels: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "few.npz", train=GRAY // 16, levels=np.array(levels))
    assert load(tmp_path / "few.npz").levels == 16


@pytest.mark.parametrize("levels", [0, 16.7, np.nan, "16"])
def test_levels_that_are_given_are_a_whole_number(levels: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "few.npz", train=GRAY // 16, levels=15)
    for source in (GRAY // 16, tmp_path / "few.npz"):
        with pytest.raises(ValueError, match="levels must be an integer >= 1, got"):
            as_dataset(source, "mine", levels=levels)


def test_messages_about_pixels_name_the_file(tmp_path: Path) -> None:
    for pixels, levels in (
        (GRAY, 15),
        (GRAY / 255, 15),
        (GRAY * 2.0, 255),
        (np.where(GRAY > 9, np.nan, 0), 255),
    ):
        np.savez(tmp_path / "odd.npz", train=pixels, levels=levels)
        with pytest.raises(
            ValueError, match=f"pixels .*{re.escape(str(tmp_path / 'odd.npz'))}.* got "
        ):
            load(tmp_path / "odd.npz")


def test_an_archive_may_hold_more_than_arrays(tmp_path: Path) -> None:
    path = tmp_path / "described.npz"
    np.savez(path, train=GRAY, labels=np.zeros(50))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("README", "fifty images")
    assert rows(load(path)) == rows(as_dataset(GRAY, "mine"))


def test_a_test_set_alone_is_no_training_set(tmp_path: Path) -> None:
    np.savez(tmp_path / "half.npz", x_test=GRAY, y_test=np.zeros(50))
    with pytest.raises(ValueError, match=r"half.npz has no split 'train' \(found: test\)"):
        load(tmp_path / "half.npz")


def test_what_cannot_be_read_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises(
        ValueError,
        match=r"an .npz or .npy file, or a folder of images, got another kind of file or folder:",
    ):
        load(tmp_path / "pipe.npy")


def test_a_folder_is_called_by_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "faces"
    folder.mkdir()
    for index, image in enumerate(GRAY[:9]):
        Image.fromarray(image).save(folder / f"{index}.png")
    name = load(folder).name
    monkeypatch.chdir(folder)
    assert load(".").name == load("./").name == load("../faces").name == name


def test_a_run_finds_its_file_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "mine.npy", GRAY)
    run = train(CONFIG, tmp_path / "run", dataset=tmp_path / "mine.npy")
    assert run.config().dataset == load(tmp_path / "mine.npy").name
    model, dataset = load_model(run, "cpu")
    assert len(evaluate(model, dataset, "test", [1], seed=0)[1]) == 1
    (tmp_path / "mine.npy").rename(tmp_path / "moved.npy")
    with pytest.raises(
        ValueError, match=r"was trained on your own data set 'mine@\w+', which is no longer at"
    ):
        load_model(run)
    with pytest.raises(
        ValueError,
        match=r"was trained on the data set 'mine@\w+', but .*moved.npy is 'moved@\w+': pass the images",
    ):
        load_model(run, dataset=tmp_path / "moved.npy")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "moved.npy").rename(tmp_path / "elsewhere" / "mine.npy")
    assert (
        load_model(run, dataset=tmp_path / "elsewhere" / "mine.npy")[1].name == run.config().dataset
    )


def test_by_name_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("mine.npy", GRAY)
    flags = ["--steps", "10", "--report-every", "10", "--latents", "4", "--evaluate", "5"]
    monkeypatch.setattr(sys, "argv", ["arms", "train", "--dataset", "mine.npy", *flags])
    main()
    assert "over 5 images of each split" in capsys.readouterr().out
    (path,) = Path("runs").iterdir()
    assert path.name.startswith("mine-")
    monkeypatch.setattr(sys, "argv", ["arms", "evaluate", str(path)])
    main()
    assert "test bound" in capsys.readouterr().out
    assert Run(path).data_path() == str(tmp_path / "mine.npy")
    monkeypatch.setattr(sys, "argv", ["arms", "train", "--dataset", "digist"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err.startswith(
        "arms: there is no data set named 'digist': did you mean digits? Otherwise choose one of dig"
    )
