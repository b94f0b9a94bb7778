"""Designs that only draw samples: independent or coupled samples, and all states."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import as_count, at_least_float32, lazy_property
from arms.designs.base import (
    BitCoupling,
    CategoryCoupling,
    Coupling,
    Design,
    Draw,
    Needs,
    Rows,
    independent_rows,
    product,
)
from arms.latents import Binary, Couplable, Enumerable, HasMean, Latent, Relaxable
from arms.latents.categories import one_hot
from arms.random import indicator, uniform


@dataclass(frozen=True)
class Independent(Design):
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
class Coupled(Design):
    """n exchangeable samples, drawn by a coupling so that they are negatively correlated.

    Args:
        num_samples: n, at least 2.
        coupling: The joint distribution of the n samples of each variable.
    """

    coupling: Coupling
    requires: ClassVar[tuple[type, ...]] = (Couplable,)

    def __post_init__(self) -> None:
        coupling = self.coupling
        if not isinstance(coupling, BitCoupling | CategoryCoupling):
            wanted = "a BitCoupling or a CategoryCoupling, such as arms.designs.Systematic()"
            raise ValueError(f"coupling must be {wanted}, got {coupling!r}")
        name = f"num_samples of {type(coupling).__name__}()"
        count = as_count(self.num_samples, 2, name, even=coupling.even_samples)
        object.__setattr__(self, "num_samples", count)

    def takes(self, latent: Latent) -> bool:
        kinds = [BitCoupling if one.has(Binary) else CategoryCoupling for one in latent.elements()]
        return super().takes(latent) and all(isinstance(self.coupling, kind) for kind in kinds)

    def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
        coupling, n = self.coupling, self.num_samples

        def of_part(part: Latent) -> Tensor:
            if part.has(Binary) and isinstance(coupling, BitCoupling):
                return coupling.sample_bits(part.logits, n, generator)
            assert isinstance(coupling, CategoryCoupling)
            return coupling.sample_categories(part.logits, n, generator)

        samples = latent.map_parts(of_part)
        wanted = (n, *latent.logits.shape)
        if samples.shape != wanted:  # users can pass their own couplings
            shapes = f"shape {list(wanted)}, got {list(samples.shape)}"
            raise ValueError(f"the coupling {coupling!r} must return samples of {shapes}")
        return samples

    def correct(self, latent: Latent, grad: Tensor) -> Tensor:
        coupling, n = self.coupling, self.num_samples

        def of_part(part: Latent, own: Tensor) -> Tensor:
            if part.has(Binary) and isinstance(coupling, BitCoupling):
                return coupling.undo_bits(part.logits, n, own)
            assert isinstance(coupling, CategoryCoupling)
            return coupling.undo_categories(part.logits, n, own)

        return latent.map_parts(of_part, grad)

    def variable_outcomes(self, variable: Latent) -> Rows | None:
        coupling, n = self.coupling, self.num_samples
        if variable.has(Binary) and isinstance(coupling, BitCoupling):
            chances = coupling.bit_probabilities(variable.logits, n)
            if chances is None:
                return None
            patterns = torch.cartesian_prod(*[torch.arange(2)] * n).view(-1, n)
            return Rows(patterns.T.unsqueeze(-1).double(), chances.squeeze(-1))
        assert isinstance(coupling, CategoryCoupling)
        probs = torch.softmax(variable.logits[0], -1).tolist()
        found = coupling.category_probabilities(probs, n)
        if found is None:
            return None
        tuples = torch.cartesian_prod(*[torch.arange(len(probs))] * n).view(-1, n)
        samples = one_hot(tuples.T.unsqueeze(-1), variable.logits).double()
        return Rows(samples, torch.tensor(found, dtype=torch.float64))


@dataclass(frozen=True)
class AntitheticNoise(Design):
    """n/2 pairs of antithetic samples of bits.

    A bit is 1[u < p] in the first sample of a pair, and 1[1 - u < p] in the second sample. The
    uniform number u is drawn once for each pair and bit.
    """

    requires: ClassVar[tuple[type, ...]] = (Binary,)
    in_pairs: ClassVar[bool] = True

    def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
        return uniform(self.num_samples // 2, at_least_float32(latent.logits), generator)

    def assemble(self, latent: Latent, rows: Tensor) -> Draw:
        phi = at_least_float32(latent.logits.detach())
        first = indicator(torch.sigmoid(phi) - rows)
        second = 1 - indicator(torch.sigmoid(-phi) - rows)
        return Draw(latent, torch.cat([first, second]).to(latent.logits.dtype), memory=rows)

    def variable_outcomes(self, variable: Latent) -> Rows:
        # On an interval of u where both bits are constant, estimates are linear in u. The middle of
        # the interval therefore gives their mean.
        p, not_p = (torch.sigmoid(logit).item() for logit in (variable.logits, -variable.logits))
        ends = torch.tensor(sorted({0.0, p, not_p, 1.0}), dtype=torch.float64)
        middle = (ends[1:] + ends[:-1]) / 2
        return product(*[Rows(middle.view(1, -1, 1), ends.diff())] * (self.num_samples // 2))


@dataclass(frozen=True)
class AllStates(Design):
    """All joint states, with their probabilities as weights. Nothing is random."""

    num_samples: int = 1
    """Ignored, because the number of points is the number of states."""
    requires: ClassVar[tuple[type, ...]] = (Enumerable,)
    weighted: ClassVar[bool] = True

    @lazy_property
    def needs(self) -> Needs:
        return Needs(None)

    def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
        assert isinstance(latent, Enumerable)
        return latent.states_per_row()

    def assemble(self, latent: Latent, rows: Tensor) -> Draw:
        with torch.no_grad():
            wide = latent.with_logits(latent.logits.detach().double())
            return Draw(latent, rows, weights=wide.log_prob(rows).exp())

    def row_outcomes(self, latent: Latent) -> Rows:
        return Rows(self.draw_rows(latent.expand(1), None), torch.ones(1, dtype=torch.float64))


@dataclass(frozen=True)
class Perturbed(Design):
    """n samples or relaxed points, computed from perturbed logits, which are logits plus noise.

    `memory` contains the perturbed logits.

    Args:
        num_samples: n.
        temperature: The temperature of the relaxation, which divides the perturbed logits.
        hard: Whether the points are samples. Otherwise, they are relaxed points.
    """

    temperature: float
    hard: bool
    requires: ClassVar[tuple[type, ...]] = (Relaxable, HasMean)

    @lazy_property
    def needs(self) -> Needs:
        return Needs(self.num_samples, self.num_samples)

    def draw(self, latent: Latent, generator: Generator | None) -> Draw:
        assert isinstance(latent, Relaxable)
        z = latent.perturb(self.num_samples, generator)
        points = latent.harden(z) if self.hard else relaxed(latent, z, self.temperature).mean()
        return Draw(latent, points.to(latent.logits.dtype), memory=z)


def relaxed(latent: Latent, perturbed: Tensor, temperature: float) -> HasMean:
    """Return a latent with the logits `perturbed / temperature`. Its means are relaxed points."""
    found = latent.with_logits(perturbed / temperature)
    assert isinstance(found, HasMean)
    return found
