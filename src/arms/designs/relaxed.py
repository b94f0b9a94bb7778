"""Designs with continuous noise: relaxed samples, and pairs of them given the bits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

from arms.arguments import at_least_float32
from arms.designs.base import Design, Draw, Needs
from arms.latents import Binary, HasMean, Latent, Relaxable
from arms.latents.bits import LARGEST_PERTURBED
from arms.lazy import lazy_property
from arms.random import uniform


@dataclass(frozen=True)
class Perturbed(Design):
    """n samples, or relaxed points instead of samples, from logits plus noise.

    The objective is differentiated at all points. The perturbed logits are kept in `memory`.

    Args:
        num_samples: n.
        temperature: The perturbed logits are divided by it before the relaxation.
        hard: Whether the points are samples; otherwise they are their relaxations.
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
    """Return the latent whose mean is the relaxation of perturbed logits."""
    found = latent.with_logits(perturbed / temperature)
    assert isinstance(found, HasMean)
    return found


@dataclass(frozen=True)
class RelaxedPairs(Design):
    """m bits b, and for each of them two points z and z~ on the logistic scale, both given b.

    With s = 2b - 1 and logistic noise l, z~ = s softplus(l + softplus(s phi)), which no logit
    overflows. `memory` holds z and z~ `[2m, ...]`, and d z~/d phi `[m, ...]`.

    Args:
        num_samples: m, the number of samples of b.
        relax: Maps z to the points between 0 and 1 at which the objective is evaluated and
            differentiated; None if the objective is evaluated at the samples alone.
    """

    relax: Callable[[Tensor], Tensor] | None
    requires: ClassVar[tuple[type, ...]] = (Binary,)

    @lazy_property
    def needs(self) -> Needs:
        m = self.num_samples
        return Needs(m) if self.relax is None else Needs(3 * m, 2 * m, second_order=True)

    def draw(self, latent: Latent, generator: Generator | None) -> Draw:
        samples = latent.sample(self.num_samples, generator)
        noise = uniform(2, at_least_float32(samples), generator).logit()
        z, path = latent_points(latent.logits, samples, noise)
        if self.relax is None:
            return Draw(latent, samples, memory=(z, path))
        points = torch.cat([samples, self.relax(z).to(samples.dtype)])
        return Draw(latent, points, extra=2 * self.num_samples, memory=(z, path))


def latent_points(phi: Tensor, samples: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return z and z~ given the bits `[m, ...]`, stacked as `[2m, ...]`, and d z~/d phi.

    `noise` `[2, m, ...]` is logistic; where it is -inf, z is 0.
    """
    phi = at_least_float32(phi).clamp(-LARGEST_PERTURBED, LARGEST_PERTURBED)
    sign = 2 * samples.to(phi.dtype) - 1
    depth = noise + nn.functional.softplus(sign * phi)
    z = sign * nn.functional.softplus(depth)
    return z.flatten(0, 1), torch.sigmoid(depth[1]) * torch.sigmoid(sign * phi)
