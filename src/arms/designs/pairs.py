"""Independent pairs of samples with antithetic bits; a category is the end of bits along a tree."""

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import torch
from torch import Generator, Tensor

from arms.arguments import as_count, at_least_float32
from arms.designs.base import RowDesign, Rows, by_variable, product
from arms.designs.couplings import CorrelatedPair
from arms.designs.samples import coupled_rows
from arms.latents import Binary, Choices, Couplable, Latent
from arms.latents.categories import one_hot

Tree: TypeAlias = Literal["balanced", "stick"]


@dataclass(frozen=True)
class Pairs(RowDesign):
    """n/2 independent pairs whose bits have a given correlation; sample i belongs to i + n/2.

    A choice among K categories is made by bits on a binary tree: bit v decides whether to go on to
    the categories on its right or on its left.

    Args:
        num_samples: n, even.
        correlation: Of the two bits of a pair, from -1 to below 1. Where p does not allow it, the
            most negative correlation that p allows.
        tree: "balanced", or "stick", whose bit k takes category k or goes on.
    """

    correlation: float = -1.0
    tree: Tree = "balanced"

    requires: ClassVar[tuple[type, ...]] = (Couplable,)

    def __post_init__(self) -> None:
        count = as_count(self.num_samples, 2, "num_samples", even=True)
        object.__setattr__(self, "num_samples", count)
        if self.tree not in ("balanced", "stick"):
            raise ValueError(f"tree must be 'balanced' or 'stick', got {self.tree!r}")
        CorrelatedPair(self.correlation)  # raises for a correlation out of range

    @property
    def pair(self) -> CorrelatedPair:
        """The coupling of the two bits of a pair."""
        return CorrelatedPair(self.correlation)

    def takes(self, latent: Latent) -> bool:
        return all(part.has(Binary) or part.has(Choices) for part in latent.elements())

    def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
        count = self.num_samples // 2

        def of_part(part: Latent) -> Tensor:
            if part.has(Binary):
                return self.pair.sample_many(part.logits, count, generator).flatten(0, 1)
            bits_of = TreeBits.of(part.logits, self.tree)
            bits = self.pair.sample_many(bits_of.logits, count, generator).flatten(0, 1)
            return bits_of.to_categories(bits).to(part.logits.dtype)

        return latent.map_parts(of_part)

    def row_outcomes(self, latent: Latent) -> Rows | None:
        def of_variable(one: Latent) -> Rows | None:
            pair = coupled_rows(self.pair, one, 2) if one.has(Binary) else self._tree_pairs(one)
            return None if pair is None else repeated_pairs(pair, self.num_samples // 2)

        return by_variable(latent, of_variable)

    def _tree_pairs(self, variable: Latent) -> Rows:
        """Return all pairs of categories, by following both samples down the tree."""
        probs = torch.softmax(variable.logits[0], -1).tolist()
        count = len(probs)
        chances = dict.fromkeys(itertools.product(range(count), repeat=2), 0.0)

        def follow(start: int, end: int, chance: float) -> None:
            if end - start == 1:
                chances[start, start] += chance
                return
            middle = _middle(start, end, self.tree)
            right, left = sum(probs[start:middle]), sum(probs[middle:end])
            theta = torch.tensor([math.log(right / left)], dtype=torch.float64)
            none, one, both = self.pair.count_distribution(theta, 2).flatten().tolist()
            follow(start, middle, chance * both)
            follow(middle, end, chance * none)
            # Once the two have parted, they are independent.
            for a, b in itertools.product(range(start, middle), range(middle, end)):
                apart = chance * one / 2 * (probs[a] / right) * (probs[b] / left)
                chances[a, b] += apart
                chances[b, a] += apart

        follow(0, count, 1.0)
        tuples = torch.tensor(list(chances)).T
        samples = one_hot(tuples.unsqueeze(-1), variable.logits).double()
        return Rows(samples, torch.tensor(list(chances.values()), dtype=torch.float64))


class TreeBits(NamedTuple):
    """The bits that lead to a category, one per node of a binary tree over the K categories."""

    logits: Tensor
    """`[*batch, d, K - 1]`: log P_right - log P_left of every node."""
    log_left: Tensor
    """`[*batch, d, K - 1]`: log P_left."""
    log_right: Tensor
    """`[*batch, d, K - 1]`: log P_right."""
    left: Tensor
    """`[K, K - 1]`: 1 where a category lies on the left of a node."""
    right: Tensor
    """`[K, K - 1]`: 1 where a category lies on the right of a node."""

    @classmethod
    def of(cls, logits: Tensor, tree: Tree) -> "TreeBits":
        """Return the bits of categories with these logits."""
        left, right = _sides(at_least_float32(logits), tree)
        log_probs = torch.log_softmax(at_least_float32(logits), -1).unsqueeze(-1)
        log_left, log_right = ((log_probs + side.log()).logsumexp(-2) for side in (left, right))
        theta = log_right - log_left
        # Where neither side is possible, the node is never reached.
        return cls(torch.where(theta.isnan(), 0.0, theta), log_left, log_right, left, right)

    def to_categories(self, bits: Tensor) -> Tensor:
        """Return the category to which all bits on its way lead, `[..., d, K]`."""
        on_the_way = bits @ self.right.mT + (1 - bits) @ self.left.mT
        return on_the_way > (self.left + self.right).sum(-1) - 0.5


def _sides(logits: Tensor, tree: Tree) -> tuple[Tensor, Tensor]:
    nodes = _nodes(logits.shape[-1], tree)
    start, middle, end = (
        torch.tensor([node[i] for node in nodes], device=logits.device) for i in range(3)
    )
    category = torch.arange(logits.shape[-1], device=logits.device).unsqueeze(-1)
    left = (category >= middle) & (category < end)
    right = (category >= start) & (category < middle)
    return left.to(logits.dtype), right.to(logits.dtype)


def _nodes(count: int, tree: Tree) -> list[tuple[int, int, int]]:
    """Return every node as (start, middle, end): start to middle lie on its right."""
    if tree == "stick":
        return [(k, k + 1, count) for k in range(count - 1)]
    nodes, open_nodes = [], [(0, count)]
    while open_nodes:
        start, end = open_nodes.pop()
        if end - start > 1:
            middle = _middle(start, end, tree)
            nodes.append((start, middle, end))
            open_nodes += [(start, middle), (middle, end)]
    return nodes


def _middle(start: int, end: int, tree: Tree) -> int:
    return start + 1 if tree == "stick" else (start + end) // 2


def repeated_pairs(pair: Rows, count: int) -> Rows:
    """Return independent repetitions of a pair: all firsts, then all seconds."""
    rows, probabilities = product(*[pair] * count)
    return Rows(rows.unflatten(0, (count, 2)).transpose(0, 1).flatten(0, 1), probabilities)
