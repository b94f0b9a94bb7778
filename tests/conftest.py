import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import Say
from hypothesis import settings

from arms.bench.data import Dataset, load

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported: its interpreter runs the kernels on a CPU

# Two test processes on two cores; more threads each would only fight. Examples are the same in every run.
torch.set_num_threads(1)
settings.register_profile("arms", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("arms")


@pytest.fixture(scope="session")
def all_digits() -> Dataset:
    return load("digits")


@pytest.fixture(scope="session")
def digits(all_digits: Dataset) -> Dataset:
    """Few images: most tests are not about what is learnt."""
    train, valid, test = all_digits.train[:100], all_digits.valid[:20], all_digits.test[:20]
    return replace(all_digits, train=train, valid=valid, test=test)


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Say]:
    """Run a command in an empty folder; return its exit code, and what it said.

    In this process, which is quicker by the import of torch; that of a real one is the same function.
    """
    from arms.bench.cli import main  # needs packages that the library's own tests do without

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["arms", *words])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(str(stop.code or 0))
        said = capsys.readouterr()
        return code, said.out, said.err

    yield call
    for name in set(sys.modules) - before:  # the next test has a module of that name, too
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
