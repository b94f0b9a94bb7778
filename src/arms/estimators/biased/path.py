"""Code that biased estimators share: they map derivatives of f to the logits, per sample."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from arms.arguments import as_positive, at_least_float32
from arms.designs import Draw, Independent
from arms.estimators.base import Estimator, count_samples, set_design
from arms.latents import Binary, Latent


@dataclass(frozen=True)
class PathEstimator(Estimator):
    """The mean over independent samples of a derivative that is mapped to the logits.

    The estimate is zero for bits with p = 0 or 1.
    """

    num_samples: int
    """The number of samples, n."""
    unbiased = False

    def __post_init__(self) -> None:
        names = [name for name in ("temperature", "gap") if hasattr(self, name)]
        positive = {name: as_positive(getattr(self, name), name) for name in names}
        set_design(self, Independent(count_samples(self, 1), differentiated=True), **positive)

    @abstractmethod
    def path(self, part: Latent, samples: Tensor, derivatives: Tensor) -> Tensor:
        """Map derivatives at the samples, or at the noise behind them, to the logits."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        assert derivatives is not None
        source = draw.points if draw.memory is None else draw.memory
        return draw.latent.map_parts(self._mean, source, derivatives)

    def _mean(self, part: Latent, samples: Tensor, derivatives: Tensor) -> Tensor:
        grad = self.path(part, samples, derivatives).mean(0)
        if not part.has(Binary):
            return grad
        possible = torch.sigmoid(-at_least_float32(part.logits).abs()) > 0
        return torch.where(possible, grad, 0.0)


def sigmoid_derivative(x: Tensor) -> Tensor:
    """Return the derivative of the sigmoid without losing digits in the tails."""
    return torch.sigmoid(x) * torch.sigmoid(-x)
