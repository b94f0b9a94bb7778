r"""The systematic coupling of categories: counts within one of n P at every node of a binary tree over the categories.

A node v is a set of neighbouring categories, halved from level to level, with P_v their probability and
x_v = n P_v - floor(n P_v). How many of the n samples fall into v is floor(n P_v) or one more, s_v = 1, with probability
x_v. Down from the root, the children l and r of v share what v has:

    x_l + x_r < 1:   s_v = 0 -> (0, 0);   s_v = 1 -> (1, 0) with probability x_l / (x_l + x_r), else (0, 1)
    x_l + x_r >= 1:  s_v = 1 -> (1, 1);   s_v = 0 -> (0, 1) with probability (1 - x_l) / (2 - x_l - x_r), else (1, 0)

The samples take these counts S in random order. With C = diag p - p p', the leave-one-out sum r of coupled samples has
expectation L F, L = n/(n-1) (C - Cov(S)/n^2), where the gradient is C F. So the gradient is C L^+ r, which is

    g = (n-1)/n h,   h = r + Cov(S) (h / p) / n^2.

Between the two halves of a node Cov(S) is -kappa_v gamma gamma' with kappa_v = x_l x_r, or (1 - x_l)(1 - x_r): of rank
one. The equation is therefore solved exactly by one pass up the tree and one down, in O(K), without a K x K matrix.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from arms.latents import OneHot
from arms.noise import indicator, uniform


def tree_samples(latent: OneHot, n: int, generator: Generator | None) -> Tensor:
    """Draw n one-hot samples `[n, *batch, d, K]`, in every latent with the counts of the tree, in random order."""
    probs = latent.detach().mean()
    counts = _counts(probs, n, generator)
    ends = counts.cumsum(-1)
    place = torch.arange(n, dtype=ends.dtype, device=ends.device).expand(*ends.shape[:-1], n).contiguous()
    in_order = torch.searchsorted(ends, place, right=True).movedim(-1, 0)
    # An order for every latent: a common one would make the latents of a sample dependent.
    order = uniform(n, probs[..., 0], generator).argsort(0)
    return latent.one_hot(in_order.gather(0, order))


def tree_undo(latent: OneHot, n: int, r: Tensor) -> Tensor:
    """Return C L^+ r for the leave-one-out sum r `[*batch, d, K]` of n such samples."""
    probs, count = latent.detach().mean(), r.shape[-1]
    levels, whole = _fractions(probs, n)
    x = levels[0]
    r = torch.nn.functional.pad(r, (0, x.shape[-1] - count))
    probs = torch.nn.functional.pad(probs, (0, x.shape[-1] - count))
    # The diagonal, p - x (1 - x)/n^2, relative to p; x/p is n wherever n p < 1, also where p has no digits left.
    x_over_p = torch.where(whole > 0, x / probs, float(n))
    diagonal = 1 - x_over_p * (1 - x) / n**2
    nodes, alpha, beta = [], x * x_over_p / diagonal, x_over_p / diagonal * r
    for x_children in levels[:-1]:
        node = _Node.of(x_children, alpha, beta, n)
        nodes.append(node)
        alpha, beta = node.up()
    tau = torch.zeros_like(beta)
    for node in reversed(nodes):
        tau = node.down(tau)
    return (n - 1) / n * ((r - tau * x) / diagonal)[..., :count]


@dataclass(frozen=True)
class _Node:
    """All nodes of one level, for the equation A y = r, A = diag p - Cov(S)/n^2.

    For a node v, A_v is its block of A, w_v = x_v gamma_v, alpha_v = w_v' A_v^-1 w_v and beta_v = w_v' A_v^-1 r_v. From
    the children, A_v = blockdiag(A_l, A_r) + c (w_l w_r' + w_r w_l') and w_v = (f_l w_l, f_r w_r). Measured by x_v, no
    number here grows without bound as p falls to zero.
    """

    alpha: tuple[Tensor, Tensor]
    beta: tuple[Tensor, Tensor]
    f: tuple[Tensor, Tensor]
    c: Tensor
    determinant: Tensor

    @classmethod
    def of(cls, x: Tensor, alpha: Tensor, beta: Tensor, n: int) -> "_Node":
        left, right = _halves(x)
        few = left + right < 1
        # Where there is more than one to share, the zeros are shared: all is measured by 1 - x, then by x again.
        turn_l, turn_r = (torch.where(few, 1.0, (1 - one) / one) for one in (left, right))
        back = torch.where(few, 1.0, (left + right - 1) / (2 - left - right))
        c = turn_l * turn_r / n**2
        alpha_l, alpha_r = _halves(alpha)
        determinant = 1 - c * alpha_l * (c * alpha_r)
        return cls((alpha_l, alpha_r), _halves(beta), (back * turn_l, back * turn_r), c, determinant)

    def up(self) -> tuple[Tensor, Tensor]:
        """Return the parents' alpha and beta."""
        (alpha_l, alpha_r), (f_l, f_r) = self.alpha, self.f
        one, other = f_l * alpha_l, f_r * alpha_r
        alpha = (f_l * one + f_r * other - 2 * self.c * one * other) / self.determinant
        along_l, along_r = self._along(*self.beta)
        return alpha, f_l * along_l + f_r * along_r

    def down(self, tau: Tensor) -> Tensor:
        """Return, for each child, the multiple of w that all the others take off its right-hand side."""
        (alpha_l, alpha_r), (beta_l, beta_r), (f_l, f_r) = self.alpha, self.beta, self.f
        own_l, own_r = tau * f_l, tau * f_r
        along_l, along_r = self._along(beta_l - own_l * alpha_l, beta_r - own_r * alpha_r)
        return torch.stack([own_l + self.c * along_r, own_r + self.c * along_l], -1).flatten(-2)

    def _along(self, beta_l: Tensor, beta_r: Tensor) -> tuple[Tensor, Tensor]:
        """Return w_l . y_l and w_r . y_r: two equations."""
        alpha_l, alpha_r = self.alpha
        left = (beta_l - self.c * alpha_l * beta_r) / self.determinant
        right = (beta_r - self.c * alpha_r * beta_l) / self.determinant
        return left, right


def _counts(probs: Tensor, n: int, generator: Generator | None) -> Tensor:
    """Draw how many of the n samples are of each category `[*batch, d, K]`."""
    levels, whole = _fractions(probs, n)
    noise = uniform(1, levels[0], generator)[0]
    s = indicator(levels[-1] - 0.5)  # n P of the root is n up to rounding, and x there 0 or 1
    for x in reversed(levels[:-1]):
        left, right = _halves(x)
        few = left + right < 1
        tiny = torch.finfo(x.dtype).tiny
        if_one = torch.where(few, left / (left + right).clamp(min=tiny), 1.0)
        if_none = torch.where(few, 0.0, (1 - right) / (2 - left - right))
        noise, now = noise[..., s.shape[-1] :], noise[..., : s.shape[-1]]
        s_left = indicator(torch.lerp(if_none, if_one, s) - now)
        s = torch.stack([s_left, s + torch.where(few, 0.0, 1.0) - s_left], -1).flatten(-2)
    return (whole + s)[..., : probs.shape[-1]]


def _fractions(probs: Tensor, n: int) -> tuple[list[Tensor], Tensor]:
    """Return x of every level, from the categories, padded to a power of two, to the root; and their floor(n p)."""
    count = probs.shape[-1]
    expected = torch.nn.functional.pad(n * probs, (0, (1 << (count - 1).bit_length()) - count))
    whole = expected.floor()
    levels = [expected - whole]
    while levels[-1].shape[-1] > 1:
        left, right = _halves(levels[-1])
        both = left + right
        levels.append(torch.where(both < 1, both, both - 1))
    return levels, whole


def _halves(of_nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Return what belongs to left children, and what to right ones."""
    left, right = of_nodes.unflatten(-1, (-1, 2)).unbind(-1)
    return left, right
