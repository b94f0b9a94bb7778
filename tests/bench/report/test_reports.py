"""Reports on hand-made run directories: comparisons, bold numbers, and tables next to the paper's numbers."""

import math
from pathlib import Path
from typing import Any

import pytest
from run_directories import bounds_of, make_run

from arms import as_estimator
from arms.bench.config import TrainConfig
from arms.bench.presets import apply_preset
from arms.bench.report import build_report, collect
from arms.bench.report.curves import MAX_POINTS, training_panels
from arms.bench.report.figures import DASHES, MARKERS, STYLES, style_of
from arms.bench.report.groups import Group, cost_in_words, group_runs, labeled_if_biased
from arms.bench.report.paper import printed, released_default_k
from arms.bench.report.tables import (
    Cell,
    Table,
    beside_paper,
    comparison_table,
    mark_best,
    overview_table,
    summarize,
)
from arms.estimators.registry import ALL_ESTIMATORS, PAPER_FORMS


def groups_of(*paths: Path) -> list[Group]:
    return group_runs(collect(paths).runs)


def table_of(folder: Path) -> Table:
    (group,) = groups_of(folder)
    table = comparison_table(group, "name")
    assert table is not None
    return table


def column(table: Table, heading: str) -> dict[str, Cell | None]:
    place = list(table.columns).index(heading)
    return {label: cells[place] for label, cells in table.rows}


def is_best(stat: Cell | None) -> bool:
    return stat is not None and stat.best


# ---- the best


def test_best_is_the_highest_and_what_lies_within_the_standard_error() -> None:
    # standard errors of the difference: sqrt(1/4 + 1/4) = 0.707 to the second and third
    top, near, far = Cell(-10.0, 1.0, 4), Cell(-10.7, 1.0, 4), Cell(-10.72, 1.0, 4)
    assert [is_best(cell) for cell in mark_best([far, top, near], [False] * 3)] == [
        False,
        True,
        True,
    ]


def test_more_replicas_make_the_mark_stricter() -> None:
    for count, marks in ((4, [True, True]), (40, [True, False])):
        stats = [Cell(-10.0, 1.0, count), Cell(-10.7, 1.0, count)]
        assert [is_best(cell) for cell in mark_best(stats, [False] * 2)] == marks


def test_what_is_never_best() -> None:
    single, diverged = Cell(0.0, None, 1), summarize([1.0, math.inf])
    assert not math.isfinite(diverged.mean)
    assert "not finite" in str(diverged)
    assert str(Cell(-1.5e31, 2.5e30, 2)) == "\u22121.5e+31 ± 2.5e+30"
    stats = [single, diverged, None, Cell(-10.0, 0.1, 4), Cell(-12.0, 0.1, 4)]
    cells = mark_best(stats, [False] * 5)
    assert [is_best(cell) for cell in cells] == [False, False, False, True, False]
    assert not is_best(mark_best([Cell(-10.0, 1.0, 4), None], [False] * 2)[0])


def test_labels() -> None:
    assert str(summarize([-1.0, -2.0, -3.0])) == "\u22122.00 ± 1.00"
    assert cost_in_words("loorf", 4) == []
    assert cost_in_words("midpoint", 4) == ["5 evaluations", "5 derivatives"]
    assert (labeled_if_biased("arms"), labeled_if_biased("reinmax")) == ("arms", "reinmax (biased)")
    assert (released_default_k("arms-dirichlet", 4), released_default_k("disarm", 4)) == (4, 2)
    assert style_of("arms").color == "#D55E00"


def test_standard_deviation_is_the_samples() -> None:
    stat = summarize([-1.0, -2.0, -6.0])
    assert stat.mean == pytest.approx(-3.0)
    assert stat.std == pytest.approx(math.sqrt(7.0))
    assert summarize([-1.0]).std is None


def test_a_biased_estimator_is_never_best_and_no_other_is_held_against_it(tmp_path: Path) -> None:
    far_above, low, lower = Cell(-1.0, 0.1, 4), Cell(-10.0, 0.1, 4), Cell(-12.0, 0.1, 4)
    cells = mark_best([far_above, low, lower], [True, False, False])
    assert [is_best(cell) for cell in cells] == [False, True, False]
    assert [is_best(cell) for cell in mark_best([low, low, lower], [True, False, False])] == [
        False,
        True,
        False,
    ]
    assert not any(is_best(cell) for cell in mark_best([far_above, low], [True, False]))
    for estimator, level in (("reinmax", -10.0), ("loorf", -100.0), ("arms", -90.0)):
        for n in (4, 6):
            config = TrainConfig(estimator=estimator, num_samples=n, replicas=2)
            make_run(tmp_path / "runs" / f"{estimator}{n}", config, bounds_of(config, level))
    for group in groups_of(tmp_path):
        table = comparison_table(group, "name")
        assert table is not None
        n = group.setting.num_samples
        worked = f"reinmax (biased), R=2, {n} evaluations, {n} derivatives"
        assert [label for label, _ in table.rows] == ["loorf, R=2", "arms, R=2", worked]
        assert [{is_best(cell) for cell in cells} for _, cells in table.rows] == [
            {False},
            {True},
            {False},
        ]
        panels = training_panels(group).values()
        assert {curve.name for panel in panels for curve in panel.curves} >= {"reinmax (biased)"}
    table = overview_table(groups_of(tmp_path), "overview")
    assert table is not None
    assert list(table.columns) == ["loorf", "arms", "reinmax (biased)"]
    assert [[is_best(cell) for cell in cells] for _, cells in table.rows] == [
        [False, True, False]
    ] * 2
    build_report([tmp_path / "runs"], tmp_path / "report.html")
    for file in (
        tmp_path / "report.html",
        *tmp_path.rglob("*.md"),
        *tmp_path.rglob("*.tex"),
        *tmp_path.rglob("*.csv"),
    ):
        assert "reinmax (biased)" in file.read_text(), file


def test_a_biased_row_keeps_its_mark_beside_other_differences(tmp_path: Path) -> None:
    for rate in (1e-3, 1e-4):
        make_run(tmp_path / str(rate), TrainConfig(estimator="st", learning_rate=rate))
    (group,) = groups_of(tmp_path)
    assert [row.label for row in group.rows] == [
        "st (biased) (learning_rate 0.0001)",
        "st (biased) (learning_rate 0.001)",
    ]


# ---- columns and groups


def test_columns_never_mix_k(tmp_path: Path) -> None:
    for estimator in ("arms", "disarm", "loorf"):
        make_run(tmp_path / estimator, TrainConfig(estimator=estimator, num_samples=4, replicas=2))
    table = table_of(tmp_path)
    assert list(table.columns) == [
        "train K=1",
        "train K=4 (=n)",
        "test K=1",
        "test K=4 (=n)",
        "test K=100",
    ]
    expected = {
        "train K=1": -98.9,
        "train K=4 (=n)": -95.9,
        "test K=1": -98.8,
        "test K=4 (=n)": -95.8,
        "test K=100": 0.2,
    }
    for heading, mean in expected.items():
        cells = column(table, heading)
        assert set(cells) == {"loorf, R=2", "disarm, R=2", "arms, R=2"}
        for cell in cells.values():
            assert cell is not None
            assert cell.mean == pytest.approx(mean), heading


def test_a_missing_k_is_left_empty_not_replaced(tmp_path: Path) -> None:
    make_run(tmp_path / "a", TrainConfig(estimator="loorf", replicas=2))
    partial = {"train": {1: [-90.0, -91.0]}, "test": {1: [-92.0, -93.0], 2: [-80.0, -81.0]}}
    make_run(tmp_path / "b", TrainConfig(estimator="arms", replicas=2), partial)
    table = table_of(tmp_path)
    assert column(table, "train K=4 (=n)")["arms, R=2"] is None
    assert column(table, "train K=1")["arms, R=2"] is not None
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
    table = overview_table(groups, "overview")
    assert table is not None
    assert len(table.rows) == len(changes)


def test_overview_says_only_what_differs(tmp_path: Path) -> None:
    for n in (4, 6):
        for estimator, level in (("loorf", -100.0), ("arms", -90.0)):
            config = TrainConfig(estimator=estimator, num_samples=n, replicas=2)
            make_run(tmp_path / f"{estimator}{n}", config, bounds_of(config, level))
    table = overview_table(groups_of(tmp_path), "overview")
    assert table is not None
    assert table.title == "test K=100, digits, linear, 10,000 steps, decoder on all samples"
    assert [label for label, _ in table.rows] == ["n = 4", "n = 6"]
    assert [[is_best(cell) for cell in cells] for _, cells in table.rows] == [[False, True]] * 2


def test_more_evaluations_than_n_are_not_bold_in_the_overview(tmp_path: Path) -> None:
    for n in (4, 6):
        for estimator, level in (("loorf", -100.0), ("arms", -90.0), ("flips", -80.0)):
            config = TrainConfig(estimator=estimator, num_samples=n, replicas=2)
            make_run(tmp_path / f"{estimator}{n}", config, bounds_of(config, level))
    table = overview_table(groups_of(tmp_path), "overview")
    assert table is not None
    assert list(table.columns) == ["loorf", "arms", "flips"]
    bold = [[is_best(cell) for cell in cells] for _, cells in table.rows]
    assert bold == [[False, True, False]] * 2
    (caveat,) = table.caveats
    assert "flips, n = 4: 6 evaluations, 6 derivatives; flips, n = 6: 9 evaluations" in caveat


def test_seeds_are_pooled_and_other_differences_are_rows(tmp_path: Path) -> None:
    make_run(tmp_path / "a", TrainConfig(seed=0, replicas=2))
    make_run(tmp_path / "b", TrainConfig(seed=1, replicas=3))
    make_run(tmp_path / "c", TrainConfig(seed=0, replicas=2, learning_rate=1e-3))
    labels = {label for label, _ in table_of(tmp_path).rows}
    assert labels == {"arms (learning_rate 0.0001), R=5", "arms (learning_rate 0.001), R=2"}


def test_a_copy_of_a_run_is_not_more_evidence(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_run(tmp_path / name, TrainConfig(replicas=2))
    found = collect([tmp_path, tmp_path / "a"])
    assert len(found.runs) == 1
    (problem,) = found.problems
    assert "same configuration" in problem.what


def test_a_seed_is_pooled_once(tmp_path: Path) -> None:
    make_run(tmp_path / "a-small", TrainConfig(replicas=2))
    make_run(tmp_path / "b-large", TrainConfig(replicas=3))
    make_run(
        tmp_path / "c-reports",
        TrainConfig(replicas=3, report_every=50, evaluate_every=100, evaluate_images=10),
    )
    make_run(tmp_path / "d-other-seed", TrainConfig(replicas=2, seed=1))
    make_run(tmp_path / "e-other-rate", TrainConfig(replicas=2, learning_rate=1e-3))
    found = collect([tmp_path])
    assert [run.path.name for run in found.runs] == ["b-large", "d-other-seed", "e-other-rate"]
    what = f"skipped: the same seed and training as {tmp_path / 'b-large'}"
    assert [(Path(one.where).name, one.what) for one in found.problems] == [
        ("a-small", what),
        ("c-reports", what),
    ]
    labels = {label for label, _ in table_of(tmp_path).rows}
    assert labels == {"arms (learning_rate 0.0001), R=5", "arms (learning_rate 0.001), R=2"}


def test_a_finished_run_is_not_left_out_for_an_unfinished_one(tmp_path: Path) -> None:
    make_run(tmp_path / "a", TrainConfig(replicas=3), finish=False)
    make_run(tmp_path / "b", TrainConfig(replicas=2))
    found = collect([tmp_path])
    assert [run.path.name for run in found.runs] == ["b"]
    assert [Path(one.where).name for one in found.problems] == ["a", "a"]


# ---- the paper


def test_printed_numbers_stand_beside_ours(tmp_path: Path) -> None:
    for estimator in ("arms-dirichlet", "disarm", "arms"):
        config = TrainConfig(
            dataset="dynamic-mnist", estimator=estimator, replicas=2, steps=1_000_000
        )
        make_run(tmp_path / estimator, config)
    (group,) = groups_of(tmp_path)
    by_n, by_half = beside_paper(group, "name")
    assert "K = n = 4" in by_n.title
    ours, paper = column(by_n, "train K=4, ours"), column(by_n, "train, paper's table 1")
    assert str(ours["arms-dirichlet, R=2"]) == "\u221295.90 ± 0.71"
    assert str(paper["arms-dirichlet, R=2"]) == "\u2212112.13 ± 0.10"
    assert paper["arms, R=2"] is None
    assert (
        str(column(by_n, "test, paper's table 3")["arms-dirichlet, R=2"]) == "\u2212111.57 ± 0.13"
    )
    assert [label for label, _ in by_half.rows] == ["disarm, R=2"]
    assert str(column(by_half, "train K=2, ours")["disarm, R=2"]) == "\u221297.90 ± 0.71"
    assert str(column(by_half, "train, paper's table 1")["disarm, R=2"]) == "\u2212113.26 ± 0.05"
    assert any("not certain" in caveat for caveat in by_half.caveats)
    assert any("decoder_samples all (paper: extra)" in caveat for caveat in by_n.caveats)


def test_what_differs_from_the_paper_is_said(tmp_path: Path) -> None:
    """Also differences that all runs share, which labels do not show."""
    given = {"dataset": "omniglot", "estimator": "loorf", "num_samples": 4, "replicas": 2}
    make_run(tmp_path / "a", apply_preset("fast", given | {"warmup_steps": 10}))
    (group,) = groups_of(tmp_path)
    (table,) = beside_paper(group, "name")
    said = " ".join(table.caveats)
    for words in ("schedule cosine (paper: constant)", "warmup_steps 10", "learning_rate 0.006"):
        assert words in said
    make_run(tmp_path / "b", apply_preset("fast", given | {"encoder_scale": 4.0}))
    (group,) = groups_of(tmp_path)
    (table,) = beside_paper(group, "name")
    assert "encoder_scale 1.0, 4.0 (paper: 1.0)" in " ".join(table.caveats)


def test_paper_numbers_are_all_there(tmp_path: Path) -> None:
    make_run(
        tmp_path / "a",
        TrainConfig(dataset="omniglot", estimator="disarm-ms-paper", num_samples=8, replicas=2),
    )
    (group,) = groups_of(tmp_path)
    (table,) = beside_paper(group, "name")
    said = " ".join(table.caveats)
    assert "repeats table 1's DisARM column" in said
    assert "steps 10000 (paper: 1000000)" in said
    multi = printed(group.setting, "arms-ms-dirichlet (unfolded)", "train")
    assert multi is not None
    assert (multi.table, multi.mean) == (2, -118.40)
    assert printed(group.setting, "arms", "train") is None
    assert printed(group.setting, "disarm-ms (unfolded)", "train") is not None
    for other in ({"categories": 3}, {"likelihood": "gaussian"}):  # the paper has neither
        assert printed(group.setting._replace(**other), "disarm-ms (unfolded)", "train") is None
    assert (
        printed(group.setting, "disarm-ms", "train") is None
    )  # the paper did not fold its direct term in
    assert [
        released_default_k(name, 10)
        for name in ("loorf", "vimco", "relax", "arms-ms-dirichlet (unfolded)")
    ] == [10, 10, 5, 10]


def test_no_paper_table_where_nothing_is_printed(tmp_path: Path) -> None:
    make_run(tmp_path / "a", TrainConfig(dataset="digits", replicas=2))
    (group,) = groups_of(tmp_path)
    assert beside_paper(group, "name") == []


# ---- curves and looks


def test_curves_pool_replicas_and_stay_thin(tmp_path: Path) -> None:
    make_run(tmp_path / "a", TrainConfig(seed=0, replicas=2), records=3 * MAX_POINTS)
    make_run(tmp_path / "b", TrainConfig(seed=1, replicas=1), records=2, finish=False)
    (group,) = groups_of(tmp_path)
    elbo, variance = training_panels(group).values()
    (curve,) = elbo.curves
    assert len(curve.x) == MAX_POINTS
    assert curve.x[:2] == [3, 6]
    assert curve.y[0] == pytest.approx(-100 + 2 + 0.5)  # steps 1, 2, 3 of replicas 0 and 1
    assert curve.low is not None
    assert curve.high is not None
    assert curve.high[0] - curve.y[0] == pytest.approx(math.sqrt(0.5))
    assert curve.y[0] - curve.low[0] == pytest.approx(math.sqrt(0.5))
    assert not elbo.log
    assert variance.log


def test_a_diverged_curve_is_cut_not_fatal(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "runs" / "a", TrainConfig(), bounds_of(TrainConfig(), level=math.nan), records=2
    )
    run.append({"step": 3, "train_elbo": [math.nan], "gradient_variance": [math.inf]})
    (group,) = groups_of(tmp_path)
    assert training_panels(group)["train_elbo"].curves[0].x == [1, 2]
    build_report([tmp_path], tmp_path / "report.html")
    assert "not finite" in (tmp_path / "report.html").read_text()


def test_every_estimator_has_looks_of_its_own() -> None:
    unfolded = {TrainConfig(estimator=name).label for name in PAPER_FORMS}
    assert set(STYLES) <= set(ALL_ESTIMATORS) | unfolded
    assert len(set(STYLES.values())) == len(STYLES)
    for on_bound in (False, True):
        colors = [
            STYLES[name].color
            for name in set(STYLES) & set(ALL_ESTIMATORS)
            if as_estimator(name, 8).target.subtracts_log_q == on_bound
        ]
        assert len(set(colors)) == len(colors) > 9
    others = [style_of(name) for name in ("st", "gumbel-softmax", "mine")]
    assert others == [style_of(name) for name in ("st", "gumbel-softmax", "mine")]
    assert len({*others}) == 3
    assert not {*others} & {*STYLES.values()}
    for style in [*STYLES.values(), *others]:
        assert style.dash in DASHES
        assert style.marker in MARKERS


def test_rows_follow_the_registry(tmp_path: Path) -> None:
    for estimator in ("vimco", "arms", "loorf"):
        make_run(tmp_path / estimator, TrainConfig(estimator=estimator))
    (group,) = groups_of(tmp_path)
    assert [row.estimator for row in group.rows] == ["loorf", "arms", "vimco"]
