"""The contract of a design: where the objective is evaluated, and how these points are drawn."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Generator, Tensor

from arms.arguments import as_count, lazy_property
from arms.latents import Enumerable, Latent


@dataclass(frozen=True)
class Needs:
    """What a design asks of the objective, per call."""

    evaluations: int | None
    """Number of points; None if it depends on the latent, as when all states are enumerated."""
    derivatives: int = 0
    """Number of points, the last ones, at which the derivative df/db is taken."""
    second_order: bool = False
    """Whether that derivative must itself be differentiable, so that parameters can learn."""


@dataclass(frozen=True)
class Draw:
    """Points at which the objective is evaluated, and what the estimator must know about them."""

    latent: Latent
    """What was drawn; its logits are constants."""
    points: Tensor
    """`[m, *batch, *event]`: the samples, then `extra` points, which may depend on parameters."""
    extra: int = 0
    """Number of points that are not samples."""
    memory: Any = None
    """What `combine` needs beside the points, such as the noise behind them."""
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

    Args:
        num_samples: The number of samples, n.
    """

    num_samples: int
    requires: ClassVar[tuple[type, ...]] = ()
    """Capabilities that the latent must have."""
    weighted: ClassVar[bool] = False
    """Whether samples have unequal weights, so that their plain mean is not the expectation."""
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
        """Whether this design can draw a latent."""
        return all(latent.has(capability) for capability in self.requires)

    def draw(self, latent: Latent, generator: Generator | None) -> Draw:
        """Draw the points for a latent, whose logits are constants."""
        return self.assemble(latent, self.draw_rows(latent, generator))

    def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
        """Draw the random rows."""
        raise NotImplementedError(f"{type(self).__name__} must define draw_rows or draw")

    def assemble(self, latent: Latent, rows: Tensor) -> Draw:
        """Return the draw that the rows stand for. By default, the rows are the samples."""
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
