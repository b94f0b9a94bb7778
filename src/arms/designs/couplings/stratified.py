"""The stratified coupling: one sample from each of n equal parts of the distribution function."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from arms.arguments import as_count, at_least_float32
from arms.designs.couplings.base import CategoryCoupling
from arms.designs.couplings.systematic import SystematicBits
from arms.latents.categories import one_hot
from arms.random import uniform


@dataclass(frozen=True)
class Stratified(SystematicBits, CategoryCoupling):
    r"""u_i = (pi(i) + U_i)/n for a random permutation pi of every latent, and the category at u_i.

    Let c_s be the distribution of the sample from stratum s, and w_s(k) = c_s(k) / (n p_k) the part
    of category k that lies there. The leave-one-out sum r of such samples becomes the gradient by

    $$ g_k = r_k - n\,p_k \sum_s w_s(k)\,v_s, \qquad
       \big((n-1) I + n\,W \mathrm{diag}(p)\,W'\big)\,v = W r, $$

    n equations for any number of categories. Noise that is uncorrelated between samples does not
    grow. For bits it is the systematic coupling. With more than two categories the systematic
    coupling is better in most cases.
    Reference: this project (docs/math/debias.md).

    >>> samples = Stratified().sample_categories(torch.zeros(1, 4), 8)
    >>> samples.sum(0)  # two of each, always
    tensor([[2., 2., 2., 2.]])
    """

    def sample_categories(
        self, logits: Tensor, n: int, generator: Generator | None = None
    ) -> Tensor:
        n = as_count(n, 2, "n")
        ends = _ends(logits)
        stratum = uniform(n, ends[..., 0], generator).argsort(0)
        u = (stratum + uniform(n, ends[..., 0], generator)) / n
        # Rounding may leave the end below 1: the last possible category reaches as far as needed.
        ends = torch.where(ends >= ends[..., -1:], torch.inf, ends)
        place = torch.searchsorted(ends, u.movedim(0, -1).contiguous(), right=True)
        return one_hot(place.movedim(-1, 0), logits)

    def undo_categories(self, logits: Tensor, n: int, grad: Tensor) -> Tensor:
        ends, probs = _ends(logits), torch.softmax(at_least_float32(logits.detach()), -1)
        shares, n_probs = _shares(ends, as_count(n, 2, "n")), n * probs.to(ends.dtype)
        matrix = (shares * n_probs.unsqueeze(-2)) @ shares.mT
        matrix = matrix + (n - 1) * torch.eye(n, dtype=ends.dtype, device=ends.device)
        right = shares @ grad.to(ends.dtype).unsqueeze(-1)
        taken: Tensor = shares.mT @ torch.linalg.solve(matrix, right)
        return (grad - n_probs * taken.squeeze(-1)).to(grad.dtype)

    def category_probabilities(self, probs: list[float], n: int) -> list[float]:
        ends = [0.0, *itertools.accumulate(probs[:-1]), 1.0]
        orders = list(itertools.permutations(range(n)))

        def in_stratum(s: int, k: int) -> float:
            return max(0.0, n * (min(ends[k + 1], (s + 1) / n) - max(ends[k], s / n)))

        def chance(categories: Sequence[int]) -> float:
            return sum(math.prod(map(in_stratum, order, categories)) for order in orders)

        tuples = itertools.product(range(len(probs)), repeat=n)
        return [chance(one) / len(orders) for one in tuples]


def _ends(logits: Tensor) -> Tensor:
    """Return the distribution function `[*batch, d, K]` in float64, for small categories."""
    return torch.softmax(logits.detach().double(), -1).cumsum(-1)


def _shares(ends: Tensor, n: int) -> Tensor:
    """Return which part of each category lies in which stratum, `[*batch, d, n, K]`."""
    right = ends.unsqueeze(-2)
    left = torch.nn.functional.pad(right, (1, -1))
    edges = torch.arange(n + 1, dtype=ends.dtype, device=ends.device).unsqueeze(-1) / n
    # What lies left of each edge, no more than all of the category; its steps are the overlaps.
    within = torch.minimum(torch.maximum(edges, left), right)
    overlaps = within[..., 1:, :] - within[..., :-1, :]
    return overlaps / overlaps.sum(-2, keepdim=True).clamp(min=torch.finfo(ends.dtype).tiny)
