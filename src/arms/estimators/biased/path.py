"""The base class of biased estimators, which use the derivative of f at each sample."""

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
    """Base class: the estimate is a mean of n gradients, one from df/db at each of n samples.

    The method `path` computes these gradients. The estimate is zero for bits with p = 0 or 1.
    """

    num_samples: int
    """n, the number of independent samples."""
    unbiased = False

    def __post_init__(self) -> None:
        names = [name for name in ("temperature", "gap") if hasattr(self, name)]
        positive = {name: as_positive(getattr(self, name), name) for name in names}
        set_design(self, Independent(count_samples(self, 1), differentiated=True), **positive)

    @abstractmethod
    def path(self, part: Latent, samples: Tensor, derivatives: Tensor) -> Tensor:
        """Return one gradient with respect to the logits per sample, `[n, *batch, *event]`.

        `derivatives` contains df/db at the points where f was evaluated. `samples` contains the
        samples of `part`. For `GumbelSoftmax`, it contains the logits plus noise.
        """

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
    """Return the derivative of the sigmoid at x. The result is accurate for large |x| too."""
    return torch.sigmoid(x) * torch.sigmoid(-x)
