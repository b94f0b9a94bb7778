"""The stratified coupling of categories: one sample from each of n equal parts of their distribution function."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import as_count
from arms.couplings.systematic import Systematic
from arms.latents import Latent, OneHot
from arms.noise import uniform


@dataclass(frozen=True)
class Stratified(Systematic):
    r"""u_i = (pi(i) + U_i)/n for a random permutation pi of every latent, and the category at u_i.

    Let c_s be the law of the sample from stratum s, and w_s(k) = c_s(k) / (n p_k) the part of category k that lies
    there. The leave-one-out sum r of such samples is turned into the gradient by

    $$ g_k = r_k - n\,p_k \sum_s w_s(k)\,v_s, \qquad \big((n-1) I + n\,W \mathrm{diag}(p)\,W'\big)\,v = W r, $$

    n equations for any number of categories. Noise that is uncorrelated over the samples becomes no larger by it. Two
    categories, and bits, make it the systematic coupling, which is in most cases the better one of more.

    >>> samples = Stratified().sample(OneHot(torch.zeros(1, 4)), 8)
    >>> samples.sum(0)  # two of each, always
    tensor([[2., 2., 2., 2.]])
    """

    reference: ClassVar[str] = "this project"

    def sample(self, latent: Latent, n: int, generator: Generator | None = None) -> Tensor:
        if not isinstance(latent, OneHot):
            return super().sample(latent, n, generator)
        n = as_count(n, 2, "n")
        ends = _ends(latent)
        stratum = uniform(n, ends[..., 0], generator).argsort(0)
        u = (stratum + uniform(n, ends[..., 0], generator)) / n
        # Rounding may leave the end below 1: the last category that is possible reaches as far as it takes.
        ends = torch.where(ends >= ends[..., -1:], torch.inf, ends)
        return latent.one_hot(torch.searchsorted(ends, u.movedim(0, -1).contiguous(), right=True).movedim(-1, 0))

    def undo(self, latent: Latent, n: int, r: Tensor) -> Tensor:
        if not isinstance(latent, OneHot):
            return super().undo(latent, n, r)
        ends = _ends(latent)
        shares, n_probs = _shares(ends, as_count(n, 2, "n")), n * latent.detach().mean().to(ends.dtype)
        matrix = (shares * n_probs.unsqueeze(-2)) @ shares.mT
        matrix = matrix + (n - 1) * torch.eye(n, dtype=ends.dtype, device=ends.device)
        right = shares @ r.to(ends.dtype).unsqueeze(-1)
        taken: Tensor = shares.mT @ torch.linalg.solve(matrix, right)
        return (r - n_probs * taken.squeeze(-1)).to(r.dtype)


def _ends(latent: Latent) -> Tensor:
    """Return the distribution function `[*batch, d, K]`, in float64: its differences are small categories."""
    return torch.softmax(latent.logits.detach().double(), -1).cumsum(-1)


def _shares(ends: Tensor, n: int) -> Tensor:
    """Return which part of each category lies in which stratum `[*batch, d, n, K]`; the parts of each add up to 1.

    Of a category below the rounding of the distribution function, which is never drawn, they are 0.
    """
    right = ends.unsqueeze(-2)
    left = torch.nn.functional.pad(right, (1, -1))
    edges = torch.arange(n + 1, dtype=ends.dtype, device=ends.device).unsqueeze(-1) / n
    # What lies left of each edge, no more than all of the category; its steps are the overlaps.
    within = torch.minimum(torch.maximum(edges, left), right)
    overlaps = within[..., 1:, :] - within[..., :-1, :]
    return overlaps / overlaps.sum(-2, keepdim=True).clamp(min=torch.finfo(ends.dtype).tiny)
