r"""DISARM-TREE and DISARM-SB: a category as bits on a binary tree or along a stick, each an antithetic pair.

Bit v decides between the categories below it to the left and to the right, with logit
theta_v = log P_right - log P_left. For pairs of samples with f, f' and bits b, b' of node v,

$$ g_v = \frac{f - f'}{2}\,\big(1_v\,(b - w_v) - 1'_v\,(b' - w_v)\big) \cdot
   \begin{cases} 1/(1-\rho_v) & \text{if both reach } v \\ 1 & \text{else,} \end{cases} \qquad w_v = \sigma(\theta_v) $$

where 1_v says whether the sample reaches the node, and the gradient for the logits is sum_v g_v d theta_v / d phi.
Unbiased because with all bits drawn, reached or not, it would be ARMS of the bits; a bit that is not reached has no
part in f and is replaced by its mean given the other of the pair, w + rho (b' - w).
Reference: Dong, Mnih & Tucker, "Coupled gradient estimators for discrete latent variables", NeurIPS 2021.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.couplings import CorrelatedPair
from arms.couplings.pair import sample_pairs
from arms.estimators.arts import ARTS
from arms.estimators.base import Draw, Estimator
from arms.latents import Bernoulli, Latent, OneHot

Tree: TypeAlias = Literal["balanced", "stick"]


@dataclass(frozen=True)
class TreeDisARM(Estimator):
    """n/2 independent pairs of samples, whose bits on a tree over the K categories are antithetic. Cost: K^2 a latent.

    Latents that are bits have a single node each: it is then DisARM.

    Args:
        num_samples: n, even.
        tree: "balanced", or "stick", whose bit k takes category k or goes on.
        correlation: Of the pairs' bits; as negative as each bit allows unless given. 0 makes it LOORF of pairs.

    >>> TreeDisARM(4)(lambda z: z[..., 0, 0], OneHot(torch.zeros(5, 2, 3))).grad.shape
    torch.Size([5, 2, 3])
    """

    tree: Tree = "balanced"
    correlation: float = -1.0

    min_samples: ClassVar[int] = 2
    even_samples: ClassVar[bool] = True
    latents: ClassVar[tuple[type[Latent], ...]] = (Bernoulli, OneHot)
    formula: ClassVar[str] = "disarm of the bits that lead to a category, those not reached replaced by their mean"
    reference: ClassVar[str] = "Dong, Mnih & Tucker 2021"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tree not in ("balanced", "stick"):
            raise ValueError(f"tree must be 'balanced' or 'stick', got {self.tree!r}")
        CorrelatedPair(self.correlation)  # raises what is to be raised

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        if not isinstance(latent, OneHot):
            return replace(ARTS(self.num_samples, self.correlation).draw(latent, generator), estimator=self)
        theta = self._bit_logits(latent)[0]
        bits = sample_pairs(CorrelatedPair(self.correlation), theta, self.num_samples, generator)
        left, right = self._sides(latent)
        on_the_way = bits @ right.mT + (1 - bits) @ left.mT
        chosen = on_the_way > (left + right).sum(-1) - 0.5  # the category to which all its bits lead
        return Draw(self, latent, chosen.to(latent.logits.dtype))

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        if not isinstance(draw.latent, OneHot):
            return ARTS(self.num_samples, self.correlation).combine(draw, values)
        theta, log_left, log_right = self._bit_logits(draw.latent)
        left, right = self._sides(draw.latent)
        points = draw.points.to(theta.dtype)
        bits = points @ right
        reached = bits + points @ left
        one, other = (reached * Bernoulli(theta).score(bits)).chunk(2)
        debias = CorrelatedPair(self.correlation).debias(theta, 2)
        factor = torch.lerp(torch.ones_like(theta), debias, reached.chunk(2)[0] * reached.chunk(2)[1])
        first, second = at_least_float32(values).chunk(2)
        of_pairs = draw.latent.with_event_axes((first - second) / 2) * (one - other) * factor
        of_bits = of_pairs.mean(0)
        log_probs = torch.log_softmax(at_least_float32(draw.logits), -1)
        # p_k / P is 0 where no category of a side is possible.
        share_left = (log_probs.unsqueeze(-1) - log_left.unsqueeze(-2)).exp().nan_to_num(0.0) * left
        share_right = (log_probs.unsqueeze(-1) - log_right.unsqueeze(-2)).exp().nan_to_num(0.0) * right
        return ((share_right - share_left).to(of_bits.dtype) @ of_bits.unsqueeze(-1)).squeeze(-1)

    def _bit_logits(self, latent: Latent) -> tuple[Tensor, Tensor, Tensor]:
        """Return theta, log P_left and log P_right of every node `[*batch, d, K - 1]`."""
        log_probs = torch.log_softmax(at_least_float32(latent.logits), -1).unsqueeze(-1)
        log_left, log_right = ((log_probs + side.log()).logsumexp(-2) for side in self._sides(latent))
        theta = log_right - log_left
        return torch.where(theta.isnan(), 0.0, theta), log_left, log_right  # neither side is possible: never reached

    def _sides(self, latent: Latent) -> tuple[Tensor, Tensor]:
        """Return which categories lie left and right of which node, `[K, K - 1]` each, of 0 and 1."""
        logits = at_least_float32(latent.logits)
        nodes = _nodes(logits.shape[-1], self.tree)
        start, middle, end = (torch.tensor([node[i] for node in nodes], device=logits.device) for i in range(3))
        category = torch.arange(logits.shape[-1], device=logits.device).unsqueeze(-1)
        left, right = (category >= middle) & (category < end), (category >= start) & (category < middle)
        return left.to(logits.dtype), right.to(logits.dtype)


def _nodes(count: int, tree: Tree) -> list[tuple[int, int, int]]:
    """Return every node as (start, middle, end): right of it lie start to middle, left of it middle to end."""
    if tree == "stick":
        return [(k, k + 1, count) for k in range(count - 1)]
    nodes, open_nodes = [], [(0, count)]
    while open_nodes:
        start, end = open_nodes.pop()
        if end - start > 1:
            middle = (start + end) // 2
            nodes.append((start, middle, end))
            open_nodes += [(start, middle), (middle, end)]
    return nodes
