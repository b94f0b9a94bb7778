"""The contracts of designs, which say where the objective is evaluated, and of couplings."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Generator, Tensor

from arms.arguments import as_count, at_least_float32, in_function_transform, lazy_property
from arms.latents import Enumerable, Latent


@dataclass(frozen=True)
class Needs:
    """What a design needs from the objective, per call."""

    evaluations: int | None
    """Number of points; None if it depends on the latent, as when all states are enumerated."""
    derivatives: int = 0
    """Number of points, the last ones, at which the derivative df/db is taken."""
    second_order: bool = False
    """Whether that derivative must itself be differentiable, so that parameters can learn."""
    differences: bool = False
    """Whether small differences of values matter, which values in half precision would lose."""


@dataclass(frozen=True)
class Draw:
    """Points at which the objective is evaluated, and facts about them for the estimator."""

    latent: Latent
    """The latent that was drawn from; its logits are constants."""
    points: Tensor
    """`[m, *batch, *event]`: the samples, then `extra` points, which may depend on parameters."""
    extra: int = 0
    """Number of points that are not samples."""
    memory: Any = None
    """What `combine` needs besides the points, such as the noise behind them."""
    weights: Tensor | None = None
    """`[n, *batch]`: weights of the samples in the expectation; None for the plain mean."""

    @property
    def samples(self) -> Tensor:
        """The samples `[n, *batch, *event]`."""
        return self.points[: len(self.points) - self.extra] if self.extra else self.points


class Rows(NamedTuple):
    """All outcomes of the random rows of a design, for a latent without batch axes."""

    rows: Tensor
    """`[rows, outcomes, *event]`."""
    probabilities: Tensor
    """`[outcomes]`."""


@dataclass(frozen=True)
class Design:
    """Where the objective is evaluated.

    Most designs draw rows `[rows, *batch, *event]`, mostly samples, by `draw_rows` and list them by
    `variable_outcomes`, for exact tests. A design with continuous noise defines `draw` alone.
    """

    num_samples: int
    """The number of samples, n."""
    requires: ClassVar[tuple[type, ...]] = ()
    """Capabilities that the latent must have."""
    weighted: ClassVar[bool] = False
    """Whether samples have unequal weights, so that their plain mean is not the expectation."""
    uses_extra_values: ClassVar[bool] = False
    """Whether the estimate's mean depends on the values at points that are not samples."""
    least_samples: ClassVar[int] = 1
    in_pairs: ClassVar[bool] = False

    def __post_init__(self) -> None:
        least = 2 if self.in_pairs else self.least_samples
        count = as_count(self.num_samples, least, "num_samples", even=self.in_pairs)
        object.__setattr__(self, "num_samples", count)

    @lazy_property
    def needs(self) -> Needs:
        """The number of evaluations and derivatives per call."""
        return Needs(self.num_samples)

    def takes(self, latent: Latent) -> bool:
        """Return whether this design can draw a latent."""
        return latent.has_all(self.requires)

    def draw(self, latent: Latent, generator: Generator | None) -> Draw:
        """Draw the points for a latent, whose logits are constants."""
        return self.assemble(latent, self.draw_rows(latent, generator))

    def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
        """Draw the random rows."""
        raise NotImplementedError(f"{type(self).__name__} must define draw_rows or draw")

    def assemble(self, latent: Latent, rows: Tensor) -> Draw:
        """Make the draw from the rows. By default, the rows are the samples."""
        return Draw(latent, rows)

    def correct(self, latent: Latent, grad: Tensor) -> Tensor:
        """Turn the leave-one-out estimate over these samples into an unbiased gradient."""
        return grad  # right for independent samples

    def outcomes(self, latent: Latent) -> tuple[Draw, Tensor] | None:
        """Return all outcomes for a latent without batch axes, and their probabilities, if known.

        They are the batch of the draw, `[m, outcomes, 1, *event]`. Each is alone on the last batch
        axis, because estimators may learn from other rows.
        """
        if (found := self.row_outcomes(latent)) is None:
            return None
        many = latent.expand(len(found.probabilities), 1)
        return self.assemble(many, found.rows.unsqueeze(2)), found.probabilities

    def row_outcomes(self, latent: Latent) -> Rows | None:
        """Return all outcomes of the rows for a latent without batch axes, or None if unknown."""
        parts: list[Rows] = []
        for variable in latent.variables():
            if (found := self.variable_outcomes(variable)) is None:
                return None
            parts.append(Rows(found.rows.flatten(2), found.probabilities))
        rows, probabilities = product(*parts, axis=-1)
        return Rows(rows.unflatten(-1, latent.event_shape), probabilities)

    def variable_outcomes(self, variable: Latent) -> Rows | None:
        """Return all outcomes for a single variable; different variables are independent."""
        return None


def independent_rows(latent: Latent, n: int) -> Rows:
    """Return all outcomes of n independent samples."""
    assert isinstance(latent, Enumerable)
    states = latent.states()
    one = Rows(states.unsqueeze(0), latent.log_prob(states).exp())
    return product(*[one] * n)


def product(*parts: Rows, axis: int = 0) -> Rows:
    """Return the outcomes of independent parts, one after the other along an axis of the rows."""
    sizes = [torch.arange(len(part.probabilities)) for part in parts]
    chosen = torch.cartesian_prod(*sizes).view(-1, len(parts)).unbind(-1)
    rows = [part.rows[:, at] for part, at in zip(parts, chosen, strict=True)]
    chances = [part.probabilities[at] for part, at in zip(parts, chosen, strict=True)]
    return Rows(torch.cat(rows, axis), torch.stack(chances).prod(0))


class Coupling:
    r"""The contract of a coupling: n exchangeable samples, as negatively correlated as possible.

    An estimator needs two things: samples, and what undoes their dependence. For bits, a factor

    $$ \frac{1}{1-\rho} = \frac{q(1-q)}{P_{10}}, \quad P_{10} = P(b_i = 1, b_j = 0), \quad
       q = \min(p, 1-p). $$

    Everything is computed at q <= 1/2, and the bits are flipped where p > 1/2. The distribution is
    symmetric in p <-> 1-p, so no logit, however large, cancels or overflows.

    For categories it is a matrix. With Q_ab = P(z_i = a, z_j = b), the leave-one-out sum r of
    exchangeable samples has expectation (diag p - Q) F, where the gradient is (diag p - p p') F and
    F_a = E[f | z = a]. So

    $$ g = p \circ (I - T + 1 p')^{-1} (r / p), \quad T_{ab} = Q_{ab} / p_a, $$

    is unbiased if the pairs connect all categories. With two of them the matrix is 1/(1 - rho).
    """

    even_samples: ClassVar[bool] = False  # whether the number of samples must be even


class BitCoupling(Coupling, ABC):
    """A coupling of bits, corrected by one factor per latent."""

    @abstractmethod
    def sample_bits(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        """Draw n coupled samples `[n, *batch, d]` in the dtype of the logits, detached."""

    def debias(self, logits: Tensor, n: int) -> Tensor:
        """Return 1/(1 - rho) for every latent, finite at every logit."""
        raise NotImplementedError(f"{type(self).__name__} must define debias or undo_bits")

    def count_distribution(self, logits: Tensor, n: int) -> Tensor | None:
        """Return P(b_1 + ... + b_n = s) `[n + 1, *logits.shape]` in float64, None if unknown."""
        return None

    def correlation(self, logits: Tensor, n: int) -> Tensor:
        """Return rho, the common correlation of two of the n samples."""
        return 1 - 1 / self.debias(logits, n)

    def undo_bits(self, logits: Tensor, n: int, grad: Tensor) -> Tensor:
        """Turn the leave-one-out estimate over coupled bits into an unbiased gradient."""
        debias = self.debias(at_least_float32(logits), n)
        wanted, got = list(logits.shape), list(debias.shape)
        if got != wanted:
            raise ValueError(f"debias of {self!r} must return shape {wanted}, got {got}")
        return grad * debias


class CategoryCoupling(Coupling, ABC):
    """A coupling of choices among K categories."""

    @abstractmethod
    def sample_categories(
        self, logits: Tensor, n: int, generator: Generator | None = None
    ) -> Tensor:
        """Draw n coupled one-hot samples `[n, *batch, d, K]` in the dtype of the logits."""

    @abstractmethod
    def undo_categories(self, logits: Tensor, n: int, grad: Tensor) -> Tensor:
        """Turn the leave-one-out estimate `[*batch, d, K]` into an unbiased gradient."""

    def category_probabilities(self, probs: list[float], n: int) -> list[float] | None:
        """Return P of every n-tuple of categories, the last changing fastest; None if unknown."""
        return None


def flip(samples: Tensor, logits: Tensor) -> Tensor:
    """Turn samples of min(p, 1-p), overwritten, into samples of p, in the dtype of the logits."""
    flipped = logits.detach() > 0
    if torch.compiler.is_compiling() or in_function_transform():
        return (samples != flipped).to(logits.dtype)
    return samples.ne_(flipped).to(logits.dtype)  # in place, as this has no conversion


def flip_counts(counts: Tensor, logits: Tensor) -> Tensor:
    """Turn the distribution of the number of ones of min(p, 1-p) into that of p."""
    return torch.where(logits.detach() > 0, counts.flip(0), counts)
