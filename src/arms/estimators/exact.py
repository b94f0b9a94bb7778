r"""The exact gradient, by enumerating all 2^d states: the oracle that every other estimator is held against.

$$ g = \sum_{b \in \{0,1\}^d} f(b)\,p(b)\,(b - \sigma(\phi)) $$

Unbiased because there is no randomness in it. It costs 2^d evaluations, whatever `num_samples` was asked for.
Reference: the definition of the expectation.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import widen
from arms.estimators.base import Draw, Estimator, score

MOST_LATENTS = 16


@dataclass(frozen=True)
class Exact(Estimator):
    """Enumeration of all 2^d states, d <= 16; `num_samples` has no meaning here.

    >>> Exact()(lambda b: b.prod(-1), torch.zeros(2)).grad
    tensor([0.1250, 0.1250])
    """

    num_samples: int = 1

    alone: ClassVar[bool] = True
    formula: ClassVar[str] = "sum over all b of f(b) p(b) (b - p)"
    reference: ClassVar[str] = "the definition"

    def draw(self, logits: Tensor, generator: Generator | None = None) -> Draw:
        d = logits.shape[-1]
        if d > MOST_LATENTS:
            raise ValueError(
                f"exact enumeration takes at most {MOST_LATENTS} latents ({2**MOST_LATENTS} states), got {d}: "
                "use an unbiased estimator such as arms-s instead"
            )
        states = binary_states(d, logits)
        return Draw(self, logits, states.view(-1, *[1] * (logits.ndim - 1), d).expand(-1, *logits.shape))

    def combine(self, draw: Draw, values: Tensor) -> Tensor:
        weighted = widen(values) * state_probabilities(draw)
        return (weighted.unsqueeze(-1) * score(draw)).sum(0)

    def value(self, draw: Draw, values: Tensor) -> Tensor:
        return (values * state_probabilities(draw).to(values.dtype)).sum(0)


def binary_states(d: int, like: Tensor) -> Tensor:
    """Return all states of d bits `[2^d, d]`, the first bit being the highest."""
    shifts = torch.arange(d - 1, -1, -1, device=like.device)
    return (torch.arange(2**d, device=like.device).unsqueeze(-1) >> shifts & 1).to(like.dtype)


def state_probabilities(draw: Draw) -> Tensor:
    """Return the probability of every enumerated state, detached: p where the bit is one, 1 - p where it is zero."""
    logits = widen(draw.logits.detach())
    return torch.sigmoid(torch.where(draw.samples > 0, logits, -logits)).prod(-1)
