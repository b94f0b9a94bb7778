"""A latent that is neither bits nor categories: the library must work with any latent."""

import math
from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.latents import Enumerable


@dataclass(frozen=True, eq=False)
class Ranks(Enumerable):
    """A Plackett-Luce order of d items. A sample contains the rank of each item, `[n, *batch, d]`.

    Its log-probability is not linear in the sample, so the score is not the sample minus its mean.
    """

    event_axes: ClassVar[str] = "items"

    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        logits = self.logits.detach()
        uniform = torch.rand(n, *logits.shape, generator=generator, dtype=logits.dtype)
        perturbed = logits - (-uniform.clamp(min=torch.finfo(logits.dtype).tiny).log()).log()
        return (-perturbed).argsort(-1).argsort(-1).to(logits.dtype)

    def states(self) -> Tensor:
        orders = list(permutations(range(self.logits.shape[-1])))
        return torch.tensor(orders, dtype=self.logits.dtype)

    def count_states(self) -> int:
        return math.factorial(self.logits.shape[-1])

    def log_prob(self, samples: Tensor) -> Tensor:
        order = samples.long().argsort(-1)
        in_order = self.logits.expand(samples.shape).gather(-1, order)
        return (in_order - in_order.flip(-1).logcumsumexp(-1).flip(-1)).sum(-1)

    def score(self, samples: Tensor) -> Tensor:
        with torch.enable_grad():
            logits = self.logits.detach().expand(samples.shape).clone().requires_grad_()
            log_prob = self.with_logits(logits).log_prob(samples)
            (found,) = torch.autograd.grad(log_prob.sum(), logits)
        return found
