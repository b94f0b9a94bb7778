"""A latent that is neither bits nor categories: what the library promises of any latent is tried on it."""

from dataclasses import dataclass, replace
from itertools import permutations
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms import Latent


@dataclass(frozen=True, eq=False)
class Ranks(Latent):
    """A Plackett-Luce order of d items; a sample holds the rank of each item, `[n, *batch, d]`.

    Its log-probability is not linear in the sample, so the score is not the sample minus its mean.
    """

    event_dims: ClassVar[int] = 1
    event_axes: ClassVar[str] = "items"

    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        logits = self.logits.detach()
        uniform = torch.rand(n, *logits.shape, generator=generator, dtype=logits.dtype)
        perturbed = logits - (-uniform.clamp(min=torch.finfo(logits.dtype).tiny).log()).log()
        return (-perturbed).argsort(-1).argsort(-1).to(logits.dtype)

    def states(self) -> Tensor:
        return torch.tensor(list(permutations(range(self.logits.shape[-1]))), dtype=self.logits.dtype)

    def count_states(self) -> int:
        return int(torch.arange(1, self.logits.shape[-1] + 1).prod())

    def log_prob(self, samples: Tensor) -> Tensor:
        order = samples.long().argsort(-1)
        in_order = self.logits.expand(samples.shape).gather(-1, order)
        return (in_order - in_order.flip(-1).logcumsumexp(-1).flip(-1)).sum(-1)

    def score(self, samples: Tensor) -> Tensor:
        with torch.enable_grad():
            logits = self.logits.detach().expand(samples.shape).clone().requires_grad_()
            (found,) = torch.autograd.grad(replace(self, logits=logits).log_prob(samples).sum(), logits)
        return found

    def mean(self) -> Tensor:
        raise AssertionError("no estimator that takes any latent may ask for the mean")

    def sum_variable(self, tensor: Tensor) -> Tensor:
        raise AssertionError("ranks are one variable, which no estimator of any latent may take apart")

    def covary(self, vector: Tensor) -> Tensor:
        raise AssertionError("no estimator that takes any latent may ask for the covariance")
