"""Images of a user's own as a data set: files, folders, arrays, data set objects; what they become, what is refused."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from arms.bench import Run, TrainConfig, as_dataset, evaluate, load, load_model, train
from arms.bench.cli import main

RANDOM = np.random.default_rng(0)
GREY = RANDOM.integers(0, 256, (50, 6, 5), dtype=np.uint8)
CONFIG = TrainConfig(steps=10, report_every=10, latents=4, num_samples=2)


class Pairs:
    """What torchvision's data sets are like: images of PIL, and labels."""

    def __init__(self, images: Any = GREY) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.images[index]), 0


class Rows(Pairs):
    """What Hugging Face's data sets are like."""

    def __getitem__(self, index: int) -> Any:
        return {"image": Image.fromarray(self.images[index]), "label": 0}


def rows(dataset: Any) -> list[bytes]:
    return sorted(row.numpy().tobytes() for split in ("train", "valid", "test") for row in getattr(dataset, split))


@pytest.mark.parametrize(
    "source",
    [
        GREY,
        GREY[:, None],
        GREY[..., None],
        torch.from_numpy(GREY),
        GREY.astype(np.int64),
        GREY.astype(np.float32),
        Pairs(),
        Rows(),
        {"train": Rows()},
        {"train": GREY[:30], "validation": GREY[30:40], "test": GREY[40:]},
    ],
)
def test_every_kind_of_source(source: Any) -> None:
    dataset = as_dataset(source, "mine")
    assert (dataset.name, dataset.height, dataset.width, dataset.levels) == ("mine", 6, 5, 255)
    assert rows(dataset) == sorted(image.tobytes() for image in GREY), "every image once"
    assert repr(as_dataset(source, "mine")) == repr(dataset)
    assert torch.equal(as_dataset(source, "mine").valid, dataset.valid), "split alike every time"


def test_splits_that_are_there_are_kept() -> None:
    dataset = as_dataset({"train": GREY[:30], "val": GREY[30:40], "test": GREY[40:]}, "mine")
    assert torch.equal(dataset.valid, torch.from_numpy(GREY[30:40].reshape(10, -1)))
    assert repr(dataset) == "Dataset('mine', 30 train, 10 valid, 10 test images of 6x5, 255 levels)"
    without = as_dataset({"train": GREY[:30], "test": GREY[40:]}, "mine")
    assert (len(without.train), len(without.valid), len(without.test)) == (27, 3, 10)


def test_levels() -> None:
    assert as_dataset(GREY > 100, "bits").levels == 1
    assert as_dataset((GREY > 100).astype(float), "bits").levels == 1
    fractions = as_dataset(GREY / 255, "fractions")
    assert fractions.levels == 255
    assert rows(fractions) == rows(as_dataset(GREY, "mine"))
    assert as_dataset(GREY // 16, "few", levels=15).levels == 15


def test_files(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", GREY)
    np.savez(tmp_path / "one.npz", GREY)
    np.savez(tmp_path / "keras.npz", x_train=GREY[:40], x_test=GREY[40:], y_train=np.zeros(40), y_test=np.zeros(10))
    np.savez(tmp_path / "few.npz", train=GREY[:40] // 16, test_images=GREY[40:] // 16, levels=15)
    one, also = load(tmp_path / "one.npy"), load(str(tmp_path / "one.npz"))
    assert one.name == also.name
    assert one.name.startswith("one@")
    assert one.path == str(tmp_path / "one.npy")
    assert rows(one) == rows(as_dataset(GREY, "mine"))
    assert len(load(tmp_path / "keras.npz").test) == 10
    assert load(tmp_path / "few.npz").levels == 15
    np.save(tmp_path / "one.npy", GREY[:49])
    assert load(tmp_path / "one.npy").name != one.name, "other images are another data set"


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split, images in {"train": GREY[:40], "test": GREY[40:]}.items():
        for index, image in enumerate(images):
            folder = tmp_path / "faces" / split / str(index % 2)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{index}.png")
    monkeypatch.chdir(tmp_path)
    dataset = load("faces")
    assert (len(dataset.train), len(dataset.valid), len(dataset.test)) == (36, 4, 10)
    assert rows(dataset) == rows(as_dataset(GREY, "mine"))
    assert dataset.note == ""
    assert rows(load(tmp_path / "faces" / "test")) == sorted(image.tobytes() for image in GREY[40:])
    coloured = np.stack([GREY[0]] * 3, -1)
    Image.fromarray(coloured).save(tmp_path / "faces" / "train" / "colour.png")
    assert load("faces").note == "colour images turned grey"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            np.zeros((5, 3, 8, 8)),
            r"must be images \[images, height, width\], at least one, got \[5, 3, 8, 8\]: turn",
        ),
        (np.zeros((5, 64)), r"at least one, got \[5, 64\]: reshape them"),
        (np.zeros((0, 8, 8)), r"at least one, got \[0, 8, 8\]"),
        (np.zeros((2, 8, 8)), "must have at least 3 images to split, got 2"),
        (np.full((5, 8, 8), 1.5), "with fractions must lie between 0 and 1, got 1.5 to 1.5: scale them"),
        (np.full((5, 8, 8), -1), "must be whole numbers from 0 to 255, got -1 to -1"),
        (np.full((5, 8, 8), np.nan), "got nan to nan"),
        (np.full((5, 8, 8), "a"), "must hold numbers, got <U1"),
        ({"a": GREY}, "must be split into train, valid and test, got a: rename them"),
        ({"test": GREY}, "must have training images, got test only"),
        ({"train": GREY, "training": GREY}, "must have one array for train, got train and training"),
        ({"train": GREY, "test": GREY[:, 1:]}, "must have one size, got train 6x5, test 5x5: resize them"),
        ([GREY[0], GREY[1, 1:]], "must have one size, got 5x5 and 6x5"),
        ([{"picture": 1}], "an item of mine must have an image, got picture: call it image"),
        ([], "mine must hold images, got none"),
        (7, "must be a tensor, an array, or a data set of images, got int"),
    ],
)
def test_what_is_refused(source: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_dataset(source, "mine")


def test_what_is_refused_of_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file or folder .*nowhere.npz: give an .npz or .npy file"):
        load(tmp_path / "nowhere.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(ValueError, match=r"text.npz must be an npz archive, got another kind of file"):
        load(tmp_path / "text.npz")
    (tmp_path / "text.npy").write_text("hello")
    with pytest.raises(ValueError, match=r"text.npy cannot be read: "):
        load(tmp_path / "text.npy")
    np.save(tmp_path / "object.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"object.npy cannot be read: .*allow_pickle=False"):
        load(tmp_path / "object.npy")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"notes.txt must be an .npz or .npy file, or a folder of images, got a .txt"):
        load(tmp_path / "notes.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"there is no image in .*empty: images end in .png"):
        load(tmp_path / "empty")
    (tmp_path / "empty" / "a.png").write_text("hello")
    with pytest.raises(ValueError, match=r"a.png cannot be read as an image"):
        load(tmp_path / "empty")
    for name, image in (("a", GREY[0]), ("b", GREY[1, 1:])):
        Image.fromarray(image).save(tmp_path / "empty" / f"{name}.png")
    with pytest.raises(ValueError, match=r"one size, got 6x5 in .*a.png and 5x5 in .*b.png: resize them"):
        load(tmp_path / "empty")
    with pytest.raises(ValueError, match="need a name for runs and reports"):
        as_dataset(GREY)


def test_a_run_finds_its_file_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "mine.npy", GREY)
    run = train(CONFIG, tmp_path / "run", dataset=tmp_path / "mine.npy")
    assert run.config().dataset == load(tmp_path / "mine.npy").name
    model, dataset = load_model(run, "cpu")
    assert len(evaluate(model, dataset, "test", [1], seed=0)[1]) == 1
    (tmp_path / "mine.npy").rename(tmp_path / "moved.npy")
    with pytest.raises(ValueError, match=r"was trained on a data set of your own, 'mine@\w+', and it is no longer at"):
        load_model(run)
    with pytest.raises(ValueError, match=r"was trained on 'mine@\w+', and .*moved.npy is 'moved@\w+': its images are"):
        load_model(run, dataset=tmp_path / "moved.npy")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "moved.npy").rename(tmp_path / "elsewhere" / "mine.npy")
    assert load_model(run, dataset=tmp_path / "elsewhere" / "mine.npy")[1].name == run.config().dataset


def test_by_name_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("mine.npy", GREY)
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
    assert capsys.readouterr().err.startswith("arms: no data set is called 'digist': perhaps digits; choose one of dig")
