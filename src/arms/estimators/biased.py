"""What the biased baselines share: the objective's own derivative, taken back to the logits by some path, and noise."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import as_positive, at_least_float32
from arms.estimators.base import Draw, Estimator, Slopes
from arms.estimators.rebar import FURTHEST
from arms.latents import Bernoulli, Latent, OneHot
from arms.noise import uniform


@dataclass(frozen=True)
class SlopeEstimator(Estimator):
    """The mean of df/db(b_i), each taken back to the logits by some path. A subclass says what path: `pull_back`."""

    unbiased: ClassVar[bool] = False

    @property
    def slopes(self) -> Slopes:
        return "all"

    @abstractmethod
    def pull_back(self, draw: Draw, slopes: Tensor) -> Tensor:
        """Return what slopes `[n, *batch, *event]` make of the logits', sample by sample, at least in float32."""

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        return Draw(self, latent, latent.sample(self.num_samples, generator))

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        assert slopes is not None
        grad = self.pull_back(draw, at_least_float32(slopes)).mean(0)
        if isinstance(draw.latent, OneHot):
            return grad
        # A bit that cannot change has no gradient, whatever the slope and the temperature are.
        return torch.where(torch.sigmoid(-at_least_float32(draw.logits).abs()) > 0, grad, 0.0)


@dataclass(frozen=True)
class RelaxedEstimator(SlopeEstimator):
    """The path y = sigmoid(z / tau), of categories softmax(z / tau), where z is the logits and noise.

    A subclass says at which points the objective is evaluated: `points_at`.
    """

    temperature: float = 0.5

    latents: ClassVar[tuple[type[Latent], ...]] = (Bernoulli, OneHot)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "temperature", as_positive(self.temperature, "temperature"))

    @abstractmethod
    def points_at(self, latent: Latent, z: Tensor) -> Tensor:
        """Return the points `[n, *batch, *event]` for z of that shape."""

    def relaxed(self, latent: Latent, z: Tensor) -> Latent:
        """Return the latent whose mean is the relaxed point y."""
        return replace(latent, logits=z / self.temperature)

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        n = self.num_samples
        z = latent.perturbed(n, generator) if isinstance(latent, OneHot) else logistic_draw(latent, n, generator)
        return Draw(self, latent, self.points_at(latent, z).to(latent.logits.dtype), memory=(z,))

    def pull_back(self, draw: Draw, slopes: Tensor) -> Tensor:
        (z,) = draw.memory
        return self.relaxed(draw.latent, z).covary(slopes) / self.temperature


def logistic_draw(latent: Latent, n: int, generator: Generator | None) -> Tensor:
    """Return z = phi + logistic noise `[n, *batch, d]`, finite, at least in float32: 1[z > 0] has the bits' law."""
    phi = at_least_float32(latent.logits).clamp(-FURTHEST, FURTHEST)
    # A uniform may be 0, whose logit would outweigh any phi: a bit that is certain would be drawn wrong.
    noise = uniform(n, phi, generator).clamp(min=torch.finfo(phi.dtype).tiny).logit()
    return phi + noise


def sigmoid_slope(x: Tensor) -> Tensor:
    """Return the derivative of the sigmoid, without a difference that would lose the digits of its tails."""
    return torch.sigmoid(x) * torch.sigmoid(-x)
