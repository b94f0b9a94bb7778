"""The documentation is true: its code runs, and its tables are what the committed results say."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

from arms.bench.cli import main
from arms.bench.formatting import format_mean_std
from arms.bench.runs.directory import Run
from arms.bench.runs.packs import find_runs

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
        (
            "categorical.md",
            ["benchmarks/categorical_training.py", "show", "--output", str(RESULTS / "categorical_training.json")],
            r"\| [a-z].* ± ",
        ),
        ("distributed.md", ["benchmarks/sweep_overhead.py", "--markdown"], r"\|"),
    ],
)
def test_its_tables_are_those_of_the_results(page: str, words: list[str], rows: str) -> None:
    text = (DOCS / page).read_text()
    lines = [line.strip() for line in run(*words).splitlines() if re.match(rows, line.strip())]
    assert len(lines) >= 2
    assert [line for line in lines if line not in text] == []


# ---- docs/own_models.md: a user's afternoon, with fewer steps


OWN_MODELS = (ROOT / "docs" / "own_models.md").read_text()


def small(text: str) -> str:
    return text.replace("2000", "20").replace("3000", "30").replace("evaluate=500", "evaluate=20")


def test_the_page_on_own_models_is_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, *scripts = re.findall(r"```python\n(.*?)```", OWN_MODELS, flags=re.DOTALL)
    (tmp_path / "nets.py").write_text(model)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    exec(compile(small("\n".join([model, *scripts])), "own_models.md", "exec"), {"__name__": "page"})
    assert "Dataset('faces', 270 train" in capsys.readouterr().out
    (commands,) = re.findall(r"```sh\n(.*?)```", OWN_MODELS, flags=re.DOTALL)
    said = []
    for line in small(commands).splitlines():
        words = shlex.split(line)
        quick = {"train": ["--report-every", "10", "--evaluate", "30"], "variance": ["--repeats", "3"]}
        monkeypatch.setattr(sys, "argv", [*words, *quick.get(words[1], [])])
        main()
        said.append(capsys.readouterr().out)
    assert "runs/conv goes on from step 20 to 30" in said[2]
    assert Run("runs/conv").config().steps == 30
    assert "shapes@" in said[3]
    page = Path("report.html").read_text()
    for title in ("conv, n = 4, 30 steps", "deep, tanh, n = 4, 30 steps", "faces, conv, n = 4, 20 steps"):
        assert title in page


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


# ---- full runs

MNIST_RUNS = [one for one in find_runs(ROOT / "results") if one.config().dataset == "dynamic-mnist"]


def test_the_page_of_reproduced_numbers_is_what_its_script_prints() -> None:
    assert run("benchmarks/reproduced.py") == (DOCS / "reproduced.md").read_text()
    (covered,) = re.findall(r"\| all \| (\d+ \| \*\*\d+)\*\*", (DOCS / "reproduced.md").read_text())
    total, ours = covered.split(" | **")
    assert f"that they cover, {ours} of {total}, beside ours" in (ROOT / "README.md").read_text()
    # By hand: -0.25 / sqrt((0.30**2 + 0.05**2) / 5) = -1.8.
    by_hand = "| 4 | `disarm` | 2 | -113.26 ± 0.05 | -113.51 ± 0.30 | -0.25 (-1.8) |".replace("-", "\u2212")
    assert by_hand in (DOCS / "reproduced.md").read_text()


def bound(one: Run, split: str, count: int) -> str:
    result = one.result()
    assert result is not None
    return format_mean_std(result["bounds"][split][str(count)]).replace("-", "\u2212").replace("±", "± ")


def test_the_tables_of_full_runs_are_those_of_the_results() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(MNIST_RUNS) == 20
    for one in MNIST_RUNS:
        config = one.config()
        start = f"| {config.network} `{config.estimator}` | "
        ours = [bound(one, split, k) for split, k in (("train", 1), ("train", config.num_samples))]
        ends = [bound(one, split, k) for split, k in (("test", config.num_samples), ("test", 100))]
        (row,) = [line for line in lines if line.startswith(start + " | ".join(ours) + " | ")]
        assert row.endswith(f" | {' | '.join(ends)} |")


def last_variance(network: str, n: int, estimator: str) -> float:
    """Return the mean of the last ten records, which are five points in a pack."""
    wanted = (network, n, estimator)
    (found,) = [
        one for one in MNIST_RUNS if (one.config().network, one.config().num_samples, one.config().estimator) == wanted
    ]
    return fmean(value for record in found.metrics()[-5:] for value in record["gradient_variance"])


@pytest.mark.parametrize("network", ["linear", "nonlinear"])
@pytest.mark.parametrize("n", [4, 10])
def test_the_ratios_of_gradient_variances_are_those_of_the_results(network: str, n: int) -> None:
    loorf = last_variance(network, n, "loorf")
    names = ("disarm", "arms-d", "arms-n", "arms-s")
    ratios = [f"{last_variance(network, n, name) / loorf:.2f}" for name in names]
    assert f"\n| {network}, n = {n} | {' | '.join(ratios)} |\n" in (ROOT / "README.md").read_text()
