"""Best subset selection as a scikit-learn estimator. Requires arms-grad[sklearn]."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Generator, Tensor

from arms.api import attach, draw
from arms.arguments import as_count, as_positive
from arms.estimators import Estimator
from arms.estimators.biased.path import sigmoid_derivative

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.feature_selection import SelectorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ModuleNotFoundError as error:
    remedy = f"arms.sklearn needs scikit-learn: pip install 'arms-grad[sklearn]' ({error})"
    raise ModuleNotFoundError(remedy, name=error.name) from None

__all__ = ["SubsetSelector"]

CRITERIA = ("aic", "bic", "ebic")
Cost = Callable[[Tensor, Tensor], Tensor]  # arguments: unexplained share of variance, subset size


class SubsetSelector(SelectorMixin, RegressorMixin, BaseEstimator):
    """Least squares on the best subset of features, found by gradient descent.

    Each feature has a bit with a logit. Adam minimizes E[log RSS(b)] over the logits, with unbiased
    estimates of the gradient, in several restarts at once. RSS(b) is the residual sum of squares of
    the fit on the features whose bit is 1. The sum of the probabilities is kept at the requested
    size. Each restart's best subset is then improved by exchanging single features. The units of
    features do not matter. Outputs with larger units have more weight.

    Args:
        n_features_to_select: The number of features to select. A float between 0 and 1 is a share
            of all features. With None, the criterion selects the size, at most half the rows.
        criterion: "aic", "bic" or "ebic" (for more features than rows). It is used only if
            `n_features_to_select` is None.
        estimator: A name in `arms.ESTIMATORS` that needs no derivatives, or such an estimator.
        num_samples: The number of subsets per step and restart.
        n_restarts: The number of restarts, which all have the same initial logits.
        max_iter: The largest number of steps. The search ends earlier if the logits have converged.
        learning_rate: The learning rate of Adam.
        exchange: Whether to improve the best subsets by exchanging single features.
        random_state: The seed of the search. Pass an int for reproducible results.

    Attributes:
        support_: A boolean mask of the selected features, `[n_features_in_]`.
        coef_, intercept_: The coefficients and the intercepts of the least-squares fit. Features
            that are not selected have the coefficient zero.
        probabilities_: The learned probabilities `[n_features_in_]` of the restart that found the
            selected subset.
        n_iter_: The number of steps.

    >>> X = np.random.default_rng(0).normal(size=(100, 8))
    >>> selector = SubsetSelector(n_features_to_select=2, max_iter=50, random_state=0)
    >>> selector.fit(X, X[:, 1] - X[:, 5]).get_support(indices=True)
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
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Find the best subset of features, and fit y on these features by least squares.

        Args:
            X: `[rows, features]`.
            y: `[rows]`, or `[rows, outputs]`; all outputs share one subset.
        """
        if hasattr(y, "toarray"):
            raise ValueError("y must be a dense array, got a sparse one: call y.toarray()")
        X, y = validate_data(
            self, X, y, multi_output=True, y_numeric=True, dtype=np.float64, ensure_min_samples=2
        )
        rows, p = X.shape
        size = self._size(p)
        features = center(X)
        targets = center(np.asarray(y, dtype=np.float64).reshape(rows, -1))
        # Outputs keep their relative units, because the cost is the sum of their squared errors.
        regressions = Regressions.of(features.values, _in_one_unit(targets))
        limit = size or max(1, min(p, rows // 2))
        cost = self._cost(rows, targets.values.shape[1], p, limit)
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        generator = torch.Generator().manual_seed(int(seed))
        masks, logits = self._search(regressions, cost, size, limit, generator)
        if self.exchange:
            masks = torch.stack([improve(mask, regressions, cost, size is None) for mask in masks])
        best = int(cost(regressions.unexplained(masks), masks.sum(-1)).argmin())
        self.support_ = masks[best].numpy() > 0
        self.probabilities_ = logits[best].sigmoid().numpy()
        self._fit_coefficients(features, targets, y.ndim == 1)
        return self

    def predict(self, X: Any) -> Any:
        """Return predictions for `X` `[rows, features]`, computed from the selected features."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return X @ self.coef_.T + self.intercept_

    def _get_support_mask(self) -> Any:
        check_is_fitted(self)
        return self.support_

    def _size(self, features: int) -> int | None:
        wanted: Any = self.n_features_to_select
        if wanted is None:
            if self.criterion not in CRITERIA:
                known = ", ".join(CRITERIA)
                raise ValueError(f"criterion must be one of {known}, got {self.criterion!r}")
            return None
        if isinstance(wanted, Integral) and wanted is not True and 1 <= int(wanted) <= features:
            return int(wanted)
        if isinstance(wanted, Real) and not isinstance(wanted, Integral) and 0 < float(wanted) < 1:
            return max(1, round(float(wanted) * features))
        allowed = f"None, an int from 1 to the {features} features of X, or a float between 0 and 1"
        raise ValueError(f"n_features_to_select must be {allowed}, got {wanted!r}")

    def _cost(self, rows: int, outputs: int, features: int, limit: int) -> Cost:
        if self.n_features_to_select is not None:
            return lambda unexplained, size: unexplained.log()
        each = outputs * (2.0 if self.criterion == "aic" else math.log(rows))

        def cost(unexplained: Tensor, size: Tensor) -> Tensor:
            found = rows * outputs * unexplained.log() + each * size
            if self.criterion == "ebic":  # a penalty for the number of subsets of this size
                k = size.to(torch.float64)
                log_choose = math.lgamma(features + 1) - torch.lgamma(k + 1)
                found = found + 2 * outputs * (log_choose - torch.lgamma(features - k + 1))
            # Subsets above the limit could fit any data. The empty subset has no penalty.
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
        """Return the best subset that each restart evaluated, and the final logits.

        Both results are `[restarts, p]`. Subsets must have `size` features. If `size` is None, they
        may have any size up to `limit`.
        """
        restarts = as_count(self.n_restarts, 1, "n_restarts")
        steps = as_count(self.max_iter, 1, "max_iter")
        rate = as_positive(self.learning_rate, "learning_rate")
        start = torch.zeros(restarts, len(regressions.gram), dtype=torch.float64)
        logits = with_expected_size(start, size or limit / 2).requires_grad_()
        optimizer = torch.optim.Adam([logits], lr=rate, betas=(0.9, 0.99))
        best, lowest = start, torch.full((restarts,), torch.inf, dtype=torch.float64)
        budget = None if isinstance(self.estimator, Estimator) else self.num_samples
        self.n_iter_ = 0
        while self.n_iter_ < steps and sigmoid_derivative(logits.detach()).max() > 0.01:
            self.n_iter_ += 1
            drawn = draw(logits, self.estimator, budget, generator)
            one = drawn.estimator
            if one.design.needs.derivatives or drawn.drawn.extra or not one.target.is_expectation:
                wanted = "an estimator of the expectation that uses only values at samples"
                raise ValueError(f"estimator must be {wanted}, such as arms or loorf, got {one}")
            masks = drawn.samples
            values = cost(regressions.unexplained(masks), masks.sum(-1))
            best, lowest = _best_seen(best, lowest, masks, values, size)
            optimizer.zero_grad()
            attach(drawn, values).sum().backward()
            assert logits.grad is not None
            if size is not None:
                # Every further feature explains more variance, so all logits would rise together.
                # The logits are shifted back to the given size below, so the gradient along this
                # shift is removed here.
                weight = sigmoid_derivative(logits.detach())
                shift = logits.grad.sum(-1, keepdim=True) / weight.sum(-1, keepdim=True)
                logits.grad = logits.grad - weight * shift
            optimizer.step()
            if size is not None:
                logits.data = with_expected_size(logits.data, size)
            logits.data.clamp_(-10, 10)
        found = logits.detach()
        likely = (found > 0).to(found.dtype)
        if size is not None:
            likely = torch.zeros_like(found).scatter(-1, found.topk(size, -1).indices, 1.0)
        values = cost(regressions.unexplained(likely), likely.sum(-1))
        return _best_seen(best, lowest, likely[None], values[None], size)[0], found

    def _fit_coefficients(
        self, features: "Centered", targets: "Centered", one_output: bool
    ) -> None:
        norms = np.sqrt((features.values**2).sum(0))
        used = self.support_ & (norms > 0)  # a constant column has the coefficient zero
        # Columns are scaled to length one, so that features with small units are not dropped.
        units = features.values[:, used] / norms[used]
        weights = np.linalg.lstsq(units, targets.values, rcond=None)[0].T / norms[used]
        coefficients = np.zeros((targets.values.shape[1], len(norms)))
        with np.errstate(over="ignore", under="ignore"):
            exponents = targets.exponents[:, None] - features.exponents[used]
            coefficients[:, used] = np.ldexp(weights, exponents)
            intercept = np.ldexp(targets.means - weights @ features.means[used], targets.exponents)
        vanished = (coefficients[:, used] == 0) & (weights != 0)
        if vanished.any() or not (np.isfinite(coefficients).all() and np.isfinite(intercept).all()):
            what = "a coefficient is too large or too small for floating-point numbers"
            raise ValueError(f"{what}: rescale X or y")
        self.coef_ = coefficients[0] if one_output else coefficients
        self.intercept_ = intercept[0] if one_output else intercept


class Centered(NamedTuple):
    """The columns of a matrix. Each was scaled to magnitudes of at most one, and then centered."""

    values: Any  # [rows, columns]
    means: Any  # [columns], the means of the scaled columns
    exponents: Any  # [columns]; each column was divided by two to this power, which is exact


def center(columns: Any) -> Centered:
    """Scale and center the columns of a matrix. Very large or small units cause no overflow."""
    exponents = np.frexp(np.abs(columns).max(0))[1]
    small = np.ldexp(columns, -exponents)
    means = small.mean(0)
    values = small - means
    # If the spread is tiny relative to the mean, the rounding error of the mean matters.
    error, spread = values.mean(0), values.std(0)
    error = np.where(np.abs(error) > 1e-10 * spread, error, 0.0)
    # A centered constant column contains only rounding errors.
    values = np.where(spread > 10 * np.finfo(np.float64).eps, values - error, 0.0)
    return Centered(values, means + error, exponents)


def _in_one_unit(columns: Centered) -> Any:
    """Return the centered columns in a common unit. In this unit, all magnitudes are below one."""
    spreads = columns.exponents + np.frexp(np.abs(columns.values).max(0))[1]
    # Ignore constant columns, because a large one would make the other columns negligible.
    largest = spreads.max(where=columns.values.any(0), initial=-(2**20))
    return np.ldexp(columns.values, columns.exponents - largest)


@dataclass(frozen=True)
class Regressions:
    """Least-squares fits of the targets on many subsets of the standardized features at once."""

    gram: Tensor  # [p, p], the correlations of the features
    cross: Tensor  # [p, q], features times targets; the targets have a total variance of one

    ridge = 1e-9  # makes the fit on equal columns well defined

    @classmethod
    def of(cls, X: Any, y: Any) -> "Regressions":
        """Build regressions from centered features `[rows, p]` and targets `[rows, q]`.

        All entries must be small enough that their squares do not overflow.
        """
        scale, total = np.sqrt((X**2).sum(0)), math.sqrt((y**2).sum())
        scaled = torch.from_numpy(X / np.where(scale > 0, scale, 1.0))
        return cls(scaled.mT @ scaled, scaled.mT @ torch.from_numpy(y / (total or 1.0)))

    def unexplained(self, masks: Tensor) -> Tensor:
        """Return the share of the targets' variance that the selected features do not explain.

        The result is `[...]` for masks `[..., p]` of selected features.
        """
        return self._factors(masks)[3]

    def with_one_more(self, masks: Tensor) -> Tensor:
        """Return the unexplained share of the variance after one more feature is added to a mask.

        The result is `[..., p]` for masks `[..., p]`, with an entry for each feature that could be
        added. The entries of features that are already selected are infinite.
        """
        index, factor, half, left = self._factors(masks)
        chosen = masks.gather(-1, index).unsqueeze(-1)
        known = torch.linalg.solve_triangular(factor, self.gram[index] * chosen, upper=False)
        # The part of each feature's variance that the selected features do not explain.
        own = self.gram.diagonal() - known.square().sum(-2)
        residual = self.cross - known.mT @ half
        gain = torch.where(own > 1e-7, residual.square().sum(-1) / own.clamp(min=1e-7), 0.0)
        return torch.where(masks > 0, torch.inf, (left.unsqueeze(-1) - gain).clamp(min=1e-12))

    def _factors(self, masks: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return four results of the fits on masks `[..., p]`.

        The results are the indices of the selected features, the Cholesky factor L of these
        features' correlations, L⁻¹ times these features' rows of `cross`, and the unexplained share
        of the targets' variance.
        """
        most = max(1, int(masks.sum(-1).max()))
        chosen, index = masks.topk(most, dim=-1)  # pads smaller subsets
        row, column = chosen.unsqueeze(-1), chosen.unsqueeze(-2)
        block = self.gram[index.unsqueeze(-1), index.unsqueeze(-2)] * row * column
        # Features that are not selected get rows of the identity.
        block.diagonal(dim1=-2, dim2=-1).add_(1 - chosen + self.ridge)
        factor = torch.linalg.cholesky_ex(block).L
        half = torch.linalg.solve_triangular(factor, self.cross[index] * row, upper=False)
        return index, factor, half, (1 - half.square().sum((-2, -1))).clamp(min=1e-12)


def _best_seen(
    best: Tensor, lowest: Tensor, masks: Tensor, values: Tensor, size: int | None
) -> tuple[Tensor, Tensor]:
    """Return each restart's best subset so far `[restarts, p]`, and its cost `[restarts]`.

    `best` and `lowest` are this function's earlier results. They are compared with the new subsets
    `masks` `[n, restarts, p]`, which have the costs `values` `[n, restarts]`. Unless `size` is
    None, only masks of this size count.
    """
    if size is not None:
        values = torch.where(masks.sum(-1) == size, values, torch.inf)
    value, at = values.min(0)
    better = value < lowest
    found = masks[at, torch.arange(masks.shape[1])]
    return torch.where(better.unsqueeze(-1), found, best), torch.where(better, value, lowest)


def improve(mask: Tensor, regressions: Regressions, cost: Cost, any_size: bool) -> Tensor:
    """Improve the subset `mask` `[p]`: exchange single features as long as the cost decreases.

    Return the improved subset. If `any_size` is True, single features are also added or dropped.
    """
    value = cost(regressions.unexplained(mask), mask.sum())
    while True:
        selected = mask.nonzero().squeeze(-1)
        starts = mask.repeat(len(selected), 1)
        starts[torch.arange(len(selected)), selected] = 0
        if any_size:
            starts = torch.cat([starts, mask.unsqueeze(0)])
        sizes = starts.sum(-1, keepdim=True)
        moves = cost(regressions.with_one_more(starts), sizes + 1)
        if any_size:  # the last column keeps the subset unchanged
            kept = cost(regressions.unexplained(starts), sizes.squeeze(-1))
            moves = torch.cat([moves, kept.unsqueeze(-1)], -1)
        start, feature = divmod(int(moves.argmin()), moves.shape[-1])
        if not moves[start, feature] < value - 1e-9:
            return mask
        value, mask = moves[start, feature], starts[start].clone()
        mask[feature : feature + 1] = 1  # an empty slice for the last column


def with_expected_size(logits: Tensor, size: float) -> Tensor:
    """Shift logits `[restarts, p]` so that the probabilities in each row add up to `size`."""
    if size >= logits.shape[-1]:
        return torch.full_like(logits, 10.0)
    low = -20 - logits.amax(-1, keepdim=True)
    high = 20 - logits.amin(-1, keepdim=True)
    for _ in range(30):
        middle = (low + high) / 2
        small = (logits + middle).sigmoid().sum(-1, keepdim=True) < size
        low, high = torch.where(small, middle, low), torch.where(small, high, middle)
    return logits + (low + high) / 2
