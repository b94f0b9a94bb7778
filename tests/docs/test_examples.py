"""The examples run at a small scale, and their pages agree with the committed results."""

import json
import re
import sys
from pathlib import Path

import pytest
from processes import completed

ROOT = Path(__file__).parents[2]
EXAMPLES, PAGES = ROOT / "examples", ROOT / "docs" / "examples"

SMALL = {
    "bandit": (["--rounds", "20"], r"arms +(\d+\.\d\d *){11}"),
    "belief_network": (["--steps", "3"], r"arms +one for each layer +-\d+\.\d\d"),
    "categorical_codes": (["--steps", "3"], r"9  [a-p]{6}"),
    "discrete_vae": (["--steps", "3"], r"test ELBO: -\d+\.\d\d nats"),
    "gumbel_vae": (["--steps", "3"], r"test ELBO: -\d+\.\d\d nats"),
    "resnet_gates": (["--steps", "3"], r"accuracy 0\.\d{3} with \d\.\d of 5 blocks"),
    "gates": (["--steps", "3", "--rates", "0.03"], r"shared +reinmax +0\.03 +-\d\.\d{3} +0\.\d{3}"),
    "best_of_k": (["--steps", "3"], r"GRPO +0\.\d{3} ± 0\.000 +0\.\d{3}"),
    "best_subset": (["--steps", "3"], r"SubsetSelector +10 +0\.\d{3} +0\.\d{3}"),
}


def run(*words: str) -> str:
    done = completed([sys.executable, *words], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", SMALL)
def test_an_example_runs(name: str) -> None:
    words, last = SMALL[name]
    assert re.search(last, run(f"examples/{name}.py", *words))


def test_every_example_is_tried_and_in_the_table_with_a_page_that_is_there() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == set(SMALL)
    index = (PAGES / "index.md").read_text()
    assert set(re.findall(r"\(\.\./\.\./examples/(\w+)\.py\)", index)) == names
    assert all((PAGES / page).is_file() for page in re.findall(r"\((\w+\.md)\)", index))


def test_examples_are_short() -> None:
    assert {
        path.stem: n
        for path in EXAMPLES.glob("*.py")
        if (n := len(path.read_text().splitlines())) > 100
    } == {}


# ---- Numbers


def test_the_tables_of_subset_selection_are_those_of_the_results() -> None:
    lines = [
        line
        for line in run("benchmarks/subset_selection.py", "--markdown").splitlines()
        if line[:2] == "| "
    ]
    assert len(lines) > 60
    page = (PAGES / "subset_selection.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert len(rows) > 20
    assert [row for row in rows if row not in lines] == []


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    blocks = re.findall(
        r"```python\n(.*?)```", (PAGES / "subset_selection.md").read_text(), flags=re.DOTALL
    )
    script.write_text("\n".join(blocks).replace("random_state=0", "random_state=0, max_iter=5"))
    assert "SubsetSelector" in script.read_text()
    run(str(script))


def test_the_selector_finds_the_true_subset_more_often_than_lasso() -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "subset_selection.json").read_text())[
        "synthetic"
    ]
    found = {(row["correlation"], row["snr"], row["method"]): row["F1"] for row in rows}
    cases = {key[:2] for key in found}
    assert len(cases) == 6
    assert all(found[*case, "SubsetSelector"] > found[*case, "lasso"] for case in cases)


def test_the_table_of_best_of_k_is_that_of_the_results() -> None:
    result = json.loads((EXAMPLES / "results" / "best_of_k.json").read_text())
    page = (ROOT / "docs" / "rewards.md").read_text()
    assert result["command"] in page
    for row in result["rows"]:
        mean = f"{row['mean']:.3f} ± {row['std']:.3f}"
        best = f"{row['pass4']:.3f} ± {row['pass4_std']:.3f}"
        assert f"{mean} | {best} |" in page


def test_the_page_of_gates_has_the_commands_of_its_results() -> None:
    page = (PAGES / "gates.md").read_text()
    for path in (EXAMPLES / "results").glob("gates_*.json"):
        result = json.loads(path.read_text())
        assert f"{result['command']}\n" in page
        assert len(result["rows"]) == 16
        assert all(len(row["test"]) == 5 for row in result["rows"])
