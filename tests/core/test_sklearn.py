"""SubsetSelector: correct computations, exact results for few features, and scikit-learn's interface."""

import importlib
import itertools
import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.datasets import load_diabetes, make_regression
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import arms
from arms.sklearn import Regressions, SubsetSelector, improve, with_expected_size


@pytest.mark.filterwarnings("ignore")  # the checks warn on purpose
@pytest.mark.parametrize(
    "selector", [SubsetSelector(max_iter=10), SubsetSelector(1, max_iter=5)], ids=str
)
def test_it_is_a_scikit_learn_estimator(selector: SubsetSelector) -> None:
    check_estimator(selector, on_skip=None)


def correlated(rows: int = 80, features: int = 12, seed: int = 0) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    X = generator.standard_normal((rows, features)) + 2 * generator.standard_normal((rows, 1))
    return 3 * X + 1, X[:, [1, 4, 5]] @ [1.0, -1.0, 0.5] + 0.5 * generator.standard_normal(
        rows
    ) + 10


def unexplained(X: Any, y: Any, subset: Any) -> float:
    return 1 - float(LinearRegression().fit(X[:, subset], y).score(X[:, subset], y))


def best_of(
    subsets: list[tuple[int, ...]], X: Any, y: Any, penalty: float = 0.0
) -> tuple[int, ...]:
    """The subset of the smallest n log(unexplained) + penalty * size, each by least squares."""
    Xc, yc = X - X.mean(0), y - y.mean()

    def value(subset: tuple[int, ...]) -> float:
        chosen = Xc[:, list(subset)]
        left = yc - chosen @ np.linalg.lstsq(chosen, yc, rcond=None)[0]
        return len(y) * float(np.log(left @ left)) + penalty * len(subset)

    return min(subsets, key=value)


def of(X: Any, y: Any) -> Regressions:
    return Regressions.of(X - X.mean(0), (y - y.mean(0)).reshape(len(y), -1))


def test_every_subset_is_the_regression_that_scikit_learn_makes() -> None:
    X, y = correlated(features=6)
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=6)), dtype=torch.float64)[1:]
    expected = [unexplained(X, y, state.bool().numpy()) for state in states]
    found = of(X, y).unexplained(states.view(7, 9, 6)).flatten()
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=1e-6)


def test_one_more_feature_is_what_that_regression_says() -> None:
    X, y = correlated(features=6)
    regressions, masks = (
        of(X, y),
        torch.tensor([[0, 1, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0]], dtype=torch.float64),
    )
    found = regressions.with_one_more(masks)
    for mask, row in zip(masks, found, strict=True):
        for j in range(6):
            more = mask.index_fill(0, torch.tensor(j), 1.0)
            expected = torch.tensor(torch.inf) if mask[j] else regressions.unexplained(more)
            assert torch.isclose(row[j], expected.double(), atol=1e-7)


def test_exchanges_end_where_no_single_one_helps() -> None:
    X, y = correlated()
    regressions = of(X, y)
    start = torch.zeros(12, dtype=torch.float64).index_fill(0, torch.tensor([0, 2, 3]), 1.0)
    found = improve(start, regressions, lambda left, _: left.log(), any_size=False)
    assert found.sum() == 3
    best = regressions.unexplained(found)
    assert best < regressions.unexplained(start)
    inside, outside = (
        found.nonzero().squeeze(-1).tolist(),
        (found == 0).nonzero().squeeze(-1).tolist(),
    )
    for i, j in itertools.product(inside, outside):
        other = found.clone()
        other[i], other[j] = 0, 1
        assert regressions.unexplained(other) >= best - 1e-9


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_it_finds_the_best_of_all_subsets(seed: int, exchange: bool) -> None:
    X, y = correlated(seed=seed)
    best = best_of(list(itertools.combinations(range(12), 3)), X, y)
    selector = SubsetSelector(3, exchange=exchange, random_state=0).fit(X, y)
    assert tuple(selector.get_support(indices=True)) == best
    assert selector.probabilities_[list(best)].min() > 0.9


@pytest.mark.parametrize("criterion", ["aic", "bic"])
def test_with_an_open_size_it_finds_the_subset_of_the_lowest_criterion(criterion: str) -> None:
    X, y = correlated(features=8)
    weight = 2.0 if criterion == "aic" else np.log(len(y))
    every = [s for k in range(9) for s in itertools.combinations(range(8), k)]
    selector = SubsetSelector(criterion=criterion, random_state=0).fit(X, y)
    assert tuple(selector.get_support(indices=True)) == best_of(every, X, y, weight)


def test_more_features_than_rows() -> None:
    X, y, coefficients = make_regression(
        80, 200, n_informative=3, noise=1.0, coef=True, random_state=0
    )
    truth = coefficients.nonzero()[0]
    for selector in (
        SubsetSelector(3, random_state=0),
        SubsetSelector(criterion="ebic", random_state=0),
    ):
        assert selector.fit(X, y).get_support(indices=True).tolist() == truth.tolist()


def test_noise_alone_selects_nothing_by_the_extended_criterion() -> None:
    generator = np.random.default_rng(0)
    X, y = generator.standard_normal((100, 30)), generator.standard_normal(100)
    selector = SubsetSelector(criterion="ebic", random_state=0).fit(X, y)
    assert not selector.get_support().any()
    assert np.allclose(selector.predict(X), y.mean())


def test_it_predicts_as_the_regression_on_its_subset() -> None:
    X, y = correlated()
    for target in (y, np.stack([y, X[:, 2]], 1)):
        selector = SubsetSelector(4, max_iter=50, random_state=0).fit(X, target)
        fit = LinearRegression().fit(selector.transform(X), target)
        assert np.allclose(selector.predict(X), fit.predict(selector.transform(X)))
        assert selector.score(X, target) == pytest.approx(fit.score(selector.transform(X), target))
    assert selector.get_support()[2]  # a target of its own


def test_the_same_seed_finds_the_same_and_leaves_global_randomness_alone() -> None:
    X, y = load_diabetes(return_X_y=True)
    before = torch.get_rng_state()
    first, again, other = (
        SubsetSelector(4, max_iter=10, random_state=seed).fit(X, y).probabilities_
        for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


def test_constant_and_equal_columns_do_no_harm() -> None:
    X, y = correlated()
    X[:, 0], X[:, 2] = 5.0, X[:, 1]
    selector = SubsetSelector(3, max_iter=100, random_state=0).fit(X, y)
    assert not selector.get_support()[0]
    assert selector.get_support()[1] != selector.get_support()[2]
    assert np.isfinite(selector.coef_).all()
    assert np.allclose(
        SubsetSelector(12, random_state=0).fit(X, y).predict(X),
        LinearRegression().fit(X, y).predict(X),
    )


def test_it_works_in_a_pipeline_and_its_size_can_be_searched() -> None:
    X, y = correlated()
    pipeline = make_pipeline(
        StandardScaler(), SubsetSelector(max_iter=20, random_state=0), LinearRegression()
    )
    search = GridSearchCV(pipeline, {"subsetselector__n_features_to_select": [1, 3]}, cv=3).fit(
        X, y
    )
    assert search.best_params_ == {"subsetselector__n_features_to_select": 3}


@pytest.mark.parametrize("estimator", ["loorf", "arms-dirichlet", arms.LOORF(32)], ids=str)
def test_it_takes_any_estimator_of_black_boxes(estimator: Any) -> None:
    X, y = correlated()
    assert SubsetSelector(3, estimator=estimator, random_state=0).fit(X, y).get_support().sum() == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_features_to_select": 13}, "an int from 1 to the 12 features of X.* got 13"),
        ({"n_features_to_select": 0}, "got 0"),
        ({"n_features_to_select": 1.5}, "a float between 0 and 1, got 1.5"),
        ({"n_features_to_select": True}, "got True"),
        ({"criterion": "cp"}, "criterion must be one of aic, bic, ebic, got 'cp'"),
        (
            {"estimator": "midpoint"},
            "estimator must be an estimator of the expectation that uses only values at",
        ),
        (
            {"estimator": "vimco"},
            "estimator must be an estimator of the expectation that uses only values at",
        ),
        ({"estimator": "armss"}, "armss"),
        ({"num_samples": 1}, "must be an integer >= 2, got 1"),
        ({"n_restarts": 0}, "n_restarts must be an integer >= 1, got 0"),
        ({"max_iter": 0}, "max_iter must be an integer >= 1, got 0"),
        ({"learning_rate": -1.0}, "learning_rate must be a positive, finite number, got -1.0"),
    ],
    ids=str,
)
def test_wrong_options_are_told_what_is_right(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SubsetSelector(**options).fit(*correlated())


@pytest.mark.parametrize("size", [0.5, 3, 9.999])
def test_probabilities_add_up_to_the_size(size: float) -> None:
    logits = torch.randn(4, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 5
    assert torch.allclose(
        with_expected_size(logits, size).sigmoid().sum(-1),
        torch.tensor(size, dtype=torch.float64),
        atol=1e-5,
    )


# ---- units


def exact() -> tuple[Any, Any]:
    X = np.random.default_rng(0).normal(size=(80, 8))
    return X, X[:, 1] - 2 * X[:, 5]


@pytest.mark.parametrize("size", [2, None])
@pytest.mark.parametrize("unit", [1e-300, 1e-14, 1e100, 1e154, 1e300])
def test_units_of_a_feature_do_not_matter(unit: float, size: int | None) -> None:
    X, y = exact()
    X[:, 5] *= unit
    selector = SubsetSelector(size, max_iter=60, random_state=0).fit(X, y)
    assert selector.get_support(indices=True).tolist() == [1, 5]
    assert np.allclose(selector.coef_[[1, 5]], [1, -2 / unit], rtol=1e-9)
    assert np.allclose(selector.predict(X), y)


@pytest.mark.parametrize(
    ("unit_of_x", "unit_of_y"),
    [(1e-14, 1), (1, 1e-300), (1, 1e307), (1e200, 1e200), (1e-308, 1e-308)],
)
def test_units_of_all_features_and_of_the_target_do_not_matter(
    unit_of_x: float, unit_of_y: float
) -> None:
    X, y = exact()
    plain = SubsetSelector(2, max_iter=60, random_state=0).fit(X, y)
    selector = SubsetSelector(2, max_iter=60, random_state=0).fit(X * unit_of_x, y * unit_of_y)
    assert np.array_equal(selector.support_, plain.support_)
    assert np.allclose(selector.probabilities_, plain.probabilities_)
    assert np.allclose(selector.predict(X * unit_of_x) / unit_of_y, y)


def test_powers_of_two_change_no_digit() -> None:
    X, y = correlated()
    plain = SubsetSelector(3, max_iter=20, random_state=0).fit(X, y)
    other = SubsetSelector(3, max_iter=20, random_state=0).fit(X * 2.0**900, y * 2.0**900)
    assert np.array_equal(plain.probabilities_, other.probabilities_)


def test_outputs_in_units_of_their_own() -> None:
    X, y = exact()
    selector = SubsetSelector(2, max_iter=60, random_state=0).fit(
        X, np.stack([y * 1e300, y * 1e-300], 1)
    )
    assert selector.get_support(indices=True).tolist() == [1, 5]
    assert np.allclose(selector.predict(X) / [1e300, 1e-300], y[:, None])


@pytest.mark.parametrize("units", [(1e-300, 1e300), (1e300, 1e-300)])
def test_coefficients_that_are_no_floats_are_refused(units: tuple[float, float]) -> None:
    X, y = exact()
    with pytest.raises(
        ValueError,
        match="a coefficient is too large or too small for floating-point numbers: rescale X or y",
    ):
        SubsetSelector(2, max_iter=60, random_state=0).fit(X * units[0], y * units[1])


def test_a_large_constant_is_a_constant() -> None:
    """The mean of a constant column is not exact. The remaining rounding error must not affect the selection."""
    X, y = exact()
    X[:, 0], X[:, 2] = 1e6 / 3, 0.1
    selector = SubsetSelector(8, max_iter=20, random_state=0).fit(X, y)
    assert selector.coef_[0] == selector.coef_[2] == 0
    constant = SubsetSelector(1, max_iter=20, random_state=0).fit(X, np.full(80, 1e6 / 3))
    assert not constant.coef_.any()


def test_large_offsets_cost_no_more_digits_than_the_data_has_lost() -> None:
    X, y = exact()
    shifted = X + 1e14  # steps of 1/64 are left
    selector = SubsetSelector(2, max_iter=60, random_state=0).fit(shifted, y)
    fit = LinearRegression().fit(shifted[:, [1, 5]] - 1e14, y)
    assert selector.get_support(indices=True).tolist() == [1, 5]
    assert np.allclose(selector.coef_[[1, 5]], fit.coef_, rtol=1e-9)


@pytest.mark.parametrize(
    "kinds", [(np.float32, np.float32), (np.float64, np.float32), (np.float32, np.int64)]
)
def test_other_kinds_of_numbers(kinds: tuple[Any, Any]) -> None:
    X, y = exact()
    selector = SubsetSelector(2, max_iter=60, random_state=0).fit(
        X.astype(kinds[0]), (100 * y).astype(kinds[1])
    )
    assert selector.get_support(indices=True).tolist() == [1, 5]


def test_targets_that_are_no_dense_numbers_are_refused() -> None:
    X, y = exact()
    with pytest.raises(
        ValueError, match=r"y must be a dense array, got a sparse one: call y.toarray\(\)"
    ):
        SubsetSelector(2).fit(X, scipy.sparse.csr_matrix(y[:, None]))
    with pytest.raises(ValueError, match="could not convert string to float"):
        SubsetSelector(2).fit(X, np.full(80, "a"))


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "arms.sklearn")
    with pytest.raises(
        ModuleNotFoundError,
        match=r"arms.sklearn needs scikit-learn: pip install 'arms-grad\[sklearn\]'",
    ):
        importlib.import_module("arms.sklearn")


@pytest.mark.parametrize("constant", [1e300, -1e300, 1e300 / 3, 1e-300])
def test_a_constant_output_does_not_hide_the_others(constant: float) -> None:
    X, y = exact()
    selector = SubsetSelector(2, max_iter=60, random_state=0).fit(
        X, np.stack([np.full(len(y), constant), y], 1)
    )
    assert selector.get_support(indices=True).tolist() == [1, 5]
    assert not selector.coef_[0].any()
    assert np.allclose(selector.predict(X), np.stack([np.full(len(y), constant), y], 1))


def test_outputs_that_are_all_constant() -> None:
    X, _ = exact()
    y = np.full((len(X), 2), [1e300, -2.0])
    selector = SubsetSelector(2, max_iter=5, random_state=0).fit(X, y)
    assert not selector.coef_.any()
    assert np.allclose(selector.predict(X), y)
