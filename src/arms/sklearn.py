"""Best subset selection as a scikit-learn estimator. Needs arms-grad[sklearn]."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import torch
from torch import Generator, Tensor

from arms.api import attach, draw
from arms.arguments import as_count, as_positive
from arms.estimators import Estimator

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.feature_selection import SelectorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"arms.sklearn needs scikit-learn: pip install 'arms-grad[sklearn]' ({error})",
        name=error.name,
    ) from None

__all__ = ["SubsetSelector"]

Cost = Callable[[Tensor, Tensor], Tensor]
"""What a subset costs, of its share of unexplained variance and its size: the lower, the better."""

CRITERIA = ("aic", "bic", "ebic")


class SubsetSelector(SelectorMixin, RegressorMixin, BaseEstimator):
    """Least squares on the best subset of features, found by the gradient of a distribution over subsets.

    A subset is b ~ Bernoulli(sigmoid(logits)), one bit per feature. The logits descend along an unbiased estimate of
    the gradient of E[log RSS(b)], several searches side by side; the sum of the probabilities is held at the size that
    is asked for. The best subset that each has seen is then improved by exchanging single features while that helps.
    Units do not matter, except that outputs with larger numbers count for more.

    Args:
        n_features_to_select: How many features; a float between 0 and 1 is a share of them. With None, the criterion
            decides, up to half as many as there are rows.
        criterion: "aic", "bic" or "ebic" (for more features than rows), where the size is left open.
        estimator: A name in `arms.ESTIMATORS` that needs no derivatives, or such an estimator.
        num_samples: Subsets that are tried per step and restart.
        n_restarts: How many searches from the same start.
        max_iter: Steps of a search at most; it ends when the logits have decided.
        learning_rate: Adam's.
        exchange: Whether to improve what was found by exchanging single features.
        random_state: Seed of the search: an int makes it the same every time.

    Attributes:
        support_: Which features are selected, `[n_features_in_]` of bool.
        coef_, intercept_: Of the least-squares fit; the coefficients of features that are not selected are zero.
        probabilities_: What the search has learnt, of the restart that the subset comes from.
        n_iter_: Steps that were taken.

    >>> X = np.random.default_rng(0).normal(size=(100, 8))
    >>> selector = SubsetSelector(n_features_to_select=2, max_iter=50, random_state=0).fit(X, X[:, 1] - X[:, 5])
    >>> selector.get_support(indices=True)
    array([1, 5])
    """

    def __init__(
        self,
        n_features_to_select: int | float | None = None,
        *,
        criterion: str = "bic",
        estimator: str | Estimator = "arms",
        num_samples: int = 64,
        n_restarts: int = 4,
        max_iter: int = 300,
        learning_rate: float = 0.1,
        exchange: bool = True,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_features_to_select = n_features_to_select
        self.criterion = criterion
        self.estimator = estimator
        self.num_samples = num_samples
        self.n_restarts = n_restarts
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.exchange = exchange
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Find the subset, and fit y on it.

        Args:
            X: `[rows, features]`.
            y: `[rows]`, or `[rows, outputs]`, of which one subset then serves all.
        """
        if hasattr(y, "toarray"):
            raise ValueError("y must be a dense array, got a sparse one: call y.toarray()")
        X, y = validate_data(
            self, X, y, multi_output=True, y_numeric=True, dtype=np.float64, ensure_min_samples=2
        )
        size = self._size(X.shape[1])
        features = Centred.of(X)
        targets = Centred.of(np.asarray(y, dtype=np.float64).reshape(len(y), -1))
        # Outputs keep their relative units: the sum of their squared errors is what counts.
        regressions = Regressions.of(features.values, targets.in_one_unit())
        limit = size or max(1, min(X.shape[1], len(X) // 2))
        cost = self._cost(len(X), targets.values.shape[1], X.shape[1], limit)
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        masks, logits = self._search(
            regressions, cost, size, limit, torch.Generator().manual_seed(int(seed))
        )
        if self.exchange:
            masks = torch.stack([improve(mask, regressions, cost, size is None) for mask in masks])
        best = int(cost(regressions.unexplained(masks), masks.sum(-1)).argmin())
        self.support_ = masks[best].numpy() > 0
        self.probabilities_ = logits[best].sigmoid().numpy()
        self._fit_coefficients(features, targets, y.ndim == 1)
        return self

    def predict(self, X: Any) -> Any:
        """Return the prediction of the least-squares fit on the selected features."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return X @ self.coef_.T + self.intercept_

    def _get_support_mask(self) -> Any:
        check_is_fitted(self)
        return self.support_

    def _size(self, features: int) -> int | None:
        wanted: Any = self.n_features_to_select  # whatever the user gave
        if wanted is None:
            if self.criterion not in CRITERIA:
                raise ValueError(
                    f"criterion must be one of {', '.join(CRITERIA)}, got {self.criterion!r}"
                )
            return None
        if not isinstance(wanted, bool) and isinstance(wanted, Real):
            number, whole = float(wanted), isinstance(wanted, Integral)
            if whole and 1 <= number <= features:
                return int(number)
            if not whole and 0 < number < 1:
                return max(1, round(number * features))
        raise ValueError(
            f"n_features_to_select must be None, an int from 1 to the {features} features of X, or a float between "
            f"0 and 1, got {wanted!r}"
        )

    def _cost(self, rows: int, outputs: int, features: int, limit: int) -> Cost:
        if self.n_features_to_select is not None:
            return lambda unexplained, size: unexplained.log()
        each = outputs * (2.0 if self.criterion == "aic" else math.log(rows))

        def cost(unexplained: Tensor, size: Tensor) -> Tensor:
            found = rows * outputs * unexplained.log() + each * size
            if self.criterion == "ebic":  # as many subsets of this size as there are compete
                found = found + 2 * outputs * _log_choose(features, size)
            # Half as many features as rows fit anything; the empty subset costs nothing.
            return torch.where(size > limit, size - limit, found)

        return cost

    def _search(
        self,
        regressions: "Regressions",
        cost: Cost,
        size: int | None,
        limit: int,
        generator: Generator,
    ) -> tuple[Tensor, Tensor]:
        """Return the best subset `[restarts, p]` that each restart has seen, and its logits."""
        restarts, p = as_count(self.n_restarts, 1, "n_restarts"), len(regressions.gram)
        steps, rate = (
            as_count(self.max_iter, 1, "max_iter"),
            as_positive(self.learning_rate, "learning_rate"),
        )
        seen = _Best(restarts, p, size)
        logits = torch.zeros(restarts, p, dtype=torch.float64)
        logits = with_expected_size(logits, size or min(p, limit) / 2).requires_grad_()
        optimizer = torch.optim.Adam([logits], lr=rate, betas=(0.9, 0.99))
        self.n_iter_ = 0
        while self.n_iter_ < steps and _undecided(logits):
            self.n_iter_ += 1
            drawn = draw(logits, self.estimator, self._budget(), generator)
            chosen = drawn.estimator
            if (
                chosen.design.needs.derivatives
                or not chosen.target.is_expectation
                or drawn.drawn.extra
            ):
                raise ValueError(
                    "estimator must take values alone and estimate the expectation, as arms and loorf do: got "
                    f"{drawn.estimator}"
                )
            masks = drawn.samples
            values = cost(regressions.unexplained(masks), masks.sum(-1))
            seen.note(masks, values)
            optimizer.zero_grad()
            attach(drawn, values).sum().backward()
            assert logits.grad is not None
            if size is not None:
                logits.grad = _along_equal_size(logits.grad, logits.detach())
            optimizer.step()
            if size is not None:
                logits.data = with_expected_size(logits.data, size)
            logits.data.clamp_(-10, 10)
        likely = _most_likely(logits.detach(), size)
        seen.note(likely, cost(regressions.unexplained(likely), likely.sum(-1)))
        return seen.masks, logits.detach()

    def _budget(self) -> int | None:
        return None if isinstance(self.estimator, Estimator) else self.num_samples

    def _fit_coefficients(self, features: "Centred", targets: "Centred", one_output: bool) -> None:
        norms = np.sqrt((features.values**2).sum(0))
        used = self.support_ & (norms > 0)  # a constant column has the coefficient zero
        # With columns of length one, no feature is dropped for being small in its units.
        units = features.values[:, used] / norms[used]
        weights = np.linalg.lstsq(units, targets.values, rcond=None)[0].T / norms[used]
        coefficients = np.zeros((targets.values.shape[1], len(norms)))
        with np.errstate(over="ignore", under="ignore"):
            exponents = targets.exponents[:, None] - features.exponents[used]
            coefficients[:, used] = np.ldexp(weights, exponents)
            intercept = np.ldexp(targets.means - weights @ features.means[used], targets.exponents)
        vanished = (coefficients[:, used] == 0) & (weights != 0)
        if vanished.any() or not (np.isfinite(coefficients).all() and np.isfinite(intercept).all()):
            raise ValueError(
                "coefficients must be neither too large nor too small for floating-point numbers, got "
                "some that are: measure X or y in other units"
            )
        self.coef_ = coefficients[0] if one_output else coefficients
        self.intercept_ = intercept[0] if one_output else intercept


@dataclass(frozen=True)
class Centred:
    """Columns in units in which their largest value is below one, minus their means."""

    values: Any  # [rows, columns]
    means: Any  # [columns], in the same units
    exponents: Any  # [columns]: the unit of a column is two to this power, which changes no digit

    @classmethod
    def of(cls, columns: Any) -> "Centred":
        """Centre columns of any size, without an overflow of their sums or squares."""
        exponents = np.frexp(np.abs(columns).max(0))[1]
        small = np.ldexp(columns, -exponents)
        means = small.mean(0)
        values = small - means
        # Where the spread is tiny relative to the mean, the mean's rounding error counts.
        error, spread = values.mean(0), values.std(0)
        error = np.where(np.abs(error) > 1e-10 * spread, error, 0.0)
        # What is left of a constant column is rounding.
        values = np.where(spread > 10 * np.finfo(np.float64).eps, values - error, 0.0)
        return cls(values, means + error, exponents)

    def in_one_unit(self) -> Any:
        """Return the values of all columns in the same unit, in which the largest is below one.

        A constant column, however large, does not count: next to it the others would vanish.
        """
        spreads = self.exponents + np.frexp(np.abs(self.values).max(0))[1]
        varies = self.values.any(0)
        return np.ldexp(self.values, self.exponents - spreads.max(where=varies, initial=-(2**20)))


@dataclass(frozen=True)
class Regressions:
    """The least-squares fits on any subsets of standardised features, all at once."""

    gram: Tensor  # [p, p], correlations
    cross: Tensor  # [p, q], with the targets, which are scaled to a total variance of one

    ridge = 1e-9  # what keeps the fit on equal columns defined

    @classmethod
    def of(cls, X: Any, y: Any) -> "Regressions":
        """Of centred features and targets, whose squares neither overflow nor vanish."""
        scale, total = np.sqrt((X**2).sum(0)), math.sqrt((y**2).sum())
        scaled = torch.from_numpy(X / np.where(scale > 0, scale, 1.0))
        return cls(scaled.mT @ scaled, scaled.mT @ torch.from_numpy(y / (total or 1.0)))

    def unexplained(self, masks: Tensor) -> Tensor:
        """Return the share of the targets' variance that is left: masks `[..., p]` to `[...]`."""
        return self._left(self._factors(masks)[2])

    def with_one_more(self, masks: Tensor) -> Tensor:
        """Return the same after any one feature more: `[..., p]`, infinite for those that are selected already."""
        index, factor, half = self._factors(masks)
        chosen = masks.gather(-1, index)
        known = torch.linalg.solve_triangular(
            factor, self.gram[index] * chosen.unsqueeze(-1), upper=False
        )
        own = self.gram.diagonal() - known.square().sum(
            -2
        )  # a feature's variance that the selected do not explain
        residual = self.cross - known.mT @ half
        gain = torch.where(own > 1e-7, residual.square().sum(-1) / own.clamp(min=1e-7), 0.0)
        left = (self._left(half).unsqueeze(-1) - gain).clamp(min=1e-12)
        return torch.where(masks > 0, torch.inf, left)

    def _factors(self, masks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the selected features (and more, up to the largest subset), their Cholesky factor L, L⁻¹ cross."""
        most = max(1, int(masks.sum(-1).max()))
        chosen, index = masks.topk(most, dim=-1)
        block = (
            self.gram[index.unsqueeze(-1), index.unsqueeze(-2)]
            * chosen.unsqueeze(-1)
            * chosen.unsqueeze(-2)
        )
        block.diagonal(dim1=-2, dim2=-1).add_(
            1 - chosen + self.ridge
        )  # those not selected: rows of the identity
        factor = torch.linalg.cholesky_ex(block).L
        return (
            index,
            factor,
            torch.linalg.solve_triangular(
                factor, self.cross[index] * chosen.unsqueeze(-1), upper=False
            ),
        )

    @staticmethod
    def _left(half: Tensor) -> Tensor:
        return (1 - half.square().sum((-2, -1))).clamp(min=1e-12)


class _Best:
    """The best subset that each restart has seen; where a size is asked for, of that size."""

    def __init__(self, restarts: int, features: int, size: int | None) -> None:
        self.size = size
        self.masks = torch.zeros(restarts, features, dtype=torch.float64)
        self.values = torch.full((restarts,), torch.inf, dtype=torch.float64)

    def note(self, masks: Tensor, values: Tensor) -> None:
        """Look at masks `[n, restarts, p]` with values `[n, restarts]`."""
        if self.size is not None:
            values = torch.where(masks.sum(-1) == self.size, values, torch.inf)
        lowest, at = values.min(0)
        better = lowest < self.values
        found = masks[at, torch.arange(masks.shape[1])]
        self.masks = torch.where(better.unsqueeze(-1), found, self.masks)
        self.values = torch.where(better, lowest, self.values)


def improve(mask: Tensor, regressions: Regressions, cost: Cost, any_size: bool) -> Tensor:
    """Exchange one feature for another, or where the size is open add or drop one, as long as the cost falls."""
    value = cost(regressions.unexplained(mask), mask.sum())
    while True:
        selected = mask.nonzero().squeeze(-1)
        fewer = mask.repeat(len(selected), 1)
        fewer[torch.arange(len(selected)), selected] = 0
        starts = torch.cat([fewer, mask.unsqueeze(0)]) if any_size else fewer
        sizes = starts.sum(-1, keepdim=True)
        moves = cost(regressions.with_one_more(starts), sizes + 1)
        if any_size:  # the last column leaves each start as it is
            moves = torch.cat(
                [moves, cost(regressions.unexplained(starts), sizes.squeeze(-1)).unsqueeze(-1)], -1
            )
        best = int(moves.argmin())
        start, feature = divmod(best, moves.shape[-1])
        if not moves[start, feature] < value - 1e-9:
            return mask
        value, mask = moves[start, feature], starts[start].clone()
        mask[feature : feature + 1] = 1  # nothing for the last column


def with_expected_size(logits: Tensor, size: float) -> Tensor:
    """Shift logits `[restarts, p]` so that their probabilities add up to `size`, by bisection."""
    if size >= logits.shape[-1]:
        return torch.full_like(logits, 10.0)
    low = -20 - logits.amax(-1, keepdim=True)
    high = 20 - logits.amin(-1, keepdim=True)
    for _ in range(30):
        middle = (low + high) / 2
        small = (logits + middle).sigmoid().sum(-1, keepdim=True) < size
        low, high = torch.where(small, middle, low), torch.where(small, high, middle)
    return logits + (low + high) / 2


def _along_equal_size(grad: Tensor, logits: Tensor) -> Tensor:
    """Return the gradient with respect to logits that a common shift brings back to the same expected size.

    What it loses is the same for every feature: that any one more would explain more, which only drowns the rest.
    """
    steepness = logits.sigmoid() * (-logits).sigmoid()
    return grad - steepness * (grad.sum(-1, keepdim=True) / steepness.sum(-1, keepdim=True))


def _undecided(logits: Tensor) -> bool:
    probabilities = logits.detach().sigmoid()
    return bool((probabilities * (1 - probabilities)).max() > 0.01)


def _most_likely(logits: Tensor, size: int | None) -> Tensor:
    """Return the most likely subset `[1, restarts, p]`, of a size if one is asked for."""
    if size is None:
        return (logits > 0).to(logits.dtype).unsqueeze(0)
    return torch.zeros_like(logits).scatter(-1, logits.topk(size, -1).indices, 1.0).unsqueeze(0)


def _log_choose(total: int, chosen: Tensor) -> Tensor:
    chosen = chosen.to(torch.float64)
    return math.lgamma(total + 1) - torch.lgamma(chosen + 1) - torch.lgamma(total - chosen + 1)
