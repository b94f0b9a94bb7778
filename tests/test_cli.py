"""The command line as a user meets it: real processes."""

import subprocess
import sys
from pathlib import Path

import pytest

OWN_MODULE = """
import torch, arms

class Fine(arms.LOORF):
    pass

class Broken(arms.LOORF):
    def combine(self, draw, values):
        return super().combine(draw, values) * 1.1

class OwnCoupling(arms.Systematic):
    pass

number = 7
"""


def run(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from arms.cli import main; main()", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN_MODULE)
    return tmp_path


def test_check_passes_and_fails_by_exit_code(folder: Path) -> None:
    fine = run("check", "own:Fine", "--draws", "20000", cwd=folder)
    assert fine.returncode == 0, fine.stderr
    assert "unbiased, n = 8" in fine.stdout
    broken = run("check", "own:Broken", "--draws", "20000", cwd=folder)
    assert broken.returncode == 1
    assert "FAIL" in broken.stdout
    coupled = run("check", "own:OwnCoupling", "--draws", "5000", cwd=folder)
    assert coupled.returncode == 0, coupled.stderr
    assert "exchangeability" in coupled.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "loorff"], "nothing is called 'loorff': give one of reinforce"),
        (["check", "nowhere:Thing"], "cannot find 'nowhere:Thing'"),
        (["check", "own:Missing"], "cannot find 'own:Missing'"),
        (["check", "own:number"], "neither a coupling nor"),
        (["toy", "--num-samples", "3"], "num_samples of ARM must be even"),
    ],
)
def test_mistakes_are_one_line(folder: Path, words: list[str], message: str) -> None:
    result = run(*words, cwd=folder)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_unknown_flag_is_no_traceback() -> None:
    result = run("toy", "--repplicas", "3")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


def test_listing_and_toy() -> None:
    assert "arms-s" in run("estimators").stdout
    result = run("toy", "--num-samples", "4", "--replicas", "50")
    assert result.returncode == 0, result.stderr
    assert "arms-n" in result.stdout
