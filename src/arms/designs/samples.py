"""Designs that draw samples and nothing else: independent, coupled, from noise, all states."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import as_count, at_least_float32
from arms.designs.base import Draw, Needs, RowDesign, Rows, independent_rows, product
from arms.designs.couplings.base import Coupling
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

    @lazy_property
    def needs(self) -> Needs:
        return Needs(self.num_samples, self.num_samples if self.differentiated else 0)

    def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
        return latent.sample(self.num_samples, generator)

    def variable_outcomes(self, variable: Latent) -> Rows:
        return independent_rows(variable, self.num_samples)


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
        if not any(hasattr(self.coupling, name) for name in ("sample_bits", "sample_categories")):
            raise ValueError(
                "coupling must have the methods sample_bits and debias, or sample_categories and "
                f"undo_categories, got {self.coupling!r}: for example arms.designs.Systematic()"
            )
        name = f"num_samples of {type(self.coupling).__name__}()"
        even = getattr(self.coupling, "even_samples", False)
        object.__setattr__(self, "num_samples", as_count(self.num_samples, 2, name, even=even))

    def takes(self, latent: Latent) -> bool:
        return isinstance(latent, Couplable) and latent.is_coupled_by(self.coupling)

    def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
        assert isinstance(latent, Couplable)
        samples = latent.sample_coupled(self.coupling, self.num_samples, generator)
        wanted, got = [self.num_samples, *latent.logits.shape], list(samples.shape)
        if got != wanted:  # the coupling may be a user's
            raise ValueError(f"{self.coupling!r} must return samples of shape {wanted}, got {got}")
        return samples

    def variable_outcomes(self, variable: Latent) -> Rows | None:
        assert isinstance(variable, Couplable)
        found = variable.coupled_outcomes(self.coupling, self.num_samples)
        return None if found is None else Rows(*found)

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
    least_samples: ClassVar[int] = 2
    even_samples: ClassVar[bool] = True

    def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
        return uniform(self.num_samples // 2, at_least_float32(latent.logits), generator)

    def assemble(self, latent: Latent, rows: Tensor) -> Draw:
        phi = at_least_float32(latent.logits.detach())
        first = indicator(torch.sigmoid(phi) - rows)
        second = 1 - indicator(torch.sigmoid(-phi) - rows)
        return Draw(latent, torch.cat([first, second]).to(latent.logits.dtype), memory=rows)

    def variable_outcomes(self, variable: Latent) -> Rows:
        p, not_p = (torch.sigmoid(logit).item() for logit in (variable.logits, -variable.logits))
        ends = torch.tensor(sorted({0.0, p, not_p, 1.0}), dtype=torch.float64)
        middle = (ends[1:] + ends[:-1]) / 2
        return product(*[Rows(middle.view(1, -1, 1), ends.diff())] * (self.num_samples // 2))


@dataclass(frozen=True)
class AllStates(RowDesign):
    """Every joint state, each weighted by its probability; nothing is random.

    Args:
        num_samples: Ignored: there are as many points as states.
    """

    num_samples: int = 1

    requires: ClassVar[tuple[type, ...]] = (Enumerable,)
    weighted: ClassVar[bool] = True

    @lazy_property
    def needs(self) -> Needs:
        return Needs(None)

    def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
        assert isinstance(latent, Enumerable)
        shape = list(latent.logits.shape)
        if not latent.event_shape.numel():
            raise ValueError(f"enumeration needs at least one latent, got logits {shape}")
        if latent.count_states() > MOST_STATES:
            raise ValueError(
                f"at most {MOST_STATES} states are enumerated, got {latent.count_states()} for "
                f"logits {shape}: use an estimator such as arms"
            )
        return latent.states_per_row()

    def assemble(self, latent: Latent, rows: Tensor) -> Draw:
        with torch.no_grad():
            wide = latent.with_logits(latent.logits.detach().double())
            return Draw(latent, rows, weights=wide.log_prob(rows).exp())

    def row_outcomes(self, latent: Latent) -> Rows:
        return Rows(self.draw_rows(latent.expand(1), None), torch.ones(1, dtype=torch.float64))
