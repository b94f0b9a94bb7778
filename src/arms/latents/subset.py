r"""Subsets of exactly k of d items.

$$ p(b) = \frac{1}{Z} \exp\Big(\sum_i b_i \phi_i\Big), \qquad
   b \in \{0, 1\}^d, \quad \sum_i b_i = k $$

This is the distribution of independent bits, given that k of them are one (conditional Bernoulli).
Z is the coefficient of z^k in the product of all factors 1 + exp(phi_i) z. A binary tree computes
this product: each node multiplies the polynomials of its left and its right half. From the root
downwards, the k items are then split between the halves of each node. To draw a sample, each split
is drawn at random. The mean and the covariance use the probabilities of all splits. All terms are
positive, so no digits are lost. The cost is O(d k) in log2(d) steps. Gumbel top-k has a different
distribution.
Reference: Chen, Dempster & Liu, "Weighted finite population sampling to maximize entropy",
Biometrika 1994.
"""

import math
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from arms.arguments import as_count, at_least_float32, check_logits, has_tangent, lazy_property
from arms.latents.base import Enumerable, ExchangeablePairs, HasMean
from arms.random import uniform


@dataclass(frozen=True, eq=False)
class Subset(HasMean, Enumerable, ExchangeablePairs):
    """Subsets of exactly k of d items, with k-hot samples `[n, *batch, d]`.

    Args:
        logits: `[*batch, d]`. An item with a logit of infinity is always chosen, and an item with
            minus infinity is never chosen.
        k: The number of items in a subset, from 0 to d.

    >>> Subset(torch.zeros(5, 10), k=3).sample(2).sum(-1)
    tensor([[3., 3., 3., 3., 3.],
            [3., 3., 3., 3., 3.]])
    """

    k: int = 1
    allowed: ClassVar[str] = "at most k logits may be +inf, and at least k must be above -inf"

    def __post_init__(self) -> None:
        check_logits(self.logits, self.event_axes)
        items, k = self.logits.shape[-1], as_count(self.k, 0, "k of a subset")
        if k > items:
            raise ValueError(f"k of a subset must be at most {items}, the number of items, got {k}")
        object.__setattr__(self, "k", k)

    def undefined(self) -> Tensor:
        too_many = (self.logits == torch.inf).sum(-1, keepdim=True) > self.k
        too_few = (self.logits > -torch.inf).sum(-1, keepdim=True) < self.k
        return self.logits.isnan() | too_many | too_few

    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        """Draw n subsets `[n, *batch, d]`.

        At each node of a binary tree over the items, the number of chosen items is split at random
        between the left and the right half.
        """
        levels, shares = self._tree
        root = levels[-1][0, ..., 0]
        counts = torch.full((n, 1, *root.shape), self.k, device=root.device)
        for share in reversed(shares):
            of_left = share.expand(n, *share.shape).take_along_dim(counts[..., None, None], -2)
            total = of_left.squeeze(-2).cumsum(-1)
            # A uniform number just below one must not select an impossible split at the end.
            at = uniform(n, share[..., 0, 0], generator) * total[..., -1] * (1 - 2.0**-50)
            left = (total <= at.unsqueeze(-1)).sum(-1)
            counts = torch.stack([left, counts - left], 2).flatten(1, 2)
        return counts[:, : self.logits.shape[-1]].movedim(1, -1).to(self.logits.dtype)

    def log_prob(self, samples: Tensor) -> Tensor:
        logits = at_least_float32(self.logits)
        finite = logits.isfinite()
        inside = torch.where(finite, logits, 0.0)
        wrong = torch.where(logits > 0, samples < 1, samples > 0) & ~finite
        energy = torch.where(wrong, -torch.inf, samples * inside).sum(-1)
        log_normalizer = self._tree[0][-1][0, ..., self.k].to(logits.dtype)
        if inside.requires_grad or has_tangent(inside):
            # The value of this Taylor series is zero. Its first derivative is the mean, and its
            # second derivative is the covariance.
            step = inside - inside.detach()
            series = step * (self.mean() + self.covariance_matvec(step) / 2)
            log_normalizer = log_normalizer + series.sum(-1)
        return energy - log_normalizer

    def score(self, samples: Tensor) -> Tensor:
        chosen, left_out = self._marginals
        wide = at_least_float32(self.logits).dtype
        return torch.where(samples > 0, left_out.to(wide), -chosen.to(wide))

    def mean(self) -> Tensor:
        return self._marginals[0].to(at_least_float32(self.logits).dtype)

    def covariance_matvec(self, vector: Tensor) -> Tensor:
        # The upward pass computes, for each node and each number of chosen items in it, the
        # expectation of v . b over the items in the node. The downward pass computes the same
        # expectation over the items outside of the node.
        v, (levels, shares) = vector.to(torch.float64), self._tree
        # Add axes after the node axis, for broadcasting.
        axes = (slice(None), *[None] * (v.ndim - levels[0].ndim + 1))
        shares, counts = [one[axes] for one in shares], [one[axes] for one in self._counts]
        leaves = pad(v, (0, len(levels[0]) - v.shape[-1])).movedim(-1, 0)
        within = [torch.stack([torch.zeros_like(leaves), leaves], -1)]
        for share in shares:
            of_left, of_right = (within[-1][side::2].unsqueeze(-2) for side in (0, 1))
            within.append((share * of_left).sum(-1) + (_by_right(share) * of_right).sum(-1))
        outside = torch.zeros_like(within[-1])
        for level in reversed(range(len(shares))):
            joint = counts[level + 1].unsqueeze(-1) * shares[level]
            left, right = (_of_the_rest(within[level][side::2], joint.shape[-2]) for side in (0, 1))
            for_left = (joint * (outside.unsqueeze(-1) + right)).sum(-2)
            for_right = (_by_right(joint) * (outside.unsqueeze(-1) + left)).sum(-2)
            sums, children = torch.stack([for_left, for_right], 1).flatten(0, 1), counts[level]
            outside = torch.where(children > 0, sums / children.clamp(min=1e-300), 0.0)
        chosen = self._marginals[0]
        given = (v.movedim(-1, 0) + outside[: v.shape[-1], ..., 1]).movedim(0, -1)
        found = chosen * (given - (chosen * v).sum(-1, keepdim=True))
        return found.to(at_least_float32(vector).dtype)

    def states(self) -> Tensor:
        items = self.logits.shape[-1]
        subsets = list(combinations(range(items), self.k))
        chosen = torch.tensor(subsets, dtype=torch.long, device=self.logits.device)
        return self.logits.new_zeros(len(chosen), items).scatter(-1, chosen, 1.0)

    def count_states(self) -> int:
        return math.comb(self.logits.shape[-1], self.k)

    def exchange(self, first: Tensor, second: Tensor, generator: Generator | None) -> Tensor:
        """Draw a new pair with the same sum for each given pair `(first[i], second[i])`.

        Return the first sample of each new pair, `[pairs, *batch, d]`. It contains all items that
        both given samples contain, and a random half of the items in which they differ.
        """
        differ = first != second
        key = uniform(len(first), at_least_float32(first[0]), generator)
        rank = torch.where(differ, key, 2.0).argsort(-1).argsort(-1)
        half = differ.sum(-1, keepdim=True) // 2
        return torch.minimum(first, second) + (differ & (rank < half)).to(first.dtype)

    def pair_covariance_matvec(self, step: Tensor, vector: Tensor) -> Tensor:
        # If m items differ, the entries of s for two of them have the covariance -1 / (m - 1).
        differ = (step != 0).to(vector.dtype)
        count = differ.sum(-1, keepdim=True)
        centered = vector - (vector * differ).sum(-1, keepdim=True) / count.clamp(min=1)
        return differ * centered * (count / (count - 1).clamp(min=1))

    @lazy_property
    def _tree(self) -> tuple[list[Tensor], list[Tensor]]:
        """Multiply the polynomials 1 + exp(logit) z of all items over a binary tree.

        Both results are lists with one tensor per level, from the leaves (the items) to the root.
        The first list contains the logarithms of the coefficients of each node's polynomial up to
        degree k, `[nodes, *batch, degree]`. The second list starts above the leaves. It contains
        the probability that, if c items of a node are chosen, j of them are in the node's left
        half, `[nodes, *batch, c, j]`.
        """
        phi = self.logits.detach().double()
        padding = (1 << (phi.shape[-1] - 1).bit_length()) - phi.shape[-1]
        leaves = pad(phi, (0, padding), value=-torch.inf).movedim(-1, 0)
        # An item that is always chosen has the factor z.
        certain = leaves == torch.inf
        without = torch.zeros_like(leaves).masked_fill(certain, -torch.inf)
        levels, shares = [torch.stack([without, leaves.masked_fill(certain, 0.0)], -1)], []
        while len(levels[-1]) > 1:
            left, right = levels[-1][0::2], levels[-1][1::2]
            count = min(2 * left.shape[-1] - 2, self.k) + 1
            table = left.unsqueeze(-2) + _of_the_rest(right, count, -torch.inf)
            levels.append(table.logsumexp(-1))
            shares.append((table - levels[-1].unsqueeze(-1)).exp().nan_to_num(0.0))
        return levels, shares

    @lazy_property
    def _counts(self) -> list[Tensor]:
        """Return the probability that c of the k chosen items lie in a node, for all nodes and c.

        The list contains one tensor `[nodes, *batch, c]` for each level of the tree.
        """
        levels, shares = self._tree
        root = torch.zeros_like(levels[-1])
        root[..., self.k] = 1
        found = [root]
        for share in reversed(shares):
            joint = found[-1].unsqueeze(-1) * share
            halves = [joint.sum(-2), _by_right(joint).sum(-2)]
            found.append(torch.stack(halves, 1).flatten(0, 1))
        return found[::-1]

    @lazy_property
    def _marginals(self) -> tuple[Tensor, Tensor]:
        """Return the probability that each item is chosen, and the probability that it is not.

        Both results are `[*batch, d]`.
        """
        left_out, chosen = self._counts[0][: self.logits.shape[-1]].movedim(0, -2).unbind(-1)
        return chosen, left_out


def _of_the_rest(values: Tensor, count: int, outside: float = 0.0) -> Tensor:
    """Return a table `[..., c, j]` with the entries values[..., c - j], for c below `count`.

    Let a node have c chosen items, of which j lie in one half. Then c - j lie in the other half.
    The entry is `outside` where values[..., c - j] does not exist.
    """
    at = _rest(count, values.shape[-1], values.device)
    return pad(values, (1, 0), value=outside)[..., at]


def _by_right(joint: Tensor) -> Tensor:
    """Convert a table `[..., c, items in the left half]` to `[..., c, items in the right half]`.

    All these numbers count chosen items, and c counts those in both halves of a node. Both halves
    must have the same size.
    """
    at = _rest(joint.shape[-2], joint.shape[-1], joint.device)
    return pad(joint, (1, 0)).take_along_dim(at.expand(joint.shape), -1)


def _rest(count: int, width: int, device: torch.device) -> Tensor:
    """Return a table `[count, width]` with the entry 1 + c - j in row c and column j.

    The entries are positions in an array that has one padding entry in front. The entry is 0, the
    position of the padding, where c - j is not between 0 and `width` - 1.
    """
    rest = torch.arange(count, device=device).unsqueeze(-1) - torch.arange(width, device=device)
    return torch.where((rest >= 0) & (rest < width), rest + 1, 0)
