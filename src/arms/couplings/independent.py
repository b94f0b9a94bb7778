"""Independent samples of any latent: no coupling at all, and nothing to undo."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import as_count
from arms.couplings.base import BinaryCoupling
from arms.latents import Latent


@dataclass(frozen=True)
class Independent(BinaryCoupling):
    """n independent samples, rho = 0: what REINFORCE and LOORF draw.

    >>> Independent().debias(torch.zeros(2), n=4)
    tensor([1., 1.])
    """

    latents: ClassVar[tuple[type[Latent], ...]] = (Latent,)

    def sample(self, latent: Latent, n: int, generator: Generator | None = None) -> Tensor:
        return latent.sample(as_count(n, 1, "n"), generator)

    def undo(self, latent: Latent, n: int, r: Tensor) -> Tensor:
        return r

    def debias(self, logits: Tensor, n: int) -> Tensor:
        return torch.ones_like(logits.detach())

    def count_law(self, logits: Tensor, n: int) -> Tensor:
        n = as_count(n, 1, "n")
        one, zero = torch.sigmoid(logits.double()), torch.sigmoid(-logits.double())
        law = torch.ones(1, *logits.shape, dtype=torch.float64, device=logits.device)
        edge = torch.zeros_like(law)
        for _ in range(n):
            law = torch.cat([law, edge]) * zero + torch.cat([edge, law]) * one
        return law
