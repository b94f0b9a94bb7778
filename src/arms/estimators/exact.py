r"""The exact gradient, by enumerating all joint states: the oracle that every other estimator is held against.

$$ g = \sum_b \big(f(b) - \textstyle\sum_{b'} p(b')\,f(b')\big)\,p(b)\,\nabla_\phi \log p(b) $$

over all 2^d states of d bits, or K^d of d categorical latents. Unbiased because there is no randomness in it; the mean
that is taken off f has no part in the sum, and keeps a large constant in f from costing digits. It makes as many
evaluations as there are states, whatever `num_samples` is.
Reference: the definition of the expectation.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.estimators.base import Draw, Estimator
from arms.latents import Latent

MOST_LATENTS = 16
"""Bits that can be enumerated."""


@dataclass(frozen=True)
class Exact(Estimator):
    """Enumeration of all joint states, at most 2^16; `num_samples` has no meaning here.

    Args:
        num_samples: Not looked at.

    >>> Exact()(lambda b: b.prod(-1), torch.zeros(2)).grad
    tensor([0.1250, 0.1250])
    """

    num_samples: int = 1

    latents: ClassVar[tuple[type[Latent], ...]] = (Latent,)
    formula: ClassVar[str] = "sum over all b of (f(b) - E f) p(b) (b - p)"
    reference: ClassVar[str] = "the definition"

    @property
    def evaluations(self) -> None:
        return None

    @property
    def equal_weights(self) -> bool:
        return False

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        if not latent.logits.shape[-latent.event_dims :].numel():
            raise ValueError(f"exact needs at least one latent, got logits {list(latent.logits.shape)}")
        count, event = latent.count_states(), latent.logits.shape[-latent.event_dims :]
        if count > 2**MOST_LATENTS:
            raise ValueError(
                f"exact enumeration takes at most {MOST_LATENTS} latents ({2**MOST_LATENTS} states), got "
                f"{count} states of logits [..., {', '.join(map(str, event))}]: use an estimator such as arms-s"
            )
        states = latent.states().view(-1, *[1] * len(latent.batch_shape), *event)
        return Draw(self, latent, states.expand(-1, *latent.logits.shape))

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        # In float64: what is left of f after its mean may be far smaller than the mean.
        probs, values = state_probabilities(draw), values.double()
        centred = values - (probs * values).sum(0)
        return (draw.latent.with_event_axes(probs * centred) * draw.latent.score(draw.points)).sum(0)

    def value(self, draw: Draw, values: Tensor) -> Tensor:
        return (values * state_probabilities(draw).to(values.dtype)).sum(0)

    def attached(self) -> int:
        return int(2**MOST_LATENTS)  # all of them, however many there are


def state_probabilities(draw: Draw) -> Tensor:
    """Return the probability of every enumerated state in float64, detached."""
    with torch.no_grad():
        latent = draw.latent
        return type(latent)(latent.logits.detach().double()).log_prob(draw.points).exp()
