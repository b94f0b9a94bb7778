"""The documentation is correct: its code runs, and its tables agree with the committed results."""

import json
import re
import shlex
import sys
from pathlib import Path
from statistics import fmean

import pytest
import torch
from generators import studies
from generators.measured import result
from myst_parser.slugs import github_slugify
from processes import completed

from arms.bench.cli import main, parse, verbs
from arms.bench.experiments import configs
from arms.bench.output import format_mean_std
from arms.bench.report.paper import all_printed
from arms.bench.runs.archives import find_runs
from arms.bench.runs.run import Run
from arms.bench.sweeps.reproduced import committed, page_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RESULTS = ROOT / "benchmarks" / "results"


def run(*words: str) -> str:
    done = completed([sys.executable, *words], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- code


def texts() -> dict[str, str]:
    """Return every page by its path."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for path in [ROOT / "README.md", *DOCS.rglob("*.md")]
    }


PAGES = texts()
OWN_MODELS = PAGES["docs/own_models.md"]
ELSEWHERE = ("docs/own_models.md", "docs/extending.md")
"""Pages whose code other tests run: below, and in test_guide.py."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
QUICKER = (("repeats=1000", "repeats=2"), ("repeats=100)", "repeats=2)"), ("fit(1000)", "fit(5)"))


def quicker(text: str) -> str:
    """Return a page that takes less time."""
    for slow, quick in QUICKER:
        text = text.replace(slow, quick)
    return text


@pytest.mark.parametrize(
    "page", [page for page, text in PAGES.items() if "```python" in text and page not in ELSEWHERE]
)
def test_the_code_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the blocks of a page in order, in one namespace. A text block after a code block is its output."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    printed = None
    with torch.random.fork_rng(devices=[]):
        for kind, code in BLOCK.findall(quicker(PAGES[page])):
            if kind == "python":
                exec(compile(code, page, "exec"), names)
                printed = " ".join(capsys.readouterr().out.split())
            elif kind == "text" and printed is not None:
                assert " ".join(code.split()) in printed
            if kind != "python":
                printed = None


def test_the_audit_of_the_page_can_be_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Write the file, audit it, repair it as the page explains, and audit it again."""
    found = dict(reversed(BLOCK.findall(PAGES["docs/audit.md"])))  # the first block of each kind
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(found["python"])
    audit = parse(verbs(), shlex.split(found["sh"])[1:])
    with pytest.raises(SystemExit, match="1"):
        audit()
    assert capsys.readouterr().out == found["text"]
    head, _, tail = found["python"].rpartition(".mean(0)")
    (tmp_path / "repaired.py").write_text(f"{head}.sum(0) / 3{tail}")
    parse(verbs(), ["audit", "repaired:estimator"])()
    assert "no bias seen" in capsys.readouterr().out


def commands(text: str) -> list[str]:
    """Return the commands of a page: those of its shell blocks, and in running text those with options."""
    lines = [
        line
        for kind, block in BLOCK.findall(text)
        if kind == "sh"
        for line in block.replace("\\\n", "").splitlines()
    ]
    lines += re.findall(r"`(arms [^`\n]*--[^`\n]*)`", text)
    return [
        part.strip()
        for line in lines
        for part in re.sub(r"(^|\s)#.*", "", line).split(";")
        if part.strip()
    ]


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if commands(text)])
def test_the_commands_of_a_page_can_be_parsed(page: str) -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for command in commands(PAGES[page]):
        words = [
            word for word in shlex.split(command) if word != "…" and not re.match(r"[A-Z_]+=", word)
        ]
        if words and words[0] == "make":
            assert words[1] in targets, command
        elif words and words[0] == "arms" and words[-1] == "--help":
            assert words[1] in verbs(), command
        elif words and words[0] == "arms":
            assert callable(parse(verbs(), words[1:])), command
        for script in re.findall(r"\S+\.py\b", command):
            assert (ROOT / script).exists() or (ROOT / page).with_name(script).exists(), command


def test_scripts_that_pages_name_exist() -> None:
    named = {
        script
        for text in PAGES.values()
        for script in re.findall(r"python\s+(benchmarks/\w+\.py)", text)
    }
    assert len(named) > 5
    assert [script for script in named if not (ROOT / script).is_file()] == []


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere_on_a_code_host(page: str) -> None:
    """The strict build checks these links in the site, where some have other targets."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        if anchor and not anchor.startswith("arms."):  # names of the API have places in the site
            titles = re.findall(r"^#+ (.*)$", target.read_text(), flags=re.MULTILINE)
            assert anchor in {github_slugify(title.replace("`", "")) for title in titles}, link


def test_the_page_of_the_bench_has_every_command() -> None:
    named = [" ".join(shlex.split(command)[1:3]) for command in commands(PAGES["docs/bench.md"])]
    assert [
        verb for verb in verbs() if not any(f"{name} ".startswith(f"{verb} ") for name in named)
    ] == []


def test_the_page_of_commands_counts_runs_rightly() -> None:
    text = PAGES["docs/reproducing.md"]
    assert f"one table, {len(configs('table1', 'laptop'))} runs" in text
    one, two = len(configs("table1", "paper")), len(configs("table2", "paper"))
    assert (
        f"Tables 1 and 3 have the same {one} runs, and tables 2 and 4 the same {two}, each with five seeds"
        in text
    )


# ---- tables


@pytest.mark.parametrize(
    ("page", "words", "rows"),
    [
        (
            "midpoint.md",
            [
                "benchmarks/time_to_bound.py",
                "show",
                "--output",
                str(RESULTS / "time_to_bound.json"),
            ],
            r"\| [a-z].* s \|",
        ),
        (
            "midpoint.md",
            ["benchmarks/vae_variance.py", "--markdown"],
            r"\| (midpoint|arms) \| [56] \|",
        ),
        (
            "categorical.md",
            [
                "benchmarks/categorical_training.py",
                "show",
                "--output",
                str(RESULTS / "categorical_training.json"),
            ],
            r"\| [a-z].* ± ",
        ),
        ("direct_term.md", ["benchmarks/direct_term.py", "show"], r"\|"),
        (
            "training.md",
            ["benchmarks/recipe_tables.py", "comparison"],
            r"\| (MNIST|Fashion|Omniglot), |\| (linear|nonlinear) \|",
        ),
        ("audit.md", ["benchmarks/audits.py", "--markdown"], r"\||arms audit"),
        ("rewards.md", ["benchmarks/best_of_variance.py", "--markdown"], r"\|"),
        ("distributed.md", ["benchmarks/sweep_overhead.py", "--markdown"], r"\|"),
    ],
)
def test_its_tables_are_those_of_the_results(page: str, words: list[str], rows: str) -> None:
    text = (DOCS / page).read_text()
    lines = [line.strip() for line in run(*words).splitlines() if re.match(rows, line.strip())]
    assert len(lines) >= 2
    assert [line for line in lines if line not in text] == []


def test_held_out_runs_have_the_settings_of_the_frozen_recipe() -> None:
    """Each estimator has its own recipe or the recipe of flips, and seeds that the search did not use."""
    recipe, compared, searched = (
        result(name) for name in ("recipe", "recipe_comparison", "recipe_search")
    )
    wanted = {
        (case, one["encoder_scale"], one["learning_rate"]) for case, one in recipe["recipe"].items()
    }
    assert len(compared["rows"]) > 50
    for row in compared["rows"]:
        target, shared = (
            ("bound", "flips-ms")
            if row["estimator"] in ("flips-ms", "vimco")
            else ("elbo", "flips")
        )
        case = f"{target} {row['network']} {row['steps']}"
        settings = row["encoder_scale"], row["learning_rate"]
        assert {(f"{case} {whose}", *settings) for whose in (row["estimator"], shared)} & wanted
    seen = {row["seed"] + i for row in searched["rows"] for i in range(row["replicas"])}
    new = {row["seed"] + i for row in compared["rows"] for i in range(row["replicas"])}
    assert not seen & new
    assert {row["dataset"] for row in searched["rows"]} == {"dynamic-mnist"}


def test_the_frozen_recipe_is_the_best_of_the_search() -> None:
    best: dict[str, tuple[float, float, float]] = {}
    for row in result("recipe_search")["rows"]:
        values = row["curve"][-1]["valid"]
        target = "bound" if row["estimator"] in ("flips-ms", "vimco") else "elbo"
        case = f"{target} {row['network']} {row['steps']} {row['estimator']}"
        if None not in values:
            found = (fmean(values), row["encoder_scale"], row["learning_rate"])
            best[case] = max(found, best.get(case, found))
    assert {case: one[1:] for case, one in best.items()} == {
        case: (one["encoder_scale"], one["learning_rate"])
        for case, one in result("recipe")["recipe"].items()
    }


@pytest.mark.parametrize("name", studies.STUDIES)
def test_a_page_of_measurements_is_what_its_script_prints(name: str) -> None:
    page = (DOCS / "measurements" / f"{name}.md").read_text()
    assert page.count("\n| ") > 10
    assert page == studies.STUDIES[name].page(), "python docs/generators"


# ---- docs/own_models.md: a user's afternoon, with fewer steps


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
    exec(
        compile(small("\n".join([model, *scripts])), "own_models.md", "exec"), {"__name__": "page"}
    )
    assert "Dataset('faces', 270 train" in capsys.readouterr().out
    (commands,) = re.findall(r"```sh\n(.*?)```", OWN_MODELS, flags=re.DOTALL)
    said = []
    for line in small(commands).splitlines():
        words = shlex.split(line)
        quick = {
            "train": ["--report-every", "10", "--evaluate", "30"],
            "variance": ["--repeats", "3"],
        }
        monkeypatch.setattr(sys, "argv", [*words, *quick.get(words[1], [])])
        main()
        said.append(capsys.readouterr().out)
    assert "runs/conv continues from step 20 to 30" in said[2]
    assert Run("runs/conv").config().steps == 30
    assert "shapes@" in said[3]
    page = Path("report.html").read_text()
    for title in (
        "conv, n = 4, 30 steps",
        "deep, tanh, n = 4, 30 steps",
        "faces, conv, n = 4, 20 steps",
    ):
        assert title in page


def test_steps_of_the_midpoint_page_take_what_was_measured() -> None:
    rows = result("train_step_slopes")["rows"]
    cpu = {(row["contender"].removesuffix(" R=1"), row["n"]): row["time / by hand"] for row in rows}
    tables = [("one CPU thread, linear", cpu)]
    for network in ("linear", "nonlinear"):
        rows = [row for row in result("gpu_slopes_r25")["rows"] if row["network"] == network]
        tables.append(
            (
                f"H200, 25 replicas, {network}",
                {(row["estimator"], row["n"]): row["us/step"] for row in rows},
            )
        )
    for case, times in tables:
        cells = " | ".join(f"{times['midpoint', 4] / times['loorf', n]:.2f}" for n in (5, 6))
        (line,) = [
            line for line in PAGES["docs/midpoint.md"].splitlines() if line.startswith(f"| {case} ")
        ]
        assert line.endswith(f" | {cells} |")


def test_what_couplings_take_off_the_variance_of_vaes_was_measured() -> None:
    taken = [
        1 - row["ratio"]
        for row in result("vae_variance")["rows"]
        if row["estimator"] in ("arms", "arms-dirichlet", "arms-gaussian")
        and row["budget"] == 6
        and row["steps"] > 1
    ]
    assert len(taken) == 12  # three estimators, two networks, after 2,000 and 20,000 steps
    words = f"at six samples by only {100 * min(taken):.0f}\u2013{100 * max(taken):.0f} %"
    assert words in " ".join(PAGES["docs/math/systematic.md"].split())


def test_the_table_of_the_layers_page_is_that_of_the_results() -> None:
    lines = [
        line
        for line in run("benchmarks/layer_variance.py", "--markdown").splitlines()
        if line.startswith("| ")
    ]
    assert len(lines) > 5
    page = (ROOT / "docs" / "layers.md").read_text()
    assert [line for line in lines if line not in page] == []


# ---- full runs

ELBO_NAMES = ("loorf", "disarm", "arms-dirichlet", "arms-gaussian", "arms")
BOUND_NAMES = ("vimco", "arms-ms-dirichlet", "disarm-ms")
MNIST_RUNS, MNIST_RUNS_ON_THE_BOUND = (
    [
        one
        for one in find_runs(ROOT / "results")
        if one.config().dataset == "dynamic-mnist" and one.config().estimator in names
    ]
    for names in (ELBO_NAMES, BOUND_NAMES)
)


def test_the_page_of_reproduced_numbers_is_that_of_the_results() -> None:
    assert page_of(committed(ROOT / "results")) == (DOCS / "reproduced.md").read_text()
    (covered,) = re.findall(r"\| all \| (\d+ \| \*\*\d+)\*\*", (DOCS / "reproduced.md").read_text())
    total, ours = covered.split(" | **")
    assert f"we recomputed {ours} of the paper's {total} numbers" in PAGES["README.md"]
    of_vimco = r"K = 100, test \|.*\|.*above in (\d+) of (\d+) \|.*\|"
    (disarm, count) = re.findall(of_vimco, (DOCS / "reproduced.md").read_text())[0]
    assert (
        f"the highest bound at K = 100 in {int(count) - int(disarm)} of {count} settings"
        in PAGES["docs/bound.md"]
    )
    assert (
        f"compares these runs with the paper's numbers, {ours} of {total}"
        in PAGES["docs/full_runs.md"]
    )
    assert f"that they cover beside ours, {ours} of {total}" in (ROOT / "CHANGELOG.md").read_text()
    # By hand: -0.25 / sqrt((0.30**2 + 0.05**2) / 5) = -1.8.
    by_hand = "| 4 | `disarm` | 2 | -113.26 ± 0.05 | -113.51 ± 0.30 | -0.25 (-1.8) |".replace(
        "-", "\u2212"
    )
    assert by_hand in (DOCS / "reproduced.md").read_text()


def test_a_column_of_the_paper_is_there_twice() -> None:
    found = all_printed()
    alike = [
        number.mean == found[*key[:4], "disarm"].mean
        for key, number in found.items()
        if key[4] == "disarm-ms (unfolded)" and number.table == 2
    ]
    assert f"in {sum(alike)} of {len(alike)} rows" in PAGES["docs/released_code.md"]


def bound(one: Run, split: str, count: int) -> str:
    result = one.result()
    assert result is not None
    return (
        format_mean_std(result["bounds"][split][str(count)])
        .replace("-", "\u2212")
        .replace("±", "± ")
    )


def test_the_tables_of_full_runs_are_those_of_the_results() -> None:
    lines = PAGES["docs/full_runs.md"].splitlines()
    assert (len(MNIST_RUNS), len(MNIST_RUNS_ON_THE_BOUND)) == (24, 15)
    for one in [*MNIST_RUNS, *MNIST_RUNS_ON_THE_BOUND]:
        config = one.config()
        start = f"| {config.network} `{config.label}` | "
        ours = [bound(one, split, k) for split, k in (("train", 1), ("train", config.num_samples))]
        ends = [bound(one, split, k) for split, k in (("test", config.num_samples), ("test", 100))]
        (row,) = [line for line in lines if line.startswith(start + " | ".join(ours) + " | ")]
        assert row.endswith(f" | {' | '.join(ends)} |")


def in_print(network: str, n: int, estimator: str) -> str:
    """Return a number of the paper on the training set, or "" if there is none."""
    number = all_printed().get(("dynamic-mnist", network, n, "train", estimator))
    return f"{number.mean:.2f} ± {number.plus_minus:.2f}".replace("-", "\u2212") if number else ""


def test_numbers_of_the_paper_in_full_runs_are_those_printed() -> None:
    page = PAGES["docs/full_runs.md"]
    for one in [*MNIST_RUNS, *MNIST_RUNS_ON_THE_BOUND]:
        config = one.config()
        shown = config.estimator not in ("disarm", "disarm-ms")
        wanted = in_print(config.network, config.num_samples, config.label) if shown else ""
        printed = {"loorf", "arms-dirichlet", "arms-gaussian", "vimco"}
        assert bool(wanted) == (config.label in {*printed, "arms-ms-dirichlet (unfolded)"})
        start = f"| {config.network} `{config.label}` | {bound(one, 'train', 1)} | "
        (row,) = [line for line in page.splitlines() if line.startswith(start)]
        assert row.split("|")[4].strip() == wanted
    heading, _, *rows = page[page.index("| train K = n/2 |") :].splitlines()
    cases = re.findall(r"(\w+), n = (\d+)", heading)
    disarm = {
        (one.config().network, one.config().num_samples): one
        for one in MNIST_RUNS
        if one.config().estimator == "disarm"
    }
    assert len(cases) == len(disarm) == 5
    ours = [bound(disarm[network, int(n)], "train", int(n) // 2) for network, n in cases]
    theirs = [in_print(network, int(n), "disarm") for network, n in cases]
    assert rows == [f"| `disarm` | {' | '.join(ours)} |", f"| paper | {' | '.join(theirs)} |"]


def last_variance(network: str, n: int, estimator: str) -> float:
    """Return the mean of the last ten records, which are five points in an archive."""
    wanted = (network, n, estimator)
    (found,) = [
        one
        for one in MNIST_RUNS
        if (one.config().network, one.config().num_samples, one.config().estimator) == wanted
    ]
    return fmean(value for record in found.metrics()[-5:] for value in record["gradient_variance"])


@pytest.mark.parametrize("network", ["linear", "nonlinear"])
@pytest.mark.parametrize("n", [4, 10])
def test_the_ratios_of_gradient_variances_are_those_of_the_results(network: str, n: int) -> None:
    loorf = last_variance(network, n, "loorf")
    names = ("disarm", "arms-dirichlet", "arms-gaussian", "arms")
    ratios = [f"{last_variance(network, n, name) / loorf:.2f}" for name in names]
    assert f"\n| {network}, n = {n} | {' | '.join(ratios)} |\n" in PAGES["docs/full_runs.md"]


def test_right_functions_are_called_biased_at_the_declared_rate() -> None:
    found = json.loads((RESULTS / "audit_calibration.json").read_text())
    audits, alarms = (sum(row[key] for row in found["rows"]) for key in ("audits", "alarms"))
    assert (audits, found["rate"]) == (200, 0.05)
    assert 4 <= alarms <= 16
    words = f"in {audits} audits of correct functions at a failure rate of 0.05, {alarms} ended"
    assert words in " ".join(PAGES["docs/audit.md"].split())


@pytest.mark.parametrize(
    "path", sorted((ROOT / "benchmarks" / "results").glob("*.json")), ids=lambda path: path.stem
)
def test_a_committed_measurement_says_what_made_it(path: Path) -> None:
    command = json.loads(path.read_text())["command"]
    if command == "make peers":
        assert "\npeers:" in (ROOT / "Makefile").read_text()
        return
    script = re.match(r"python (benchmarks/\w+\.py)\b", command)
    assert script is not None
    assert (ROOT / script[1]).is_file()


def test_a_committed_run_says_what_made_it() -> None:
    runs = list(find_runs(ROOT / "results"))
    assert len(runs) == 115
    assert all(run.provenance()["command"] for run in runs)
