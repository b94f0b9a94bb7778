"""The documentation is true: its code runs, and its tables are what the committed results say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "midpoint.md"
RESULTS = ROOT / "benchmarks" / "results"


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_code_of_the_midpoint_page_runs(tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text("\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)))
    assert "arms.expectation" in script.read_text()
    run(str(script))


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        (
            ["benchmarks/time_to_bound.py", "show", "--output", str(RESULTS / "time_to_bound.json")],
            r"\| [a-z].*( ± | s \|)",
        ),
        (["benchmarks/vae_variance.py", "--markdown"], r"\| (midpoint|arms-s) \| [56] \|"),
        (["benchmarks/vae_variance.py", "--markdown"], r"\| (st|reinmax|concrete) \| 6 \| 6 \| .* ± "),
    ],
)
def test_its_tables_are_those_of_the_results(words: list[str], rows: str) -> None:
    lines = [line.strip() for line in run(*words).splitlines() if re.match(rows, line.strip())]
    assert len(lines) >= 2
    assert [line for line in lines if line not in PAGE.read_text()] == []


BOUND_PAGE = ROOT / "docs" / "bound.md"


def test_the_code_of_the_bounds_page_runs(tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text("\n".join(re.findall(r"```python\n(.*?)```", BOUND_PAGE.read_text(), flags=re.DOTALL)))
    assert "arms.multi_sample_bound" in script.read_text()
    run(str(script))


def test_tables_of_the_bounds_page_are_those_of_the_results() -> None:
    lines = [line for line in run("benchmarks/bound_variance.py", "--markdown").splitlines() if line.startswith("| ")]
    assert len(lines) > 20
    assert [line for line in lines if line not in BOUND_PAGE.read_text()] == []


def test_the_table_of_the_layers_page_is_that_of_the_results() -> None:
    lines = [line for line in run("benchmarks/layer_variance.py", "--markdown").splitlines() if line.startswith("| ")]
    assert len(lines) > 5
    page = (ROOT / "docs" / "layers.md").read_text()
    assert [line for line in lines if line not in page] == []
