"""Designs with antithetic pairs of samples (DisARM), and designs with relaxed points (RELAX)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import torch
from torch import Generator, Tensor
from torch.nn.functional import softplus

from arms.arguments import at_least_float32, lazy_property
from arms.designs.base import BitCoupling, Design, Draw, Needs, Rows, flip, product
from arms.designs.samples import Coupled
from arms.latents import Binary, Bits, Choices, Couplable, Latent
from arms.latents.bits import LARGEST_PERTURBED
from arms.random import indicator, uniform

Tree: TypeAlias = Literal["balanced", "stick"]


@dataclass(frozen=True)
class CorrelatedPair(BitCoupling):
    """Two Bernoulli(p) samples with a given correlation.

    If p does not allow the correlation, the most negative correlation that p allows is used.
    """

    target: float = -1.0
    """The desired correlation, at least -1 and below 1."""

    def __post_init__(self) -> None:
        target: object = self.target
        if not (isinstance(target, int | float) and -1 <= target < 1):
            limits = "a number that is at least -1 and below 1"
            raise ValueError(f"correlation must be {limits}, got {target!r}")

    def sample_bits(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        return self.sample_many(logits, 1, generator)[:, 0]

    def sample_many(self, logits: Tensor, count: int, generator: Generator | None = None) -> Tensor:
        """Draw `count` independent pairs of bits, `[2, count, *logits.shape]`."""
        phi = at_least_float32(logits.detach())
        smaller, larger = torch.sigmoid(-phi.abs()), torch.sigmoid(phi.abs())
        differ = smaller * (larger / self.debias(phi, 2))  # P(1, 0) = P(0, 1)
        noise = uniform(count, phi, generator)
        # The first bit is one if the noise is in [0, q), the second if it is in
        # [P(1, 0), q + P(1, 0)). Both are one in the overlap.
        second = indicator(smaller + differ - noise) - indicator(differ - noise)
        return flip(torch.stack([indicator(smaller - noise), second]), logits)

    def debias(self, logits: Tensor, n: int) -> Tensor:
        if n != 2:
            raise ValueError(f"CorrelatedPair couples exactly n = 2 samples, got {n}")
        phi = at_least_float32(logits.detach())
        return torch.sigmoid(phi.abs()).clamp(min=1 / (1 - self.target)).to(logits.dtype)

    def count_distribution(self, logits: Tensor, n: int) -> Tensor:
        phi = logits.double()
        one, zero = torch.sigmoid(phi), torch.sigmoid(-phi)
        differ = one * zero / self.debias(phi, n)
        return torch.stack([zero - differ, 2 * differ, one - differ])


@dataclass(frozen=True)
class Pairs(Design):
    """n/2 independent pairs of samples; samples i and i + n/2 form a pair.

    The two samples of each bit have a given correlation. For a choice among K categories, each node
    of a binary tree has a bit. This bit decides between the categories on the node's left and
    those on its right.

    Args:
        num_samples: n, even.
        correlation: The correlation of a bit's two samples, at least -1 and below 1. If p does not
            allow it, the most negative correlation that p allows is used.
        tree: With "balanced", each node halves the categories. With "stick", bit k either chooses
            category k, or leaves the choice among the later categories to bit k + 1.
    """

    correlation: float = -1.0
    tree: Tree = "balanced"
    requires: ClassVar[tuple[type, ...]] = (Couplable,)
    in_pairs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tree not in ("balanced", "stick"):
            raise ValueError(f"tree must be 'balanced' or 'stick', got {self.tree!r}")
        CorrelatedPair(self.correlation)  # raises for a correlation out of range

    @lazy_property
    def pair(self) -> CorrelatedPair:
        """The coupling of the two samples of a bit."""
        return CorrelatedPair(self.correlation)

    def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
        def of_part(part: Latent) -> Tensor:
            tree = None if part.has(Binary) else TreeBits.of(part.logits, self.tree)
            logits = part.logits if tree is None else tree.logits
            bits = self.pair.sample_many(logits, self.num_samples // 2, generator).flatten(0, 1)
            return bits if tree is None else tree.to_categories(bits).to(part.logits.dtype)

        return latent.map_parts(of_part)

    def variable_outcomes(self, variable: Latent) -> Rows | None:
        pair = self._tree_pairs(variable) if variable.has(Choices) else self._bit_pairs(variable)
        count = self.num_samples // 2
        rows, probabilities = product(*[pair] * count)  # all first, then all second samples
        return Rows(rows.unflatten(0, (count, 2)).transpose(0, 1).flatten(0, 1), probabilities)

    def _bit_pairs(self, bits: Latent) -> Rows:
        found = Coupled(2, self.pair).row_outcomes(bits)
        assert found is not None
        return found

    def _tree_pairs(self, variable: Latent) -> Rows:
        """Return all outcomes of a single pair of samples. `variable` is a choice."""
        bits_of = TreeBits.of(variable.logits, self.tree)
        if not bits_of.logits.numel():  # a single category is certain
            certain = torch.ones(1, dtype=torch.float64)
            return Rows(certain.expand(2, 1, 1, 1), certain)
        bits, probabilities = self._bit_pairs(Bits(bits_of.logits[0]))
        samples = bits_of.to_categories(bits.unsqueeze(-2)).double()
        rows, which = samples.unique(dim=1, return_inverse=True)
        chances = torch.zeros(rows.shape[1], dtype=torch.float64)
        return Rows(rows, chances.index_add(0, which, probabilities))


class TreeBits(NamedTuple):
    """The bits of a binary tree over K categories, one bit per node."""

    logits: Tensor  # [*batch, d, K - 1]: log P_right - log P_left of every node
    log_left: Tensor
    log_right: Tensor
    left: Tensor  # [K, K - 1]: 1 where a category lies on the left of a node
    right: Tensor

    @classmethod
    def of(cls, logits: Tensor, tree: Tree) -> "TreeBits":
        left, right = _sides(at_least_float32(logits), tree)
        log_probs = torch.log_softmax(at_least_float32(logits), -1).unsqueeze(-1)
        log_left, log_right = ((log_probs + side.log()).logsumexp(-2) for side in (left, right))
        theta = log_right - log_left
        # A node without possible categories is never reached.
        return cls(torch.where(theta.isnan(), 0.0, theta), log_left, log_right, left, right)

    def to_categories(self, bits: Tensor) -> Tensor:
        """Follow the bits from the root of the tree to a category.

        Return a boolean mask `[..., d, K]` that is True for this category.
        """
        on_the_way = bits @ self.right.mT + (1 - bits) @ self.left.mT
        return on_the_way > (self.left + self.right).sum(-1) - 0.5


def _sides(logits: Tensor, tree: Tree) -> tuple[Tensor, Tensor]:
    """Return two matrices `[K, K - 1]`, with an entry for each category and node.

    The first is 1 where the category is on the left of the node. The second is 1 where it is on the
    right. All other entries are 0.
    """
    count, device = logits.shape[-1], logits.device
    nodes, open_nodes = [], [(0, count)]
    while open_nodes:
        first, last = open_nodes.pop()
        if last - first > 1:
            split = first + 1 if tree == "stick" else (first + last) // 2
            nodes.append((first, split, last))
            open_nodes += [(first, split), (split, last)]
    start, middle, end = torch.tensor(nodes, device=device).view(-1, 3).unbind(-1)
    category = torch.arange(count, device=device).unsqueeze(-1)
    left = (category >= middle) & (category < end)
    right = (category >= start) & (category < middle)
    return left.to(logits.dtype), right.to(logits.dtype)


@dataclass(frozen=True)
class RelaxedPairs(Design):
    """m samples b of bits, each with two perturbed logits z and z~ that are drawn given b.

    Let phi be the logits, s = 2b - 1, and l logistic noise. Then z and z~ are both computed by
    s softplus(l + softplus(s phi)), with separate noise. This does not overflow at any logit.
    `memory` contains two tensors: z and z~, stacked as `[2m, ...]`, and d z~/d phi `[m, ...]`.

    Args:
        num_samples: m, the number of samples of b.
        relax: Maps z to points between 0 and 1, at which the objective is evaluated and
            differentiated. None evaluates the objective at the samples only.
    """

    relax: Callable[[Tensor], Tensor] | None
    requires: ClassVar[tuple[type, ...]] = (Binary,)

    @lazy_property
    def needs(self) -> Needs:
        m = self.num_samples
        return Needs(m) if self.relax is None else Needs(3 * m, 2 * m, second_order=True)

    def draw(self, latent: Latent, generator: Generator | None) -> Draw:
        samples = latent.sample(self.num_samples, generator)
        noise = uniform(2, at_least_float32(samples), generator).logit()
        z, path = latent_points(latent.logits, samples, noise)
        if self.relax is None:
            return Draw(latent, samples, memory=(z, path))
        points = torch.cat([samples, self.relax(z).to(samples.dtype)])
        return Draw(latent, points, extra=2 * self.num_samples, memory=(z, path))


def latent_points(phi: Tensor, samples: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return z and z~, stacked as `[2m, ...]`, and the derivative d z~/d phi `[m, ...]`.

    The docstring of `RelaxedPairs` defines z and z~. `phi` are the logits. `noise` `[2, m, ...]` is
    the logistic noise of z and of z~. Where the noise is -inf, z is 0.
    """
    phi = at_least_float32(phi).clamp(-LARGEST_PERTURBED, LARGEST_PERTURBED)
    sign = 2 * samples.to(phi.dtype) - 1
    depth = noise + softplus(sign * phi)
    z = sign * softplus(depth)
    return z.flatten(0, 1), torch.sigmoid(depth[1]) * torch.sigmoid(sign * phi)
