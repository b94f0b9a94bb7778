import locale
import os
import signal
import sys
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import Say
from hypothesis import settings

from arms.bench.data import Dataset, load

# The output of tests and their child processes does not depend on the terminal or the locale.
for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)
os.environ["PYTHONIOENCODING"] = "utf-8"
if os.name != "nt" and locale.getencoding().lower() != "utf-8":
    # The encoding of text files that tests read and write.
    locale.setlocale(locale.LC_CTYPE, "C.UTF-8")

if not torch.cuda.is_available():
    # Before Triton is imported: its interpreter runs the kernels on a CPU.
    os.environ["TRITON_INTERPRET"] = "1"

# Two test processes share two cores, so each has one thread. Examples are the same in every run.
torch.set_num_threads(1)
settings.register_profile("arms", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("arms")


def pytest_configure() -> None:
    if not __debug__:
        raise pytest.UsageError(
            "the tests need assert statements: unset PYTHONOPTIMIZE, and run python without -O"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let signals reach the tests of signals and their child processes.

    Processes in the background of a script ignore Ctrl-C, and hand that on to their children.
    """
    if item.get_closest_marker("signals") is None:
        return (yield)
    before = (
        signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.signal(signal.SIGTERM, signal.SIG_DFL),
    )
    try:
        return (yield)
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])


@pytest.fixture(autouse=True)
def _forget_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget the modules that a test has imported from its folder.

    The next test may have one with the same name.
    """
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    folder = str(tmp_path_factory.getbasetemp())
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(folder):
            del sys.modules[name]


@pytest.fixture(scope="session")
def all_digits() -> Dataset:
    return load("digits")


@pytest.fixture(scope="session")
def digits(all_digits: Dataset) -> Dataset:
    """A data set with few images, because most tests do not depend on the learned model."""
    train, valid, test = all_digits.train[:100], all_digits.valid[:20], all_digits.test[:20]
    return replace(all_digits, train=train, valid=valid, test=test)


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command in an empty folder; return its exit code, and what it said.

    The command runs in this process, which saves importing torch again.
    """
    from arms.bench.cli import main  # needs packages that the library's own tests do without

    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["arms", *words])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(str(stop.code or 0))
        said = capsys.readouterr()
        return code, said.out, said.err

    return call
