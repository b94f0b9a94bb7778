"""The documentation is true: its code runs, and its tables are what the committed results say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RESULTS = ROOT / "benchmarks" / "results"


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", ["midpoint.md", "categorical.md"])
def test_the_code_of_a_page_runs(page: str, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text("\n".join(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)))
    assert "arms.expectation" in script.read_text()
    run(str(script))


@pytest.mark.parametrize(
    ("page", "words", "rows"),
    [
        (
            "midpoint.md",
            ["benchmarks/time_to_bound.py", "show", "--output", str(RESULTS / "time_to_bound.json")],
            r"\| [a-z].*( ± | s \|)",
        ),
        ("midpoint.md", ["benchmarks/vae_variance.py", "--markdown"], r"\| (midpoint|arms-s) \| [56] \|"),
        ("midpoint.md", ["benchmarks/vae_variance.py", "--markdown"], r"\| (st|reinmax|concrete) \| 6 \| 6 \| .* ± "),
        ("categorical.md", ["benchmarks/categorical_variance.py", "--markdown"], r"\||.*: half of the ratios"),
    ],
)
def test_its_tables_are_those_of_the_results(page: str, words: list[str], rows: str) -> None:
    text = (DOCS / page).read_text()
    lines = [line.strip() for line in run(*words).splitlines() if re.match(rows, line.strip())]
    assert len(lines) >= 2
    assert [line for line in lines if line not in text] == []
