"""Reports on hand-made run directories: what is marked, what is compared, what is escaped, what is skipped."""

import csv
import json
import math
import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from arms.cli import reporting
from arms.estimators import ESTIMATORS
from arms.reports import build_report, collect
from arms.reports.collect import RunData
from arms.reports.curves import MOST_POINTS, QUANTITIES, Curve, Plot, plots
from arms.reports.groups import Group, group_runs
from arms.reports.page import figure_data, script_json
from arms.reports.paper import printed, released_count
from arms.reports.style import DASHES, MARKERS, STYLES
from arms.reports.tables import Cell, Stat, Table, beside_paper, comparison, mark_best, overview, summarise
from arms.reports.written import comma_separated, latex, markdown
from arms.runs import Run
from arms.training import TrainConfig

EVIL = "<script>alert(1)</script>"
PNG = b"\x89PNG\r\n\x1a\nrest"
Bounds = Mapping[str, Mapping[int, Sequence[float]]]


def bounds_of(config: TrainConfig, level: float = -100.0, spread: float = 1.0) -> Bounds:
    """Bounds that tell split and K from each other: train ends in .1, test in .2, and K is added."""
    values = [spread * (r - (config.replicas - 1) / 2) for r in range(config.replicas)]
    n = config.num_samples
    counts = {"train": (1, n // 2, n), "test": (1, n // 2, n, 100)}
    decimals = {"train": 0.1, "test": 0.2}
    return {split: {k: [level + k + decimals[split] + v for v in values] for k in counts[split]} for split in counts}


def make_run(
    path: Path, config: TrainConfig, bounds: Bounds | None = None, reports: int = 5, note: str = "", finish: bool = True
) -> Run:
    run = Run.create(path, config)
    for step in range(1, reports + 1):
        values = [-100.0 + step + r for r in range(config.replicas)]
        run.report({"step": step, "train_elbo": values, "gradient_variance": [10.0**-step] * config.replicas})
    if finish:
        found = bounds_of(config) if bounds is None else bounds
        run.finish({"steps": config.steps, "note": note, "bounds": found})
    return run


def groups_of(*paths: Path) -> list[Group]:
    return group_runs(collect(paths).runs)


def table_of(folder: Path) -> Table:
    (group,) = groups_of(folder)
    table = comparison(group, "name")
    assert table is not None
    return table


def column(table: Table, heading: str) -> dict[str, Cell]:
    place = list(table.columns).index(heading)
    return {label: cells[place] for label, cells in table.rows}


class Tags(HTMLParser):
    """Every element of a page, and the text that a reader sees."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.shown: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.shown.append(data)


# ---- the best


def test_best_is_the_highest_and_what_lies_within_the_standard_error() -> None:
    # standard errors of the difference: sqrt(1/4 + 1/4) = 0.707 to the second and third
    top, near, far = Stat(-10.0, 1.0, 4), Stat(-10.7, 1.0, 4), Stat(-10.72, 1.0, 4)
    assert [cell.best for cell in mark_best([far, top, near])] == [False, True, True]


def test_more_replicas_make_the_mark_stricter() -> None:
    assert [cell.best for cell in mark_best([Stat(-10.0, 1.0, 4), Stat(-10.7, 1.0, 4)])] == [True, True]
    assert [cell.best for cell in mark_best([Stat(-10.0, 1.0, 40), Stat(-10.7, 1.0, 40)])] == [True, False]


def test_what_is_never_best() -> None:
    single, diverged = Stat(0.0, None, 1), summarise([1.0, math.inf])
    assert not math.isfinite(diverged.mean)
    assert "not finite" in str(diverged)
    cells = mark_best([single, diverged, None, Stat(-10.0, 0.1, 4), Stat(-12.0, 0.1, 4)])
    assert [cell.best for cell in cells] == [False, False, False, True, False]
    assert not mark_best([Stat(-10.0, 1.0, 4), None])[0].best


def test_standard_deviation_is_the_samples() -> None:
    stat = summarise([-1.0, -2.0, -6.0])
    assert stat.mean == pytest.approx(-3.0)
    assert stat.std == pytest.approx(math.sqrt(7.0))
    assert summarise([-1.0]).std is None


# ---- columns and groups


def test_columns_never_mix_k(tmp_path: Path) -> None:
    for estimator in ("arms-s", "disarm", "loorf"):
        make_run(tmp_path / estimator, TrainConfig(estimator=estimator, num_samples=4, replicas=2))
    table = table_of(tmp_path)
    assert list(table.columns) == ["train K=1", "train K=4 (=n)", "test K=1", "test K=4 (=n)", "test K=100"]
    expected = {
        "train K=1": -98.9,
        "train K=4 (=n)": -95.9,
        "test K=1": -98.8,
        "test K=4 (=n)": -95.8,
        "test K=100": 0.2,
    }
    for heading, mean in expected.items():
        cells = column(table, heading)
        assert set(cells) == {"loorf, R=2", "disarm, R=2", "arms-s, R=2"}
        for cell in cells.values():
            assert cell.stat is not None
            assert cell.stat.mean == pytest.approx(mean), heading


def test_a_missing_k_is_left_empty_not_replaced(tmp_path: Path) -> None:
    make_run(tmp_path / "a", TrainConfig(estimator="loorf", replicas=2))
    partial = {"train": {1: [-90.0, -91.0]}, "test": {1: [-92.0, -93.0], 2: [-80.0, -81.0]}}
    make_run(tmp_path / "b", TrainConfig(estimator="arms-s", replicas=2), partial)
    table = table_of(tmp_path)
    assert column(table, "train K=4 (=n)")["arms-s, R=2"].stat is None
    assert column(table, "train K=1")["arms-s, R=2"].stat is not None
    assert not any("K=2" in heading for heading in table.columns)


def test_only_comparable_runs_share_a_table(tmp_path: Path) -> None:
    base = TrainConfig(replicas=2)
    changes: list[dict[str, Any]] = [
        {},
        {"dataset": "omniglot"},
        {"network": "nonlinear"},
        {"num_samples": 6},
        {"steps": 7},
        {"decoder_samples": "extra"},
    ]
    for index, change in enumerate(changes):
        make_run(tmp_path / str(index), TrainConfig(**{**base.__dict__, **change}))
    groups = groups_of(tmp_path)
    assert len(groups) == len(changes)
    table = overview(groups, "overview")
    assert table is not None
    assert len(table.rows) == len(changes)


def test_overview_says_only_what_differs(tmp_path: Path) -> None:
    for n in (4, 6):
        for estimator, level in (("loorf", -100.0), ("arms-s", -90.0)):
            config = TrainConfig(estimator=estimator, num_samples=n, replicas=2)
            make_run(tmp_path / f"{estimator}{n}", config, bounds_of(config, level))
    table = overview(groups_of(tmp_path), "overview")
    assert table is not None
    assert table.title == "test K=100, digits, linear, 10,000 steps, decoder on all samples"
    assert [label for label, _ in table.rows] == ["n = 4", "n = 6"]
    assert [[cell.best for cell in cells] for _, cells in table.rows] == [[False, True]] * 2


def test_seeds_are_pooled_and_other_differences_are_rows(tmp_path: Path) -> None:
    make_run(tmp_path / "a", TrainConfig(seed=0, replicas=2))
    make_run(tmp_path / "b", TrainConfig(seed=1, replicas=3))
    make_run(tmp_path / "c", TrainConfig(seed=0, replicas=2, learning_rate=1e-3))
    labels = {label for label, _ in table_of(tmp_path).rows}
    assert labels == {"arms-s (learning_rate 0.0001), R=5", "arms-s (learning_rate 0.001), R=2"}


def test_a_copy_of_a_run_is_not_more_evidence(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_run(tmp_path / name, TrainConfig(replicas=2))
    found = collect([tmp_path, tmp_path / "a"])
    assert len(found.runs) == 1
    (problem,) = found.problems
    assert "same configuration" in problem.what


# ---- the paper


def test_printed_numbers_stand_beside_ours(tmp_path: Path) -> None:
    for estimator in ("arms-d", "disarm", "arms-s"):
        config = TrainConfig("dynamic-mnist", "linear", estimator, 4, replicas=2, steps=1_000_000)
        make_run(tmp_path / estimator, config)
    (group,) = groups_of(tmp_path)
    by_n, by_half = beside_paper(group, "name")
    assert "K = n = 4" in by_n.title
    ours, paper = column(by_n, "train K=4, ours"), column(by_n, "train, paper's table 1")
    assert str(ours["arms-d, R=2"]) == "\u221295.90 ± 0.71"
    assert str(paper["arms-d, R=2"]) == "\u2212112.13 ± 0.10"
    assert paper["arms-s, R=2"].stat is None
    assert str(column(by_n, "test, paper's table 3")["arms-d, R=2"]) == "\u2212111.57 ± 0.13"
    assert [label for label, _ in by_half.rows] == ["disarm, R=2"]
    assert str(column(by_half, "train K=2, ours")["disarm, R=2"]) == "\u221297.90 ± 0.71"
    assert str(column(by_half, "train, paper's table 1")["disarm, R=2"]) == "\u2212113.26 ± 0.05"
    assert any("not certain" in caveat for caveat in by_half.caveats)
    assert any("decoder_samples all (paper: extra)" in caveat for caveat in by_n.caveats)


def test_paper_numbers_are_all_there(tmp_path: Path) -> None:
    make_run(tmp_path / "a", TrainConfig("omniglot", "linear", "disarm-ms", 8, replicas=2))
    (group,) = groups_of(tmp_path)
    (table,) = beside_paper(group, "name")
    said = " ".join(table.caveats)
    assert "repeats table 1's DisARM column" in said
    assert "steps 10000 (paper: 1000000)" in said
    multi = printed(group.setting, "arms-ms-d", "train")
    assert multi is not None
    assert (multi.table, multi.mean) == (2, -118.40)
    assert printed(group.setting, "arms-s", "train") is None
    assert [released_count(name, 10) for name in ("loorf", "vimco", "relax", "arms-ms-d")] == [10, 10, 5, 5]


def test_no_paper_table_where_nothing_is_printed(tmp_path: Path) -> None:
    make_run(tmp_path / "a", TrainConfig("digits", replicas=2))
    (group,) = groups_of(tmp_path)
    assert beside_paper(group, "name") == []


# ---- broken runs


def test_broken_runs_are_listed_and_skipped(tmp_path: Path) -> None:
    make_run(tmp_path / "fine", TrainConfig(replicas=2))
    make_run(tmp_path / "unfinished", TrainConfig(seed=1, replicas=2, steps=50), reports=3, finish=False)
    make_run(tmp_path / "half-line", TrainConfig(seed=2, replicas=2))
    with (tmp_path / "half-line" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "train_elbo": [1.0')
    make_run(tmp_path / "bad-result", TrainConfig(seed=3, replicas=2))
    (tmp_path / "bad-result" / "result.json").write_text("{")
    make_run(tmp_path / "wrong-count", TrainConfig(seed=4, replicas=2), {"train": {1: [1.0]}})
    (tmp_path / "bad-config").mkdir()
    (tmp_path / "bad-config" / "config.json").write_text('{"estimator": "none-such"}')
    (tmp_path / "no-config").mkdir()
    (tmp_path / "no-config" / "result.json").write_text("{}")
    (tmp_path / "odd-config").mkdir()
    (tmp_path / "odd-config" / "config.json").write_text('{"dataset": ["digits"]}')
    found = build_report([tmp_path, tmp_path / "missing"], tmp_path / "out" / "report.html")
    said = {Path(problem.where).name: problem.what for problem in found.problems}
    assert said.keys() == {
        *("unfinished", "half-line", "bad-result", "wrong-count", "bad-config", "no-config", "odd-config", "missing")
    }
    assert "3 of 50 steps" in said["unfinished"]
    assert "1 of 6 lines" in said["half-line"]
    assert "broken" in said["bad-result"]
    assert "2 numbers" in said["wrong-count"]
    assert "no estimator is called 'none-such'" in said["bad-config"]
    assert "must give dataset as a string" in said["odd-config"]
    assert "no such directory" in said["missing"]
    assert {run.path.name for run in found.runs} == {"fine", "half-line", "unfinished"}
    page = (tmp_path / "out" / "report.html").read_text()
    assert all(name in page for name in said)


def test_nothing_at_all_still_makes_a_page(tmp_path: Path) -> None:
    found = build_report([tmp_path / "missing"], tmp_path / "report.html")
    assert not found.runs
    assert "no such directory" in (tmp_path / "report.html").read_text()


def test_a_page_must_be_a_page(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be a file.*report\.html"):
        build_report([], tmp_path)
    with pytest.raises(ValueError, match=r"must be an \.html file"):
        build_report([], tmp_path / "report.pdf")


# ---- the page


def evil_report(folder: Path) -> str:
    config = TrainConfig(dataset=EVIL, network=EVIL, replicas=2)  # type: ignore[arg-type]
    make_run(folder / "runs" / EVIL.replace("/", "_"), config, note=f"note {EVIL}")
    make_run(folder / "runs" / "<img src=x>", TrainConfig(seed=1, network=EVIL), finish=False)  # type: ignore[arg-type]
    (folder / "runs" / "<b>broken").mkdir()
    (folder / "runs" / "<b>broken" / "config.json").write_text(json.dumps({"estimator": EVIL}))
    build_report([folder / "runs", folder / EVIL], folder / "report.html")
    return (folder / "report.html").read_text()


def test_text_from_outside_is_escaped_everywhere(tmp_path: Path) -> None:
    page = evil_report(tmp_path)
    assert EVIL not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    parsed = Tags(page)
    assert [tag for tag, _ in parsed.tags].count("script") == 3
    assert not any(tag == "img" for tag, _ in parsed.tags)
    for file in (tmp_path / "report_files").iterdir():
        assert re.fullmatch(r"[a-z0-9.-]+", file.name)
        assert EVIL not in file.read_text(errors="replace") or file.suffix in (".csv", ".tex")
    for file in (tmp_path / "report_files").glob("*.tex"):
        body = [line for line in file.read_text().splitlines() if not line.startswith("%")]
        assert EVIL not in "\n".join(body)


def test_embedded_json_cannot_end_its_script() -> None:
    text = script_json({"name": "</script><!--", "more": "&amp;"})
    assert "<" not in text
    assert json.loads(text) == {"name": "</script><!--", "more": "&amp;"}
    with pytest.raises(ValueError, match="Out of range"):
        script_json([math.nan])


def test_names_of_curves_are_escaped_for_plotly_too() -> None:
    curve = Curve(f"arms-s ({EVIL})", "arms-s", 2, [1, 2], [-2.0, -1.0], [0.1, 0.1])
    text = json.dumps(figure_data(Plot(QUANTITIES[0], [curve])))
    assert "<" not in text
    assert "&lt;script&gt;" in text


def test_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "a", TrainConfig(replicas=2), note="a note on the data")
    (run.path / "samples.png").write_bytes(PNG)
    make_run(tmp_path / "runs" / "b", TrainConfig(estimator="loorf"))
    (tmp_path / "runs" / "b" / "samples.png").write_bytes(b"no picture")
    found = build_report([tmp_path / "runs"], tmp_path / "report.html")
    parsed = Tags((tmp_path / "report.html").read_text())
    for tag, attributes in parsed.tags:
        assert tag != "script" or "src" not in attributes
        for name in ("src", "href"):
            assert not re.match(r"(https?:)?//", attributes.get(name) or "")
    pictures = [attributes["src"] for tag, attributes in parsed.tags if tag == "img"]
    assert len(pictures) == 1
    assert str(pictures[0]).startswith("data:image/png;base64,")
    assert [problem.what for problem in found.problems] == ["samples.png is no PNG file; left out"]
    text = " ".join(parsed.shown)
    assert "2 runs · 3 replicas · data: digits" in text
    assert "a note on the data" in text


def test_files_beside_the_page_are_linked_and_there(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a", TrainConfig("dynamic-mnist", replicas=2, estimator="arms-d"))
    make_run(tmp_path / "runs" / "b", TrainConfig("dynamic-mnist", replicas=2, estimator="loorf"))
    build_report([tmp_path / "runs"], tmp_path / "page.html")
    links = [a["href"] for tag, a in Tags((tmp_path / "page.html").read_text()).tags if tag == "a"]
    assert {Path(str(link)).suffix for link in links} == {".md", ".tex", ".csv", ".pdf", ".svg"}
    assert all((tmp_path / str(link)).stat().st_size > 0 for link in links)
    build_report([tmp_path / "runs"], tmp_path / "bare.html", files=False)
    assert not (tmp_path / "bare_files").exists()


def test_verb_tells_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "runs" / "a", TrainConfig(replicas=2))
    reporting.report((tmp_path / "runs", tmp_path / "[bold]none"), output=tmp_path / "page.html", files=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "1 run · 2 replicas · data: digits" in said
    assert "[bold]none" in said
    assert (tmp_path / "page.html").exists()
    with pytest.raises(ValueError, match="name at least one run directory"):
        reporting.report(())


# ---- tables as files


def test_written_tables() -> None:
    cells = [Cell(Stat(-1.25, 0.5, 3), best=True), Cell()]
    table = Table("title | 50 %", "name", ["train K=1", "a_b"], [("arms|s", cells)])
    lines = markdown(table).splitlines()
    assert lines[4] == r"| arms\|s | **" + "\u2212" + "1.25 ± 0.50** |  |"
    tex = latex(table)
    assert r"arms|s & \textbf{$-$1.25 $\pm$ 0.50} &  \\" in tex
    assert r"a\_b" in tex
    assert r"\toprule" in tex
    (row,) = list(csv.DictReader(comma_separated(table).splitlines()))
    assert float(row["train K=1 mean"]) == -1.25
    assert (row["train K=1 std"], row["train K=1 replicas"], row["train K=1 best"]) == ("0.5", "3", "1")
    assert row["a_b mean"] == ""


# ---- curves and looks


def test_curves_pool_replicas_and_stay_thin(tmp_path: Path) -> None:
    make_run(tmp_path / "a", TrainConfig(seed=0, replicas=2), reports=3 * MOST_POINTS)
    make_run(tmp_path / "b", TrainConfig(seed=1, replicas=1), reports=2, finish=False)
    (group,) = groups_of(tmp_path)
    elbo, variance = plots(group)
    (curve,) = elbo.curves
    assert curve.replicas == 2
    assert len(curve.steps) == MOST_POINTS
    assert curve.steps[:2] == [3, 6]
    assert curve.mean[0] == pytest.approx(-100 + 2 + 0.5)  # steps 1, 2, 3 of replicas 0 and 1
    assert curve.std is not None
    assert curve.std[0] == pytest.approx(math.sqrt(0.5))
    assert variance.quantity.logarithmic


def test_a_diverged_curve_is_cut_not_fatal(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "a", TrainConfig(), bounds_of(TrainConfig(), level=math.nan), reports=2)
    run.report({"step": 3, "train_elbo": [math.nan], "gradient_variance": [math.inf]})
    (group,) = groups_of(tmp_path)
    assert plots(group)[0].curves[0].steps == [1, 2]
    build_report([tmp_path], tmp_path / "report.html")
    assert "not finite" in (tmp_path / "report.html").read_text()


def test_every_estimator_has_looks_of_its_own() -> None:
    assert set(STYLES) == set(ESTIMATORS)
    assert len(set(STYLES.values())) == len(STYLES)
    for style in STYLES.values():
        assert style.dash in DASHES
        assert style.marker in MARKERS


def test_rows_follow_the_registry(tmp_path: Path) -> None:
    for estimator in ("vimco", "arms-s", "loorf"):
        make_run(tmp_path / estimator, TrainConfig(estimator=estimator))
    (group,) = groups_of(tmp_path)
    assert [row.estimator for row in group.rows] == ["loorf", "arms-s", "vimco"]
    assert all(isinstance(run, RunData) for row in group.rows for run in row.runs)
