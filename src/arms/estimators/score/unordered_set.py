r"""The unordered-set estimator: n different joint states, drawn without replacement.

$$ g = \sum_{s \in S} p_s R_s \Big(f_s - \sum_{t \in S} p_t R_{st} f_t\Big) \nabla \log p_s, \qquad
   R_s = \frac{P^{-s}(S \setminus s)}{P(S)}, \quad
   R_{st} = \frac{P^{-s,t}(S \setminus s, t)}{P^{-s}(S \setminus s)}, \quad R_{ss} = 1 $$

P(S) is the probability of drawing the set S. P^{-s} is the same probability if state s is excluded.

Unbiased because p_s R_s is the probability, given the set, that s was drawn first. The first draw
is an ordinary sample, so the sum over s is the expectation of REINFORCE given the set. Given s, the
inner sum is the same expectation over the second draw, so it is a valid baseline. The estimate
becomes exact if the set contains all states with positive probability.
Reference: Kool, van Hoof & Welling, "Estimating gradients for discrete random variables by sampling
without replacement", ICLR 2020.
"""

from dataclasses import dataclass

from torch import Tensor

from arms.arguments import at_least_float32
from arms.designs import Draw, WithoutReplacement
from arms.estimators.base import Estimator, count_samples, set_design


@dataclass(frozen=True)
class UnorderedSet(Estimator):
    """The unordered-set estimator, which draws n different joint states and has a baseline.

    Use it for a single latent, or if few states have most of the probability.

    >>> import torch
    >>> UnorderedSet(4)(lambda b: b.prod(-1), torch.zeros(2)).grad  # all four states of two bits
    tensor([0.1250, 0.1250])
    """

    num_samples: int
    """n, at least 2, and at most the number of joint states."""

    def __post_init__(self) -> None:
        set_design(self, WithoutReplacement(count_samples(self, 2)))

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        assert draw.weights is not None
        # Subtracting a constant does not change the estimate, and reduces rounding errors.
        values = values.double() - values.double().mean(0)
        baselines = (draw.memory * values.unsqueeze(0)).sum(1)
        dtype = at_least_float32(draw.latent.logits).dtype
        signal = (draw.weights * (values - baselines)).to(dtype)
        return (draw.latent.with_event_axes(signal) * draw.latent.score(draw.points)).sum(0)
