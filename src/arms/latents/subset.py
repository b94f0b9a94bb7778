r"""Subsets of exactly k of d items.

$$ p(b) = \frac{1}{Z} \exp\Big(\sum_i b_i \phi_i\Big), \qquad b \in \{0, 1\}^d, \quad \sum_i b_i = k $$

This is the distribution of independent bits given that k of them are one (conditional Bernoulli).
Its normalizer is a coefficient of a polynomial, the product over items of 1 + exp(phi_i) z. A
binary tree over the items multiplies the factors. Going back down the tree, the k items are split
between the two halves of each node: with their probabilities for the mean and the covariance, at
random for a sample. All terms are positive, so no digits are lost, and the cost is O(d k) in
log2(d) vectorized steps.

Gumbel top-k samples from another distribution over subsets (Plackett-Luce).
Reference: Chen, Dempster & Liu, "Weighted finite population sampling to maximize entropy",
Biometrika 1994.
"""

import math
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import as_count, at_least_float32, check_logits, has_tangent
from arms.latents.base import Enumerable, ExchangeablePairs, HasMean
from arms.lazy import lazy_property
from arms.random import uniform


@dataclass(frozen=True, eq=False)
class Subset(HasMean, Enumerable, ExchangeablePairs):
    """Exactly k of d items, logits `[*batch, d]`, k-hot samples `[n, *batch, d]`.

    Args:
        logits: `[*batch, d]`. An item with logit infinity is always chosen, one with minus
            infinity never.
        k: The number of items in a subset, from 0 to d.

    >>> Subset(torch.zeros(5, 10), k=3).sample(2).sum(-1)
    tensor([[3., 3., 3., 3., 3.],
            [3., 3., 3., 3., 3.]])
    """

    k: int = 1

    allowed: ClassVar[str] = (
        "infinite logits are allowed, but at most k of a subset may be plus infinity, and at least "
        "k must be above minus infinity"
    )

    def __post_init__(self) -> None:
        check_logits(self.logits, self.event_axes)
        items = self.logits.shape[-1]
        k = as_count(self.k, 0, "k of a subset")
        if k > items:
            raise ValueError(f"k of a subset must be at most the number of items, {items}, got {k}")
        object.__setattr__(self, "k", k)

    def undefined(self) -> Tensor:
        # More certain items than there is room for, or too few possible ones, define nothing.
        too_many = (self.logits == torch.inf).sum(-1, keepdim=True) > self.k
        too_few = (self.logits > -torch.inf).sum(-1, keepdim=True) < self.k
        return self.logits.isnan() | too_many | too_few

    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        return self._tree.sample(n, generator).to(self.logits.dtype)

    def log_prob(self, samples: Tensor) -> Tensor:
        logits = at_least_float32(self.logits)
        finite = logits.isfinite()
        inside = torch.where(finite, logits, 0.0)
        wrong = torch.where(logits > 0, samples < 1, samples > 0) & ~finite
        energy = torch.where(wrong, -torch.inf, samples * inside).sum(-1)
        return energy - self._log_normalizer(inside)

    def score(self, samples: Tensor) -> Tensor:
        chosen, left_out = self._tree.marginals
        wide = at_least_float32(self.logits).dtype
        return torch.where(samples > 0, left_out.to(wide), -chosen.to(wide))

    def mean(self) -> Tensor:
        return self._tree.marginals[0].to(at_least_float32(self.logits).dtype)

    def covariance_matvec(self, vector: Tensor) -> Tensor:
        found = self._tree.covariance_matvec(vector.to(torch.float64))
        return found.to(at_least_float32(vector).dtype)

    def states(self) -> Tensor:
        d = self.logits.shape[-1]
        subsets = list(combinations(range(d), self.k))
        chosen = torch.tensor(subsets, dtype=torch.long, device=self.logits.device)
        empty = torch.zeros(len(chosen), d, dtype=self.logits.dtype, device=self.logits.device)
        return empty.scatter(-1, chosen, 1.0)

    def count_states(self) -> int:
        return math.comb(self.logits.shape[-1], self.k)

    def exchange(
        self, first: Tensor, second: Tensor, generator: Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Draw pairs with the same sums: half of the items in which a pair differs, at random."""
        differ = first != second
        key = uniform(len(first), at_least_float32(first[0]), generator)
        rank = torch.where(differ, key, 2.0).argsort(-1).argsort(-1)
        half = differ.sum(-1, keepdim=True) // 2
        common = torch.minimum(first, second)
        exchanged = common + (differ & (rank < half)).to(first.dtype)
        return exchanged, first + second - exchanged

    def exchanges(self, first: Tensor, second: Tensor) -> Tensor:
        differ = (first != second).nonzero().squeeze(-1)
        halves = list(combinations(differ.tolist(), len(differ) // 2))
        options = torch.minimum(first, second).repeat(len(halves), 1)
        for option, half in zip(options, halves, strict=True):
            option[list(half)] = 1
        return options

    def pair_covariance_matvec(self, step: Tensor, vector: Tensor) -> Tensor:
        """Return E[s s' | sum] v: differing items have covariance -1 / (their number - 1)."""
        differ = (step != 0).to(vector.dtype)
        count = differ.sum(-1, keepdim=True)
        centered = vector - (vector * differ).sum(-1, keepdim=True) / count.clamp(min=1)
        return differ * centered * (count / (count - 1).clamp(min=1))

    @lazy_property
    def _tree(self) -> "_Tree":
        return _Tree.of(self.logits.detach().double(), self.k)

    def _log_normalizer(self, logits: Tensor) -> Tensor:
        """Return log Z `[*batch]`, attached to the logits, which are zero where they are infinite.

        Its first derivative is the mean, its second one the covariance, so its value plus that of a
        Taylor series, which is zero, has both.
        """
        value = self._tree.log_normalizer.to(logits.dtype)
        if not logits.requires_grad and not has_tangent(logits):
            return value
        step = logits - logits.detach()
        return value + (step * (self.mean() + self.covariance_matvec(step) / 2)).sum(-1)


@dataclass(frozen=True, eq=False)
class _Tree:
    """Products of the factors 1 + exp(phi) z over a binary tree, from the items to the root.

    Nodes lie on the first axis, so that both children of all nodes are slices.
    """

    items: int
    k: int
    levels: list[Tensor]
    """Log-coefficients `[nodes, *batch, width + 1]` of each level's polynomials, up to degree k."""
    shares: list[Tensor]
    """`[nodes, *batch, c, j]`: the probability that j of a node's c items lie in its left half."""

    @classmethod
    def of(cls, phi: Tensor, k: int) -> "_Tree":
        items = phi.shape[-1]
        padded = torch.nn.functional.pad(
            phi, (0, (1 << (items - 1).bit_length()) - items), value=-torch.inf
        )
        leaves = padded.movedim(-1, 0)
        # The factor of an item that is certain is z.
        certain = leaves == torch.inf
        without = torch.zeros_like(leaves).masked_fill(certain, -torch.inf)
        levels, shares = [torch.stack([without, leaves.masked_fill(certain, 0.0)], -1)], []
        while len(levels[-1]) > 1:
            product, share = _multiply(levels[-1][0::2], levels[-1][1::2], k)
            levels.append(product)
            shares.append(share)
        return cls(items, k, levels, shares)

    @property
    def log_normalizer(self) -> Tensor:
        """log Z `[*batch]`."""
        return self.levels[-1][0, ..., self.k]

    @lazy_property
    def counts(self) -> list[Tensor]:
        """The probability that a node holds c of the k items, per level `[nodes, *batch, c]`."""
        root = torch.zeros_like(self.levels[-1])
        root[..., self.k] = 1
        found = [root]
        for share in reversed(self.shares):
            found.append(_interleave(*_to_children(found[-1], share)))
        return found[::-1]

    @lazy_property
    def marginals(self) -> tuple[Tensor, Tensor]:
        """The probability of each item to be chosen, and to be left out, `[*batch, d]`."""
        left_out, chosen = self.counts[0][: self.items].movedim(0, -2).unbind(-1)
        return chosen, left_out

    def sample(self, n: int, generator: Generator | None) -> Tensor:
        """Split the k items between the halves of each node, down to single items."""
        root = self.levels[-1][0, ..., 0]
        counts = torch.full((n, 1, *root.shape), self.k, device=root.device)
        for share in reversed(self.shares):
            of_left = share.expand(n, *share.shape).take_along_dim(counts[..., None, None], -2)
            total = of_left.squeeze(-2).cumsum(-1)
            # A uniform number just below one must not reach the end, where nothing is possible.
            at = uniform(n, share[..., 0, 0], generator) * total[..., -1] * (1 - 2.0**-50)
            left = (total <= at.unsqueeze(-1)).sum(-1)
            counts = torch.stack([left, counts - left], 2).flatten(1, 2)
        return counts[:, : self.items].movedim(1, -1)

    def covariance_matvec(self, vector: Tensor) -> Tensor:
        """Return the covariance matrix times `[..., *batch, d]`.

        Upwards, E[v . b in the node | its count]; downwards, the same for all outside the node.
        """
        extra = vector.ndim - self.levels[0].ndim + 1
        padding = len(self.levels[0]) - self.items
        leaves = torch.nn.functional.pad(vector, (0, padding)).movedim(-1, 0)
        within = [torch.stack([torch.zeros_like(leaves), leaves], -1)]
        shares = [_with_axes(share, extra) for share in self.shares]
        for share in shares:
            of_left, of_right = within[-1][0::2], within[-1][1::2]
            within.append(_mean_of_both(of_left, of_right, share))
        outside = torch.zeros_like(within[-1])
        for level, share in zip(reversed(range(len(shares))), reversed(shares), strict=True):
            parent = _with_axes(self.counts[level + 1], extra)
            children = _with_axes(self.counts[level], extra)
            sums = _outside_children(outside, within[level], parent, share)
            outside = torch.where(children > 0, sums / children.clamp(min=1e-300), 0.0)
        chosen = self.marginals[0]
        given = (vector.movedim(-1, 0) + outside[: self.items, ..., 1]).movedim(0, -1)
        return chosen * (given - (chosen * vector).sum(-1, keepdim=True))


def _multiply(left: Tensor, right: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the product of polynomials up to degree k, and how each coefficient is split."""
    count = min(2 * left.shape[-1] - 2, k) + 1
    table = left.unsqueeze(-2) + _of_the_rest(right, count, -torch.inf)
    product = table.logsumexp(-1)
    return product, (table - product.unsqueeze(-1)).exp().nan_to_num(0.0)


def _of_the_rest(values: Tensor, count: int, outside: float = 0.0) -> Tensor:
    """Return values[c - j] as a table `[..., c, j]`: of the rest of c items, if one half has j."""
    padded = torch.nn.functional.pad(values, (1, 0), value=outside)
    return padded[..., _rest(count, values.shape[-1], values.device)]


def _rest(count: int, width: int, device: torch.device) -> Tensor:
    """Return the position of c - j in an array that is padded in front, 0 where there is none."""
    rest = torch.arange(count, device=device).unsqueeze(-1) - torch.arange(width, device=device)
    return torch.where((rest >= 0) & (rest < width), rest + 1, 0)


def _to_children(counts: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distribution of both children's counts, from their parents'."""
    joint = counts.unsqueeze(-1) * share
    return joint.sum(-2), _by_right(joint).sum(-2)


def _by_right(joint: Tensor) -> Tensor:
    """Return a table over (count, in the left half) as one over (count, in the right half).

    Both halves are equally large, so the right half has the same range.
    """
    padded = torch.nn.functional.pad(joint, (1, 0))
    at = _rest(joint.shape[-2], joint.shape[-1], joint.device)
    return padded.take_along_dim(at.expand(joint.shape), -1)


def _mean_of_both(of_left: Tensor, of_right: Tensor, share: Tensor) -> Tensor:
    """Return E[left + right | count] `[..., c]` from the same of both halves."""
    return (share * of_left.unsqueeze(-2)).sum(-1) + (
        _by_right(share) * of_right.unsqueeze(-2)
    ).sum(-1)


def _outside_children(outside: Tensor, within: Tensor, parent: Tensor, share: Tensor) -> Tensor:
    """Return, for every child and count, the probability times E[v . b outside | count]."""
    of_left, of_right = within[0::2], within[1::2]
    joint, count = parent.unsqueeze(-1) * share, share.shape[-2]
    for_left = (joint * (outside.unsqueeze(-1) + _of_the_rest(of_right, count))).sum(-2)
    for_right = (_by_right(joint) * (outside.unsqueeze(-1) + _of_the_rest(of_left, count))).sum(-2)
    return _interleave(for_left, for_right)


def _interleave(left: Tensor, right: Tensor) -> Tensor:
    """Return left and right children `[nodes, ...]` in the order of the level, `[2 nodes, ...]`."""
    return torch.stack([left, right], 1).flatten(0, 1)


def _with_axes(tensor: Tensor, extra: int) -> Tensor:
    """Return `[nodes, *batch, ...]` with axes of length one after the nodes, to broadcast."""
    return tensor[(slice(None), *[None] * extra)]
