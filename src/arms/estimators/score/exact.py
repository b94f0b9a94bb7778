r"""The exact gradient, by enumeration of all joint states.

$$ g = \sum_b \big(f(b) - \textstyle\sum_{b'} p(b')\,f(b')\big)\,p(b)\,\nabla_\phi \log p(b) $$

There are 2^d states for d bits, and K^d for d categories. The number of samples is ignored.

Unbiased because nothing is random. Subtracting the mean of f does not change the sum, and avoids
rounding errors if f contains a large constant.
Reference: the definition of the expectation.
"""

from dataclasses import dataclass

from torch import Tensor

from arms.designs import AllStates, Draw
from arms.estimators.base import Estimator, set_design


@dataclass(frozen=True)
class Exact(Estimator):
    """The exact gradient, by enumeration of all joint states. There may be at most 2^16 states.

    >>> import torch
    >>> Exact()(lambda b: b.prod(-1), torch.zeros(2)).grad
    tensor([0.1250, 0.1250])
    """

    num_samples: int = 1
    """This number is ignored, because all states are evaluated."""

    def __post_init__(self) -> None:
        set_design(self, AllStates())

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        assert draw.weights is not None
        values = values.double()  # f minus its mean may be much smaller than f
        centered = values - (draw.weights * values).sum(0)
        signal = draw.latent.with_event_axes(draw.weights * centered)
        return (signal * draw.latent.score(draw.points)).sum(0)
