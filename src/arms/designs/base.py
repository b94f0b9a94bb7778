"""The interfaces of designs and of couplings. A design chooses the points to evaluate."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Generator, Tensor

from arms.arguments import as_count, at_least_float32, in_function_transform, lazy_property
from arms.latents import Enumerable, Latent


@dataclass(frozen=True)
class Needs:
    """The number of evaluations and derivatives that a design needs for one estimate."""

    evaluations: int | None
    """Number of points; None if it depends on the latent, as for enumeration."""
    derivatives: int = 0
    """Number of points at which the derivative df/db is taken; these are the last points."""
    second_order: bool = False
    """Whether df/db must be differentiable, so that the estimator's parameters can learn."""
    differences: bool = False
    """Whether the estimate uses small differences of values, which half precision would lose."""


@dataclass(frozen=True)
class Draw:
    """The points at which the objective is evaluated, and facts that the estimator needs."""

    latent: Latent
    """The latent that the points were drawn from, with constant logits."""
    points: Tensor
    """The samples followed by `extra` further points, `[m, *batch, *event]`.

    The further points may depend on the estimator's parameters.
    """
    extra: int = 0
    """Number of points that are not samples."""
    memory: Any = None
    """Further data for `combine`, such as the noise behind the points."""
    weights: Tensor | None = None
    """The weights of the samples in the expectation, `[n, *batch]`; None for equal weights."""

    @property
    def samples(self) -> Tensor:
        """The samples `[n, *batch, *event]`."""
        return self.points[: len(self.points) - self.extra] if self.extra else self.points


class Rows(NamedTuple):
    """All possible outcomes of `Design.draw_rows`, for a latent without batch axes."""

    rows: Tensor
    """The random rows of every outcome, `[rows, outcomes, *event]`."""
    probabilities: Tensor
    """The probability of every outcome, `[outcomes]`."""


@dataclass(frozen=True)
class Design:
    """The points at which the objective is evaluated, and their joint distribution.

    Most designs implement `draw_rows`, which draws random rows `[rows, *batch, *event]`, such as
    samples. They also implement `variable_outcomes`, which lists all outcomes for exact tests. A
    design with continuous noise implements only `draw`.
    """

    num_samples: int
    """The number of samples, n."""
    requires: ClassVar[tuple[type, ...]] = ()
    """Capabilities that a latent must have for this design."""
    weighted: ClassVar[bool] = False
    """Whether samples have unequal weights, so that the plain mean of f over them is biased."""
    uses_extra_values: ClassVar[bool] = False
    """Whether the estimate would be biased without the values at points that are not samples."""
    least_samples: ClassVar[int] = 1
    in_pairs: ClassVar[bool] = False

    def __post_init__(self) -> None:
        least = 2 if self.in_pairs else self.least_samples
        count = as_count(self.num_samples, least, "num_samples", even=self.in_pairs)
        object.__setattr__(self, "num_samples", count)

    @lazy_property
    def needs(self) -> Needs:
        """The number of evaluations and derivatives that this design needs for one estimate."""
        return Needs(self.num_samples)

    def takes(self, latent: Latent) -> bool:
        """Return whether this design can draw a latent."""
        return latent.has_all(self.requires)

    def draw(self, latent: Latent, generator: Generator | None) -> Draw:
        """Draw the points for a latent with constant logits."""
        return self.assemble(latent, self.draw_rows(latent, generator))

    def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
        """Draw random rows `[rows, *batch, *event]`, from which `assemble` builds the points."""
        raise NotImplementedError(f"{type(self).__name__} must define draw_rows or draw")

    def assemble(self, latent: Latent, rows: Tensor) -> Draw:
        """Build a draw from the rows of `draw_rows`. By default, the rows are the samples."""
        return Draw(latent, rows)

    def correct(self, latent: Latent, grad: Tensor) -> Tensor:
        """Convert a leave-one-out estimate to an unbiased estimate.

        `grad` is the leave-one-out estimate from samples of this design.
        """
        return grad  # independent samples need no correction

    def outcomes(self, latent: Latent) -> tuple[Draw, Tensor] | None:
        """Return one draw that contains all outcomes of `draw`, and their probabilities.

        Return None if the outcomes cannot be listed. The latent has no batch axes. The points of
        the returned draw are `[m, outcomes, 1, *event]`, and the probabilities are `[outcomes]`.
        The axis of length 1 is the last batch axis, so that estimators do not treat the outcomes as
        rows of one batch.
        """
        if (found := self.row_outcomes(latent)) is None:
            return None
        many = latent.expand(len(found.probabilities), 1)
        return self.assemble(many, found.rows.unsqueeze(2)), found.probabilities

    def row_outcomes(self, latent: Latent) -> Rows | None:
        """Return all outcomes of `draw_rows` for a latent without batch axes.

        Return None if the outcomes cannot be listed.
        """
        parts: list[Rows] = []
        for variable in latent.variables():
            if (found := self.variable_outcomes(variable)) is None:
                return None
            parts.append(Rows(found.rows.flatten(2), found.probabilities))
        rows, probabilities = product(*parts, axis=-1)
        return Rows(rows.unflatten(-1, latent.event_shape), probabilities)

    def variable_outcomes(self, variable: Latent) -> Rows | None:
        """Return all outcomes of `draw_rows` for a latent with a single variable.

        Return None if the outcomes cannot be listed. Different variables are independent.
        """
        return None


def independent_rows(latent: Latent, n: int) -> Rows:
    """Return all outcomes of n independent samples, for a latent without batch axes."""
    assert isinstance(latent, Enumerable)
    states = latent.states()
    one = Rows(states.unsqueeze(0), latent.log_prob(states).exp())
    return product(*[one] * n)


def product(*parts: Rows, axis: int = 0) -> Rows:
    """Return all joint outcomes of independent parts, with their rows concatenated along `axis`."""
    sizes = [torch.arange(len(part.probabilities)) for part in parts]
    chosen = torch.cartesian_prod(*sizes).view(-1, len(parts)).unbind(-1)
    rows = [part.rows[:, at] for part, at in zip(parts, chosen, strict=True)]
    chances = [part.probabilities[at] for part, at in zip(parts, chosen, strict=True)]
    return Rows(torch.cat(rows, axis), torch.stack(chances).prod(0))


class Coupling:
    r"""The interface of a coupling: n exchangeable samples with negative correlation.

    A coupling draws these samples. It also corrects the
    leave-one-out estimate for the dependence of these samples. For bits, the correction is a factor

    $$ \frac{1}{1-\rho} = \frac{q(1-q)}{P_{10}}, \quad P_{10} = P(b_i = 1, b_j = 0), \quad
       q = \min(p, 1-p). $$

    Here p is the probability of a one, and rho is the correlation of two samples. All quantities
    are computed for the rarer value, which has the probability q <= 1/2. Where p is above 1/2, the
    bits are then flipped. The results are therefore accurate for large logits of either sign.

    For categories, the correction is a matrix. Let p be the vector of probabilities. Let Q_ab =
    P(z_i = a, z_j = b) for two samples z_i and z_j, and F_a = E[f | z_i = a]. The leave-one-out
    estimate r from exchangeable samples has the expectation (diag p - Q) F, but the gradient is
    (diag p - p p') F. The estimate

    $$ g = p \circ (I - T + 1 p')^{-1} (r / p), \quad T_{ab} = Q_{ab} / p_a, $$

    is unbiased if pairs of samples connect all categories. For two categories, the correction is
    the same factor 1/(1 - rho).
    """

    even_samples: ClassVar[bool] = False  # whether the number of samples must be even


class BitCoupling(Coupling, ABC):
    """A coupling of bits. One factor for each bit corrects for the dependence of its samples."""

    @abstractmethod
    def sample_bits(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        """Draw n coupled samples `[n, *batch, d]` in the dtype of the logits, detached."""

    def debias(self, logits: Tensor, n: int) -> Tensor:
        """Return 1/(1 - rho) for every bit, in the shape of the logits.

        rho is the correlation of two samples. The result must be finite at every logit.
        """
        raise NotImplementedError(f"{type(self).__name__} must define debias or undo_bits")

    def count_distribution(self, logits: Tensor, n: int) -> Tensor | None:
        """Return the distribution of the number of ones among the n samples of each bit.

        Entry s of the first axis is P(b_1 + ... + b_n = s). The result is
        `[n + 1, *logits.shape]` in float64, or None if the distribution is unknown.
        """
        return None

    def bit_probabilities(self, logits: Tensor, n: int) -> Tensor | None:
        """Return the probability of every outcome of n samples of a bit, `[2^n, *logits.shape]`.

        The outcomes are in lexicographic order: the last sample changes fastest. Return None if the
        probabilities are unknown. By default, outcomes with the same number of ones are assumed to
        be equally likely.
        """
        if (counts := self.count_distribution(logits, n)) is None:
            return None
        ones = torch.cartesian_prod(*[torch.arange(2)] * n).view(-1, n).sum(-1)
        ways = torch.tensor([math.comb(n, count) for count in range(n + 1)])
        return (counts / ways.view(-1, *[1] * logits.ndim))[ones]

    def correlation(self, logits: Tensor, n: int) -> Tensor:
        """Return rho, the correlation of any two of the n samples of each bit."""
        return 1 - 1 / self.debias(logits, n)

    def undo_bits(self, logits: Tensor, n: int, grad: Tensor) -> Tensor:
        """Convert `grad`, a leave-one-out estimate from n coupled bits, to an unbiased estimate."""
        debias = self.debias(at_least_float32(logits), n)
        wanted, got = list(logits.shape), list(debias.shape)
        if got != wanted:
            raise ValueError(f"{self!r}.debias must return shape {wanted}, got {got}")
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
        """Convert `grad`, a leave-one-out estimate `[*batch, d, K]`, to an unbiased estimate."""

    def category_probabilities(self, probs: list[float], n: int) -> list[float] | None:
        """Return the probabilities of all K^n outcomes of n samples of a single choice.

        `probs` are the probabilities of the K categories. The outcomes are in lexicographic order:
        the last sample changes fastest. Return None if the probabilities are unknown.
        """
        return None


def flip(samples: Tensor, logits: Tensor) -> Tensor:
    """Flip the samples of bits with p > 1/2, and convert all samples to the dtype of the logits.

    A bit that is 1 with probability min(p, 1-p) becomes a bit that is 1 with probability p. Here p
    is the sigmoid of the logit. The tensor `samples` may be overwritten.
    """
    flipped = logits.detach() > 0
    if torch.compiler.is_compiling() or in_function_transform():
        return (samples != flipped).to(logits.dtype)
    return samples.ne_(flipped).to(logits.dtype)  # `ne_` keeps the dtype; `ne` would return bools


def flip_counts(counts: Tensor, logits: Tensor) -> Tensor:
    """Return the distributions of the number of ones `[n + 1, *logits.shape]` after `flip`.

    `counts` are the distributions before `flip`, in the same shape.
    """
    return torch.where(logits.detach() > 0, counts.flip(0), counts)
