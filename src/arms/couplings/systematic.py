"""The systematic coupling: the smallest correlation that n bits can have, and its counterpart for categories."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import as_count, at_least_float32
from arms.couplings.base import BinaryCoupling, flip, flip_counts
from arms.couplings.tree import tree_samples, tree_undo
from arms.latents import Bernoulli, Latent, OneHot
from arms.noise import indicator, uniform


@dataclass(frozen=True)
class Systematic(BinaryCoupling):
    r"""The smallest correlation there is: S = floor(nq) or floor(nq) + 1 ones on a random subset of the n samples.

    $$ P_{10} = \frac{E[S(n-S)]}{n(n-1)}, \qquad E[S] = nq $$

    No integer-valued sum of mean nq has a smaller variance, so no n exchangeable Bernoulli(q) have a smaller rho.

    Of K categories each has floor(n p_k) samples or one more, and so has every node of a tree over them: see
    `arms.couplings.tree`. Time and memory are linear in K.

    >>> Systematic().correlation(torch.zeros(1), n=4)  # two ones and two zeros, always
    tensor([-0.3333])
    """

    latents: ClassVar[tuple[type[Latent], ...]] = (Bernoulli, OneHot)
    reference: ClassVar[str] = "this project"

    def sample(self, latent: Latent, n: int, generator: Generator | None = None) -> Tensor:
        n = as_count(n, 2, "n")
        if isinstance(latent, OneHot):
            return tree_samples(latent, n, generator)
        phi = at_least_float32(latent.logits.detach())
        noise = uniform(n, phi, generator)
        whole, part = _systematic_counts(phi, n)
        left = whole + indicator(part - noise[0])
        ones = []
        for i in range(1, n):  # selection sampling: the next is a one with probability ones left / samples left
            chosen = indicator(torch.sub(left, noise[i], alpha=n - i + 1))
            left = left - chosen
            ones.append(chosen)
        return flip(torch.stack([*ones, left]), latent.logits)  # the last has no choice

    def undo(self, latent: Latent, n: int, r: Tensor) -> Tensor:
        return tree_undo(latent, n, r) if isinstance(latent, OneHot) else super().undo(latent, n, r)

    def debias(self, logits: Tensor, n: int) -> Tensor:
        n = as_count(n, 2, "n")
        phi = at_least_float32(logits.detach())
        whole, part = _systematic_counts(phi, n)
        pairs = whole * (n - whole) + part * (n - 1 - 2 * whole)  # E[S(n-S)]
        # q / P10 = nq (n-1) / pairs is 1 where q underflows to zero, as it is wherever nq < 1
        ratio = ((whole + part) * (n - 1) / pairs).nan_to_num(nan=1.0)
        return (torch.sigmoid(phi.abs()) * ratio).to(logits.dtype)

    def count_law(self, logits: Tensor, n: int) -> Tensor:
        n = as_count(n, 1, "n")
        whole, part = _systematic_counts(logits.double(), n)
        counts = torch.arange(n + 1, dtype=torch.float64, device=logits.device).view(-1, *[1] * logits.ndim)
        law = torch.where(counts == whole, 1 - part, torch.where(counts == whole + 1, part, 0.0))
        return flip_counts(law, logits)


def _systematic_counts(phi: Tensor, n: int) -> tuple[Tensor, Tensor]:
    expected = n * torch.sigmoid(-phi.detach().abs())
    whole = expected.floor()
    return whole, expected - whole
