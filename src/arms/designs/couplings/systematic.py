"""The systematic coupling: the smallest correlation that n bits can have, and one of categories."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from arms.arguments import as_count, at_least_float32
from arms.designs.couplings.base import BitCoupling, CategoryCoupling, flip, flip_counts
from arms.designs.couplings.tree import tree_probabilities, tree_samples, tree_undo
from arms.random import indicator, uniform


@dataclass(frozen=True)
class Systematic(BitCoupling, CategoryCoupling):
    r"""S = floor(nq) or floor(nq) + 1 ones, on a random subset of the n samples.

    $$ P_{10} = \frac{E[S(n-S)]}{n(n-1)}, \qquad E[S] = nq $$

    No integer-valued sum of mean nq has a smaller variance, so no n exchangeable Bernoulli(q) have
    a smaller correlation.

    With K categories, each one has floor(n p_k) samples or one more, and so has every node of a
    tree over them: see `arms.designs.couplings.tree`. Time and memory are linear in K.
    Reference: this project (docs/math/systematic.md).

    >>> Systematic().correlation(torch.zeros(1), n=4)  # two ones and two zeros, always
    tensor([-0.3333])
    """

    def sample_bits(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        n = as_count(n, 2, "n")
        phi = at_least_float32(logits.detach())
        noise = uniform(n, phi, generator)
        whole, part = _systematic_counts(phi, n)
        left = whole + indicator(part - noise[0])
        ones = []
        # Selection sampling: the next is a one with probability (ones left) / (samples left).
        for i in range(1, n):
            chosen = indicator(torch.sub(left, noise[i], alpha=n - i + 1))
            left = left - chosen
            ones.append(chosen)
        return flip(torch.stack([*ones, left]), logits)  # the last sample has no choice

    def debias(self, logits: Tensor, n: int) -> Tensor:
        n = as_count(n, 2, "n")
        phi = at_least_float32(logits.detach())
        whole, part = _systematic_counts(phi, n)
        pairs = whole * (n - whole) + part * (n - 1 - 2 * whole)  # E[S(n-S)]
        # q / P10 = nq (n-1) / pairs is 1 where q underflows to zero, as wherever nq < 1.
        ratio = ((whole + part) * (n - 1) / pairs).nan_to_num(nan=1.0)
        return (torch.sigmoid(phi.abs()) * ratio).to(logits.dtype)

    def count_distribution(self, logits: Tensor, n: int) -> Tensor:
        n = as_count(n, 1, "n")
        whole, part = _systematic_counts(logits.double(), n)
        counts = torch.arange(n + 1, dtype=torch.float64, device=logits.device)
        counts = counts.view(-1, *[1] * logits.ndim)
        found = torch.where(counts == whole, 1 - part, torch.where(counts == whole + 1, part, 0.0))
        return flip_counts(found, logits)

    def sample_categories(
        self, logits: Tensor, n: int, generator: Generator | None = None
    ) -> Tensor:
        return tree_samples(logits, as_count(n, 2, "n"), generator)

    def undo_categories(self, logits: Tensor, n: int, grad: Tensor) -> Tensor:
        return tree_undo(logits, n, grad)

    def category_probabilities(self, probs: list[float], n: int) -> list[float]:
        return tree_probabilities(probs, n)


def _systematic_counts(phi: Tensor, n: int) -> tuple[Tensor, Tensor]:
    expected = n * torch.sigmoid(-phi.detach().abs())
    whole = expected.floor()
    return whole, expected - whole
