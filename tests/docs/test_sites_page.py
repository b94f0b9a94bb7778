"""The page on sampling sites: its diffs are applied to the example, and the results train."""

import json
import re
import sys
from pathlib import Path

import pytest
from processes import completed

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sites.md").read_text()
MODEL = (ROOT / "examples" / "gumbel_vae.py").read_text()
DIFFS = re.findall(r"^```diff\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)


def changed(text: str, difference: str) -> str:
    """Replace every removed line by the added lines after it; first come lines of the head."""
    head, *rest = re.split(r"^-", difference, flags=re.MULTILINE)
    for part in rest:
        removed, *added = part.splitlines()
        assert text.count(f"{removed}\n") == 1, removed
        text = text.replace(f"{removed}\n", "".join(f"{line[1:]}\n" for line in added))
    first = "import torch\n"
    return text.replace(first, "".join(f"{one[1:]}\n" for one in head.splitlines()) + first, 1)


def elbo(script: Path, steps: int) -> float:
    done = completed([sys.executable, str(script), "--steps", str(steps)], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return float(re.findall(r"test ELBO: (-\d+\.\d\d) nats", done.stdout)[0])


def test_the_model_is_not_ours_and_short() -> None:
    assert "arms" not in re.sub(r'""".*?"""', "", MODEL, flags=re.DOTALL)
    assert len(MODEL.splitlines()) <= 60
    assert len(DIFFS) == 2
    assert f"```diff\n{DIFFS[1]}```" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("difference", DIFFS)
def test_a_diff_changes_at_most_five_lines_and_trains(difference: str, tmp_path: Path) -> None:
    assert sum(line.startswith("+") for line in difference.splitlines()) <= 5
    script = tmp_path / "gumbel_vae.py"
    script.write_text(changed(MODEL, difference))
    assert script.read_text() != MODEL
    assert elbo(script, 400) > elbo(script, 2) + 10


def test_the_overhead_is_what_was_measured() -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "sites_overhead.json").read_text())
    ratios = [row["ratio"] for row in rows["results"]]
    assert max(ratios) <= 1.15
    assert f"takes {min(ratios):.1f} to {max(ratios):.1f} times as long" in PAGE


@pytest.mark.parametrize("task", ["gates", "tokenizer", "router"])
def test_tables_of_the_modules_are_those_of_the_results(task: str) -> None:
    show = [sys.executable, "benchmarks/sites_training.py", "show", task]
    done = completed(show, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") >= 9
    assert done.stdout in (ROOT / "docs" / "nn.md").read_text()
