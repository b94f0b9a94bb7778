"""What the biased baselines share: the objective's own derivative, taken back to the logits by some path, and noise."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.estimators.base import Draw, Estimator, Slopes
from arms.estimators.rebar import FURTHEST
from arms.latents import Latent, OneHot
from arms.noise import uniform


@dataclass(frozen=True)
class SlopeEstimator(Estimator):
    """mean_i df/db(b_i) c_i with some factor c_i: n evaluations, all differentiated. A subclass says what c_i is.

    Of categories, c_i is the derivative of a softmax: see `softmax_slope`.
    """

    unbiased: ClassVar[bool] = False

    @property
    def slopes(self) -> Slopes:
        return "all"

    @abstractmethod
    def factor(self, draw: Draw) -> Tensor:
        """Return what the slopes of bits are multiplied by, to broadcast to `[n, *batch, d]`, at least in float32."""

    def pull_back(self, draw: Draw, slopes: Tensor) -> Tensor:
        """Return what slopes `[n, *batch, d, K]` of categories make of the logits', sample by sample."""
        raise NotImplementedError(f"{type(self).__name__} takes bits only")

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        return Draw(self, latent, latent.sample(self.num_samples, generator))

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        assert slopes is not None
        if isinstance(draw.latent, OneHot):
            return self.pull_back(draw, at_least_float32(slopes)).mean(0)
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


def gumbel_draw(latent: OneHot, n: int, generator: Generator | None) -> Tensor:
    """Return z = log p + Gumbel noise `[n, *batch, d, K]`, at least in float32: the largest is a category drawn."""
    log_probs = torch.log_softmax(at_least_float32(latent.logits), -1)
    tiny = torch.finfo(log_probs.dtype).tiny
    clocks = -torch.log1p(-uniform(n, log_probs, generator))
    return log_probs - clocks.clamp(min=tiny).log()


def softmax_slope(probs: Tensor, slopes: Tensor) -> Tensor:
    """Return the slopes with respect to y = softmax(z) taken back to z: (diag y - y y') times them."""
    return probs * (slopes - (probs * slopes).sum(-1, keepdim=True))


def sigmoid_slope(x: Tensor) -> Tensor:
    """Return the derivative of the sigmoid, without a difference that would lose the digits of its tails."""
    return torch.sigmoid(x) * torch.sigmoid(-x)
