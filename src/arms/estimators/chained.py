r"""The layers after the first: one independent draw for each of n chains, at logits of its own, and the other chains as
its baseline.

$$ g_i = \frac{1}{n-1} \Big(f_i - \frac1n \sum_j f_j\Big)\,(b_i - \sigma(\phi_i)), \qquad i = 1, \dots, n $$

for the logits phi_i of chain i, made of what the chain has drawn before. Unbiased because, given all earlier layers of
all chains, b_i is independent of f_j, j != i, so that their mean is a baseline: f_i minus it, over n, is the formula.
Earlier layers may be coupled, since the law of each chain alone is right; b_i and b_j may not: the baseline would know.
Where the first layer's estimator asks for points that are not samples (midpoints), each is followed by the *mean* of
this layer: what the first layer's control variate then is made of depends on that point alone. Slopes hold deeper
layers fixed. That is not all of the derivative, but as right as a control variate need be: where q is near the
posterior, the mean over deeper layers is stationary in their law, while its slope at one point is wild.
Reference: Kool, van Hoof & Welling, "Buy 4 REINFORCE samples, get a baseline for free!", 2019, chain by chain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.estimators.base import Draw, Estimator
from arms.estimators.pipeline import Evaluation, Options, gradient, slopes_of
from arms.latents import Latent


def why_no_root(estimator: Estimator) -> str:
    """Return why an estimator cannot be that of the first of several layers, in words; nothing if it can."""
    reasons = {
        f"estimates the {estimator.target}": estimator.target.direct,
        "enumerates all states": estimator.evaluations is None,
        "draws without replacement": not estimator.equal_weights,
        "has parameters of its own": estimator.has_parameters,
        # Its gradient is slopes alone, and none of them leads through the samples of a deeper layer.
        "is biased, its slopes blind to what the first layer does to deeper ones,": not estimator.unbiased,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def draw_next(root: Draw, latent: Latent, generator: Generator | None = None) -> Draw:
    """Draw the next layer of the chains that begin with a root, at logits made of the layer before."""
    return Chained(len(root.points) - root.extra, root.extra).draw(latent.detach(), generator)


def costs_to_go(terms: Sequence[Tensor]) -> list[Tensor]:
    """Return for each layer the sum of its own term and those after it: what it learns from."""
    return list(accumulate(reversed(terms)))[::-1]


def layer_gradient(layer: Draw, to_go: Tensor, options: Options) -> Tensor:
    """Return the estimate of one layer's gradient, detached; the slopes of a root are taken from the values' graph."""
    slopes = None
    if layer.estimator.slopes != "none":
        slopes = slopes_of(layer, layer.points, to_go, options, learning=False)
    return gradient(layer, Evaluation(to_go, slopes), options).detach()


@dataclass(frozen=True)
class Chained(Estimator):
    """Leave-one-out REINFORCE across n chains, one sample each; a single chain has no baseline.

    Args:
        num_samples: n, the samples of the first layer.
        extra: How many points the first layer has beside them.

    >>> from arms import Bernoulli
    >>> drawn = Chained(4).draw(Bernoulli(torch.zeros(4, 5, 3)))
    >>> Chained(4).combine(drawn, torch.zeros(4, 5)).shape
    torch.Size([4, 5, 3])
    """

    extra: int = 0

    latents: ClassVar[tuple[type[Latent], ...]] = (Latent,)
    formula: ClassVar[str] = "(f_i - mean f) (b_i - p_i) / (n - 1) for every chain i"
    reference: ClassVar[str] = "Kool, van Hoof & Welling 2019"

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        """Draw one sample for every chain, and the mean for every extra point; logits `[n + extra, *batch, *event]`."""
        samples = latent.sample(1, generator)[0]
        if self.extra:
            means = latent.mean().to(samples.dtype)
            samples = torch.cat([samples[: self.num_samples], means[self.num_samples :]])
        return Draw(self, latent, samples, self.extra)

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        n = self.num_samples
        values = at_least_float32(values)[:n]
        signal = values if n == 1 else (values - values.mean(0)) / (n - 1)
        grad = draw.latent.score(draw.points.detach())[:n] * draw.latent.with_event_axes(signal)
        # Points that are not samples have no part in the value: their logits learn nothing.
        return torch.cat([grad, torch.zeros_like(grad[:1]).expand(self.extra, *grad.shape[1:])]) if self.extra else grad
