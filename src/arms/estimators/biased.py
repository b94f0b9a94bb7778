"""What the biased baselines share: a mean over samples of the objective's own derivative times a factor, and z."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.estimators.base import Draw, Estimator, Slopes
from arms.estimators.rebar import FURTHEST
from arms.latents import Latent
from arms.noise import uniform


@dataclass(frozen=True)
class SlopeEstimator(Estimator):
    """mean_i df/db(b_i) c_i with some factor c_i: n evaluations, all differentiated. A subclass says what c_i is."""

    unbiased: ClassVar[bool] = False

    @property
    def slopes(self) -> Slopes:
        return "all"

    @abstractmethod
    def factor(self, draw: Draw) -> Tensor:
        """Return what the slopes are multiplied by, to be broadcast to `[n, *batch, d]`, at least in float32."""

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        return Draw(self, latent, latent.sample(self.num_samples, generator))

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        assert slopes is not None
        phi = at_least_float32(draw.logits)
        grad = (at_least_float32(slopes) * self.factor(draw)).mean(0)
        # A latent that cannot change has no gradient, whatever the slope and the temperature are.
        return torch.where(torch.sigmoid(-phi.abs()) > 0, grad, 0.0)


def logistic_draw(latent: Latent, n: int, generator: Generator | None) -> Tensor:
    """Return z = phi + logistic noise `[n, *batch, d]`, finite, at least in float32: 1[z > 0] has the bits' law."""
    phi = at_least_float32(latent.logits).clamp(-FURTHEST, FURTHEST)
    # A uniform may be 0, whose logit would outweigh any phi: a bit that is certain would be drawn wrong.
    noise = uniform(n, phi, generator).clamp(min=torch.finfo(phi.dtype).tiny).logit()
    return phi + noise


def sigmoid_slope(x: Tensor) -> Tensor:
    """Return the derivative of the sigmoid, without a difference that would lose the digits of its tails."""
    return torch.sigmoid(x) * torch.sigmoid(-x)
