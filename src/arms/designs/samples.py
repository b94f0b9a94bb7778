"""Designs that draw samples and nothing else: independent, coupled, from noise, all states."""

import itertools
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import as_count, at_least_float32
from arms.designs.base import Draw, Needs, RowDesign, Rows, by_variable, independent_rows, product
from arms.designs.couplings import Coupling
from arms.latents import Binary, Couplable, Enumerable, Latent
from arms.latents.base import MOST_STATES
from arms.lazy import lazy_property
from arms.random import indicator, uniform


@dataclass(frozen=True)
class Independent(RowDesign):
    """n independent samples of any latent.

    Args:
        num_samples: n.
        differentiated: Whether the objective is differentiated at all samples.
    """

    differentiated: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_samples", as_count(self.num_samples, 1, "num_samples"))

    @lazy_property
    def needs(self) -> Needs:
        return Needs(self.num_samples, self.num_samples if self.differentiated else 0)

    def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
        return latent.sample(self.num_samples, generator)

    def row_outcomes(self, latent: Latent) -> Rows | None:
        return by_variable(latent, lambda one: independent_rows(one, self.num_samples))


@dataclass(frozen=True)
class Coupled(RowDesign):
    """n exchangeable samples, negatively correlated by a coupling of each variable.

    Args:
        num_samples: n, at least 2.
        coupling: How the n samples of one variable depend on each other.
    """

    coupling: Coupling

    requires: ClassVar[tuple[type, ...]] = (Couplable,)

    def __post_init__(self) -> None:
        check_coupling(self.coupling)
        even = getattr(self.coupling, "even_samples", False)
        count = as_count(
            self.num_samples, 2, f"num_samples of {type(self.coupling).__name__}()", even=even
        )
        object.__setattr__(self, "num_samples", count)

    def takes(self, latent: Latent) -> bool:
        return isinstance(latent, Couplable) and latent.is_coupled_by(self.coupling)

    def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
        return coupled_samples(self.coupling, latent, self.num_samples, generator)

    def row_outcomes(self, latent: Latent) -> Rows | None:
        return by_variable(latent, lambda one: coupled_rows(self.coupling, one, self.num_samples))

    def correct(self, latent: Latent, grad: Tensor) -> Tensor:
        assert isinstance(latent, Couplable)
        return latent.undo_coupling(self.coupling, self.num_samples, grad)


@dataclass(frozen=True)
class AntitheticNoise(RowDesign):
    """n/2 uniform numbers u per bit, and the bits 1[u < p] and 1[1 - u < p] of each.

    The rows are the uniform numbers. Estimates are linear in u, so for exact tests each interval
    on which both bits are constant is represented by its midpoint.

    Args:
        num_samples: n, even.
    """

    requires: ClassVar[tuple[type, ...]] = (Binary,)

    def __post_init__(self) -> None:
        count = as_count(self.num_samples, 2, "num_samples", even=True)
        object.__setattr__(self, "num_samples", count)

    def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
        return uniform(self.num_samples // 2, at_least_float32(latent.logits), generator)

    def assemble(self, latent: Latent, rows: Tensor) -> Draw:
        phi = at_least_float32(latent.logits.detach())
        first = indicator(torch.sigmoid(phi) - rows)
        second = 1 - indicator(torch.sigmoid(-phi) - rows)
        return Draw(latent, torch.cat([first, second]).to(latent.logits.dtype), memory=rows)

    def row_outcomes(self, latent: Latent) -> Rows | None:
        def of_variable(one: Latent) -> Rows:
            p, not_p = torch.sigmoid(one.logits).item(), torch.sigmoid(-one.logits).item()
            cells = list(itertools.pairwise(sorted({0.0, p, not_p, 1.0})))
            middle = torch.tensor([(low + high) / 2 for low, high in cells], dtype=torch.float64)
            width = torch.tensor([high - low for low, high in cells], dtype=torch.float64)
            return product(*[Rows(middle.view(1, -1, 1), width)] * (self.num_samples // 2))

        return by_variable(latent, of_variable)


@dataclass(frozen=True)
class AllStates(RowDesign):
    """Every joint state, each weighted by its probability; nothing is random.

    Args:
        num_samples: Ignored: there are as many points as states.
    """

    num_samples: int = 1

    requires: ClassVar[tuple[type, ...]] = (Enumerable,)

    @lazy_property
    def needs(self) -> Needs:
        return Needs(None)

    @property
    def weighted(self) -> bool:
        return True

    def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
        assert isinstance(latent, Enumerable)
        event = ", ".join(map(str, latent.event_shape))
        if not latent.event_shape.numel():
            raise ValueError(
                f"enumeration needs at least one latent, got logits {list(latent.logits.shape)}"
            )
        if latent.count_states() > MOST_STATES:
            raise ValueError(
                f"at most {MOST_STATES} states are enumerated, got {latent.count_states()} for "
                f"logits [..., {event}]: use an estimator such as arms"
            )
        states = latent.states().view(-1, *[1] * len(latent.batch_shape), *latent.event_shape)
        return states.expand(-1, *latent.logits.shape)

    def assemble(self, latent: Latent, rows: Tensor) -> Draw:
        with torch.no_grad():
            wide = latent.with_logits(latent.logits.detach().double())
            return Draw(latent, rows, weights=wide.log_prob(rows).exp())

    def row_outcomes(self, latent: Latent) -> Rows:
        return Rows(self.draw_rows(latent.expand(1), None), torch.ones(1, dtype=torch.float64))


def check_coupling(coupling: object) -> None:
    """Raise if an object cannot be a coupling."""
    if not any(hasattr(coupling, name) for name in ("sample_bits", "sample_categories")):
        raise ValueError(
            "coupling must be an object with the methods sample_bits and debias, or "
            f"sample_categories and undo_categories, got {coupling!r}: for example "
            "arms.designs.Systematic()"
        )


def coupled_samples(
    coupling: Coupling, latent: Latent, n: int, generator: Generator | None
) -> Tensor:
    """Draw n coupled samples and check their shape, since the coupling may be a user's."""
    assert isinstance(latent, Couplable)
    samples = latent.sample_coupled(coupling, n, generator)
    expected = (n, *latent.logits.shape)
    if samples.shape != expected:
        raise ValueError(
            f"{coupling!r} must return samples of shape {list(expected)}, got {list(samples.shape)}"
        )
    return samples


def coupled_rows(coupling: Coupling, variable: Latent, n: int) -> Rows | None:
    """Return all outcomes of n coupled samples of a single variable."""
    assert isinstance(variable, Couplable)
    found = variable.coupled_outcomes(coupling, n)
    return None if found is None else Rows(*found)
