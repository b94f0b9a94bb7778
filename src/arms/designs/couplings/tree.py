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

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.latents.categories import one_hot
from arms.random import indicator, uniform


def tree_samples(logits: Tensor, n: int, generator: Generator | None) -> Tensor:
    """Draw n one-hot samples `[n, *batch, d, K]` with the counts of the tree, in random order."""
    probs = _probabilities(logits)
    ends = _counts(probs, n, generator).cumsum(-1)
    place = torch.arange(n, dtype=ends.dtype, device=ends.device) + torch.zeros_like(ends[..., :1])
    in_order = torch.searchsorted(ends, place, right=True)
    # An order for every latent: a common one would make the latents of a sample dependent.
    order = uniform(n, probs[..., 0], generator).argsort(0)
    return one_hot(in_order.movedim(-1, 0).gather(0, order), logits)


def _probabilities(logits: Tensor) -> Tensor:
    return torch.softmax(at_least_float32(logits.detach()), -1)


def tree_undo(logits: Tensor, n: int, r: Tensor) -> Tensor:
    """Return C L^+ r for the leave-one-out sum r `[*batch, d, K]` of n such samples."""
    tree = _Tree.of(_probabilities(logits), n)
    r = _categories_first(r)
    x, (whole, probs) = tree.levels[0], (tree.whole, tree.probs)
    # The diagonal, p - x (1 - x)/n^2, relative to p; x/p is n wherever n p < 1, also where p has no digits left.
    x_over_p = torch.where(whole > 0, x / probs, float(n))
    diagonal = 1 - x_over_p * (1 - x) / n**2
    scaled = x_over_p / diagonal
    nodes, alpha, beta = [], x * scaled, r * scaled
    for level in range(len(tree.levels) - 1):
        node = _Node.of(tree, level, alpha, beta)
        nodes.append(node)
        alpha, beta = node.up()
    tau = torch.zeros_like(beta)
    for node in reversed(nodes):
        tau = node.down(tau)
    found = torch.addcmul(r, tau, x, value=-1) / diagonal * ((n - 1) / n)
    return found[: logits.shape[-1]].movedim(0, -1)


@dataclass(frozen=True)
class _Tree:
    """What is the same for draws and for their debias. Categories and nodes lie on the first axis: slices are fast."""

    n: int
    probs: Tensor
    """`[K', *batch, d]`, padded by impossible categories to a power of two."""
    whole: Tensor
    """floor(n p)."""
    levels: list[Tensor]
    """x of every level, from the categories to the root."""
    many: list[Tensor]
    """For every level but the last, 1 where the two children of a node have more than one to share, else 0."""

    @classmethod
    def of(cls, probs: Tensor, n: int) -> "_Tree":
        probs = _categories_first(probs)
        expected = n * probs
        whole = expected.floor()
        levels, many = [expected - whole], []
        while len(levels[-1]) > 1:
            both = levels[-1][0::2] + levels[-1][1::2]
            many.append(both.floor())
            levels.append(both - many[-1])
        return cls(n, probs, whole, levels, many)


@dataclass(frozen=True)
class _Node:
    """All nodes of one level, for the equation A y = r, A = diag p - Cov(S)/n^2.

    For a node v, A_v is its block of A, w_v = x_v gamma_v, alpha_v = w_v' A_v^-1 w_v and beta_v = w_v' A_v^-1 r_v. From
    the children, A_v = blockdiag(A_l, A_r) + c (w_l w_r' + w_r w_l') and w_v = (f_l w_l, f_r w_r). Measured by x_v, no
    number here grows without bound as p falls to zero.
    """

    alpha: Tensor
    beta: Tensor
    f: Tensor
    c: Tensor
    c_alpha: Tensor
    determinant: Tensor

    @classmethod
    def of(cls, tree: _Tree, level: int, alpha: Tensor, beta: Tensor) -> "_Node":
        x, many, parent = _by_pairs(tree.levels[level]), tree.many[level], tree.levels[level + 1]
        # Where there is more than one to share, the zeros are shared: all is measured by 1 - x, then by x again.
        turned = (1 - x) / x.clamp(min=torch.finfo(x.dtype).tiny)
        turn = torch.lerp(torch.ones_like(x), turned, many.unsqueeze(1))
        back = torch.lerp(torch.ones_like(many), parent / (1 - parent), many)
        c = turn[:, 0] * turn[:, 1] / tree.n**2
        alpha, beta = _by_pairs(alpha), _by_pairs(beta)
        c_alpha = c.unsqueeze(1) * alpha
        return cls(
            alpha, beta, back.unsqueeze(1) * turn, c, c_alpha, 1 - c_alpha[:, 0] * c_alpha[:, 1]
        )

    def up(self) -> tuple[Tensor, Tensor]:
        """Return the parents' alpha and beta."""
        own = self.f * self.alpha
        both = (self.f * own).sum(1)
        alpha = torch.addcmul(both, self.c * own[:, 0], own[:, 1], value=-2) / self.determinant
        left, right = self._along(self.beta)
        return alpha, self.f[:, 0] * left + self.f[:, 1] * right

    def down(self, tau: Tensor) -> Tensor:
        """Return, for each child, the multiple of w that all the others take off its right-hand side."""
        own = tau.unsqueeze(1) * self.f
        left, right = self._along(torch.addcmul(self.beta, own, self.alpha, value=-1))
        other = torch.stack([self.c * right, self.c * left], 1)
        return (own + other).flatten(0, 1)

    def _along(self, beta: Tensor) -> tuple[Tensor, Tensor]:
        """Return w_l . y_l and w_r . y_r: two equations."""
        left = (
            torch.addcmul(beta[:, 0], self.c_alpha[:, 0], beta[:, 1], value=-1) / self.determinant
        )
        right = (
            torch.addcmul(beta[:, 1], self.c_alpha[:, 1], beta[:, 0], value=-1) / self.determinant
        )
        return left, right


def _counts(probs: Tensor, n: int, generator: Generator | None) -> Tensor:
    """Draw how many of the n samples are of each category `[*batch, d, K]`."""
    tree = _Tree.of(probs, n)
    noise = uniform(1, tree.levels[0], generator)[0]
    tiny = torch.finfo(probs.dtype).tiny
    s = indicator(tree.levels[-1] - 0.5)  # n P of the root is n up to rounding, and x there 0 or 1
    for x, many in zip(reversed(tree.levels[:-1]), reversed(tree.many), strict=True):
        left, right = x[0::2], x[1::2]
        both = left + right
        if_few = s * (left / both.clamp(min=tiny))
        if_many = torch.lerp((1 - right) / (2 - both), torch.ones_like(s), s)
        noise, now = noise[len(s) :], noise[: len(s)]
        s_left = indicator(torch.lerp(if_few, if_many, many) - now)
        s = torch.stack([s_left, s + many - s_left], 1).flatten(0, 1)
    return (tree.whole + s)[: probs.shape[-1]].movedim(0, -1).contiguous()


def _categories_first(tensor: Tensor) -> Tensor:
    """Return `[*batch, d, K]` as `[K', *batch, d]`, padded by zeros to a power of two."""
    count = tensor.shape[-1]
    padded = torch.nn.functional.pad(tensor, (0, (1 << (count - 1).bit_length()) - count))
    return padded.movedim(-1, 0).contiguous()


def _by_pairs(of_children: Tensor) -> Tensor:
    """Return `[2 nodes, ...]` as `[nodes, 2, ...]`."""
    pairs: Tensor = of_children.unflatten(0, (-1, 2))
    return pairs


def tree_probabilities(probs: list[float], n: int) -> list[float]:
    """Return the probability of every n-tuple of categories: the counts of the tree, in any order.

    A direct recursion over the tree, for exact tests.
    """
    width = 1 << (len(probs) - 1).bit_length()

    def part(low: int, high: int) -> float:
        if high - low == 1:
            return n * probs[low] % 1 if low < len(probs) else 0.0
        both = part(low, (low + high) // 2) + part((low + high) // 2, high)
        return both - (both >= 1)

    def counts(low: int, high: int, extra: int) -> list[tuple[float, tuple[int, ...]]]:
        if high - low == 1:
            return [(1.0, (int(n * probs[low]) + extra,) if low < len(probs) else ())]
        middle = (low + high) // 2
        left, right = part(low, middle), part(middle, high)
        if left + right < 1:
            either = (
                [(left / (left + right), 1, 0), (right / (left + right), 0, 1)] if extra else []
            )
            splits = either or [(1.0, 0, 0)]
        else:
            rest = 2 - left - right
            either = [((1 - left) / rest, 0, 1), ((1 - right) / rest, 1, 0)]
            splits = [(1.0, 1, 1)] if extra else either
        return [
            (chance * one * other, first + second)
            for chance, of_left, of_right in splits
            if chance > 0
            for one, first in counts(low, middle, of_left)
            for other, second in counts(middle, high, of_right)
        ]

    every = counts(0, width, round(part(0, width)))
    chances = dict.fromkeys((found for _, found in every), 0.0)
    for chance, found in every:
        chances[found] += chance
    orders = {found: math.factorial(n) / math.prod(map(math.factorial, found)) for found in chances}
    tuples = itertools.product(range(len(probs)), repeat=n)
    seen = (tuple(one.count(k) for k in range(len(probs))) for one in tuples)
    return [chances[found] / orders[found] if found in chances else 0.0 for found in seen]
