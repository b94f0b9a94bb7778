r"""DisARM (also U2G, ARTS): antithetic pairs with a correction for their correlation.

$$ g = \big(f(b) - f(b')\big)\,\frac{b - b'}{2\,(1-\rho)} $$

The estimate is averaged over n/2 pairs. DisARM uses the most negative correlation rho that p
allows. It is ARMS with n = 2, and 1/(1 - rho) = max(p, 1-p). With any other correlation the
estimator is called ARTS.

Unbiased because (f(b) - f(b'))(b - b')/2 has the expectation (f(1) - f(0)) P(b = 1, b' = 0), and
P(b = 1, b' = 0) = p(1-p)(1-rho) for every joint distribution of the pair. The variance increases
with rho, so the most negative correlation is best.

With more than two categories, the bits of a binary tree choose the category, and each bit has an
antithetic partner. Let P_left and P_right be the total probabilities of the categories on the two
sides of node v. With theta_v = log P_right - log P_left and w_v = sigmoid(theta_v),

$$ g_v = \frac{f - f'}{2}\,\big(1_v\,(b - w_v) - 1'_v\,(b' - w_v)\big) \cdot
   \begin{cases} 1/(1-\rho_v) & \text{if both reach } v \\ 1 & \text{otherwise,} \end{cases} $$

where 1_v is one if a sample reaches the node. This is DisARM for all bits. A bit that is not
reached does not affect f, so it is replaced by its mean given the other bit.
Reference: Dong, Mnih & Tucker, "DisARM: An antithetic gradient estimator for binary latent
variables", NeurIPS 2020; Yin et al., "Probabilistic best subset selection via gradient-based
optimization", 2020; Dimitriev & Zhou 2021 (ARTS); Dong, Mnih & Tucker, "Coupled gradient estimators
for discrete latent variables", NeurIPS 2021 (trees).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from arms.arguments import at_least_float32
from arms.designs import Draw, Pairs
from arms.designs.pairs import Tree, TreeBits
from arms.estimators.base import Estimator, count_samples, set_design
from arms.latents import Binary, Bits, Latent


@dataclass(frozen=True)
class DisARM(Estimator):
    """The DisARM estimator: a mean over n/2 antithetic pairs.

    For a latent with K categories, the cost grows as K^2.

    Args:
        num_samples: n, even.
        correlation: The correlation of the two bits of a pair, at least -1 and below 1. If p does
            not allow this value, the most negative possible correlation is used. With 0, the
            estimator is LOORF on pairs.
        tree: The binary tree over categories, "balanced" or "stick": see `arms.designs.Pairs`.

    >>> DisARM(2)(lambda b: b[..., 0], torch.zeros(1)).grad
    tensor([0.2500])
    """

    num_samples: int
    correlation: float = -1.0
    tree: Tree = "balanced"

    def __post_init__(self) -> None:
        set_design(self, Pairs(count_samples(self, 2, even=True), self.correlation, self.tree))

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        first, second = values.chunk(2)
        assert isinstance(self.design, Pairs)
        return mean_over_pairs(self.design, draw, first - second)


def mean_over_pairs(design: Pairs, draw: Draw, difference: Tensor) -> Tensor:
    """Return the DisARM estimate of the gradient, `[*batch, *event]`, averaged over pairs.

    `difference` `[n/2, *batch]` contains, for each pair, f at the first sample minus f at the
    second sample.
    """

    def of_part(part: Latent, samples: Tensor) -> Tensor:
        if not part.has(Binary):
            return _of_categories(design, part, samples, difference)
        one, other = samples.chunk(2)
        mean = (difference.unsqueeze(-1) * (one - other)).mean(0) / 2
        return mean * design.pair.debias(at_least_float32(part.logits), 2)

    return draw.latent.map_parts(of_part, draw.samples)


def _of_categories(design: Pairs, part: Latent, samples: Tensor, difference: Tensor) -> Tensor:
    bits_of = TreeBits.of(part.logits, design.tree)
    points = samples.to(bits_of.logits.dtype)
    bits = points @ bits_of.right
    reached = bits + points @ bits_of.left
    one, other = (reached * Bits(bits_of.logits).score(bits)).chunk(2)
    debias = design.pair.debias(bits_of.logits, 2)
    both_reach = reached.chunk(2)[0] * reached.chunk(2)[1]
    factor = torch.lerp(torch.ones_like(bits_of.logits), debias, both_reach)
    of_bits = (part.with_event_axes(difference / 2) * (one - other) * factor).mean(0)
    log_probs = torch.log_softmax(at_least_float32(part.logits), -1).unsqueeze(-1)
    # p_k / P is 0 if all categories on a side of the node are impossible.
    right = (log_probs - bits_of.log_right.unsqueeze(-2)).exp().nan_to_num(0.0) * bits_of.right
    left = (log_probs - bits_of.log_left.unsqueeze(-2)).exp().nan_to_num(0.0) * bits_of.left
    return ((right - left).to(of_bits.dtype) @ of_bits.unsqueeze(-1)).squeeze(-1)
