"""The toy problem and the correlations: comparisons with closed forms, and output files."""

import csv
from pathlib import Path

import pytest
import torch

from arms.bench import toy
from arms.bench.cli import sweep as verbs
from arms.bench.report.paper_figures import (
    correlation_curves,
    smallest_correlation,
    write_correlations,
    write_toy,
)
from arms.checks import score_limit
from arms.designs import COUPLINGS


@pytest.mark.parametrize("n", [2, 10])
def test_measured_variance_agrees_with_closed_form(n: int) -> None:
    # At the ends np may be whole, where arms has no variance at all.
    replicas, inside = 4000, slice(1, -1)
    curves = toy.variance_curves(n, replicas=replicas, generator=torch.Generator().manual_seed(n))
    assert [curve.estimator for curve in curves if curve.exact is None] == ["arms-gaussian"]
    for curve in curves:
        if curve.exact is not None:
            ratio = curve.measured[inside] / curve.exact[inside]
            kurtosis = 60  # of these bounded estimates, mean over the grid: less
            tolerance = score_limit(10) * (kurtosis / (replicas * len(ratio))) ** 0.5
            assert tolerance < 0.07
            assert ratio.mean().item() == pytest.approx(1, abs=tolerance), curve.estimator


def test_grid_does_not_flatter_arms() -> None:
    """If np is an integer, arms is exact. A grid of such points would show no variance at n = 100."""
    coarse, dense = [
        toy.exact_variance("arms", 100, toy.probabilities(points))
        for points in (toy.GRID_POINTS, 20_001)
    ]
    assert coarse is not None
    assert dense is not None
    assert coarse.mean().item() == pytest.approx(dense.mean().item(), rel=0.02)


def test_exact_numbers() -> None:
    variance = toy.exact_variance("loorf", 2, toy.probabilities(1))
    assert variance is not None
    assert f"{variance.item():.4e}" == "1.4760e-07"
    assert toy.exact_variance("arms-gaussian", 4, toy.probabilities(1)) is None
    (path,) = toy.ascents(4, ["exact"], steps=1, replicas=2)
    expected = torch.tensor([[0.1, 0.1], [0.1016, 0.1016]], dtype=torch.float64)
    assert torch.allclose(path.logits.sigmoid(), expected, atol=5e-5)
    bounds = smallest_correlation(torch.tensor([0.5, 0.1]), n=4)
    assert bounds.tolist() == pytest.approx([-1 / 3, -1 / 9])


def test_ascents_reach_the_top_and_spread_as_their_variance_says() -> None:
    paths = toy.ascents(
        10, [*toy.ESTIMATORS, "exact"], replicas=500, generator=torch.Generator().manual_seed(0)
    )
    std = {path.estimator: path.std().mean().item() for path in paths}
    assert std["arms"] < std["arms-dirichlet"] < std["loorf"] < std["arm"]
    assert std["exact"] < 1e-12
    for path in paths:
        assert path.logits.shape == (151, 500)
        assert torch.sigmoid(path.logits[-1]).median() > 0.9
    again = toy.ascents(
        10, ["arms"], steps=3, replicas=5, generator=torch.Generator().manual_seed(1)
    )
    same = toy.ascents(
        10, ["arms"], steps=3, replicas=5, generator=torch.Generator().manual_seed(1)
    )
    assert torch.equal(again[0].logits, same[0].logits)


def test_toy_files(tmp_path: Path) -> None:
    curves = [
        curve for n in (2, 4, 6, 8, 10) for curve in toy.variance_curves(n, points=9, replicas=10)
    ]
    written = write_toy(curves, toy.ascents(4, steps=30, replicas=10), tmp_path / "new")
    assert {path.name for path in written} == {
        *(
            f"toy_{what}.{ending}"
            for what in ("variance", "ascent")
            for ending in ("svg", "pdf", "png", "csv")
        )
    }
    rows = list(csv.DictReader((tmp_path / "new" / "toy_variance.csv").read_text().splitlines()))
    assert len(rows) == 5 * 6 * 9
    row = next(row for row in rows if row["estimator"] == "loorf" and row["num_samples"] == "2")
    assert float(row["probability"]) == pytest.approx(0.1)
    assert float(row["exact_variance"]) == pytest.approx(1.4760e-07, rel=1e-4)


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_systematic_lies_on_the_bound_and_nothing_below_it(n: int) -> None:
    curves = correlation_curves(n, points=301)
    # For bits, the stratified coupling is the systematic one.
    assert {"independent", "dirichlet", "gaussian", "systematic"} <= set(curves.of_coupling)
    assert set(curves.of_coupling) <= {"independent", *COUPLINGS} - {"stratified"}
    assert (curves.of_coupling["systematic"] - curves.bound).abs().max() < 1e-12
    for name, values in curves.of_coupling.items():
        assert (values >= curves.bound - 1e-12).all(), name
    if n > 2:
        assert (curves.of_coupling["dirichlet"] - curves.bound).max() > 0.01


def test_bound_is_a_whole_number_s() -> None:
    # n = 5, p = 0.3: S is 1 or 2 with equal chance, Var S = 1/4 = 5 p(1-p)(1 + 4 rho)
    expected = (0.25 / (5 * 0.21) - 1) / 4
    assert smallest_correlation(
        torch.tensor([0.3], dtype=torch.float64), 5
    ).item() == pytest.approx(expected)


def test_correlation_files(tmp_path: Path) -> None:
    written = write_correlations(correlation_curves(points=21), tmp_path)
    assert {path.suffix for path in written} == {".svg", ".pdf", ".png", ".csv"}
    rows = list(csv.DictReader((tmp_path / "correlations.csv").read_text().splitlines()))
    assert len(rows) == 19
    assert all(
        float(row["systematic"]) == pytest.approx(float(row["smallest_possible"])) for row in rows
    )


def test_verbs_write_and_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verbs.toy(num_samples=(2, 4), replicas=20, output=tmp_path / "toy")
    verbs.correlations(num_samples=3, output=tmp_path / "correlations")
    said = capsys.readouterr().out
    assert "closed form" in said
    assert len(list((tmp_path / "toy").iterdir())) == 8
    assert len(list((tmp_path / "correlations").iterdir())) == 4
    with pytest.raises(ValueError, match="must list at least one number of samples"):
        verbs.toy(num_samples=())
