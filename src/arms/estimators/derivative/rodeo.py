r"""RODEO: leave-one-out REINFORCE with control variates made by a Stein operator.

$$ g = \frac{1}{n} \sum_i \Big(f(b_i)
     - \frac{1}{n-1} \sum_{j \ne i} \big(f(b_j) + (S h_{j0})(b_j)\big)\Big) (b_i - p)
   + \frac{1}{n} \sum_i \big(S[h_{i1}(\cdot)\,(\cdot - p)]\big)(b_i) $$

S is the expected change of a function in one step of a Gibbs sampler:
(S h)(x) = mean_k |x_k - p_k| (h(x with bit k flipped) - h(x)). Here |x_k - p_k| is the probability
that the sampler changes bit k. The functions h_i0 and h_i1 of sample i are the two outputs of a
small network H, which sees only the other samples:

$$ h_i(x) = \frac{1}{n-1} \sum_{j \ne i} H\big(G_j \cdot (x - b_j),\ f(b_j)\big),
   \qquad G_j = \frac{\partial f}{\partial b}(b_j) $$

Flipping bit k changes G.x by G_k (1 - 2 x_k). All flips together therefore cost n (n-1) (d+1)
evaluations of H. The outputs of H are initially zero, and RODEO is then LOORF. H is trained on
`variance_loss`.

Unbiased because E[(S h)(b)] = 0 for every h that does not depend on b: the Gibbs sampler does not
change the distribution. Given the other samples, h_i is constant. S h_j0 at b_j depends on b_i, but
has mean zero given all samples except b_j.
Reference: Shi et al., "Gradient estimation with discrete Stein operators", NeurIPS 2022.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Generator, Tensor, nn

from arms.designs import Draw, Independent
from arms.estimators.base import Learnable, count_samples, set_design, uniform_weights
from arms.estimators.regression import sum_of_others
from arms.estimators.score.leave_one_out import leave_one_out
from arms.latents import Binary

HIDDEN = 16


class SteinControl(nn.Module):
    """The network H of RODEO: two inputs, one hidden layer, and two outputs.

    Each output is multiplied by a learned scale, which is initially zero.

    Args:
        hidden: Width of the hidden layer, which consists of LeakyReLU units.
        shape: The leading axes of the parameters, which broadcast to the batch. With `()`, all rows
            use the same network. With `(5, 1)`, each of 5 replicas has its own network.
        generator: The generator for initial weights; by default, a new generator with seed 0.

    >>> SteinControl()(torch.zeros(4, 5, 3), torch.zeros(4, 5, 1)).shape
    torch.Size([4, 5, 3, 2])
    """

    def __init__(
        self, hidden: int = HIDDEN, shape: Sequence[int] = (), generator: Generator | None = None
    ) -> None:
        super().__init__()
        # Creating a network must not advance the global generator.
        source = generator or torch.Generator().manual_seed(0)
        self.hidden = hidden
        self.inputs = uniform_weights((*shape, 2, hidden), source)
        self.bias = nn.Parameter(torch.zeros(*shape, 1, hidden, device=source.device))
        self.outputs = uniform_weights((*shape, hidden, 2), source)
        self.scales = nn.Parameter(torch.zeros(*shape, 1, 2, device=source.device))

    def forward(self, change: Tensor, value: Tensor) -> Tensor:
        inputs = self.inputs.to(change)
        of_value = value.unsqueeze(-1) * inputs[..., 1:, :] + self.bias.to(change)
        hidden = change.unsqueeze(-1) * inputs[..., :1, :] + of_value
        outputs = self.outputs.to(change) * self.scales.to(change)
        return nn.functional.leaky_relu(hidden, 0.3) @ outputs


@dataclass(frozen=True)
class RODEO(Learnable):
    """The RODEO estimator. It uses n >= 2 independent samples.

    To train the parameters, minimize `variance_loss`, as for RELAX.

    Args:
        num_samples: n.
        control: H, any module that maps changes `[n, *batch, k]` and values `[n, *batch, 1]` to
            `[n, *batch, k, 2]`. The paper uses 100 hidden units: `SteinControl(100)`.

    >>> from arms import variance_loss
    >>> estimator = RODEO(4)
    >>> variance_loss(estimator(lambda b: b.prod(-1), torch.zeros(5, 3))).backward()
    >>> estimator.control.scales.grad.shape
    torch.Size([1, 2])
    """

    num_samples: int
    control: nn.Module = field(default_factory=SteinControl)
    requires = (Binary,)

    def __post_init__(self) -> None:
        set_design(self, Independent(count_samples(self, 2), differentiated=True))

    def prepare(
        self, logits_shape: torch.Size, context_shape: torch.Size, generator: Generator
    ) -> Self:
        hidden = self.control.hidden if isinstance(self.control, SteinControl) else HIDDEN
        return replace(self, control=SteinControl(hidden, (logits_shape[0], 1), generator))

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        assert derivatives is not None
        latent, score = draw.latent, draw.latent.score(draw.points)
        known = [of.to(score.dtype) for of in (draw.points, values, derivatives)]
        baseline, correction = self._stein(score, *known)
        of_others = sum_of_others(baseline, 0) / (len(values) - 1)
        controls = (correction - of_others.unsqueeze(-1) * score).mean(0)
        return leave_one_out(latent, draw.points, values) + controls

    def _stein(
        self, score: Tensor, samples: Tensor, values: Tensor, derivatives: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return S h_i0 and S[h_i1(x) (x - p)] at x = b_i, for every sample b_i.

        The first result has shape `[n, *batch]`, and the second has `[n, *batch, d]`. The module
        docstring defines S, h_i0 and h_i1.
        """
        n, d = len(samples), max(1, samples.shape[-1])
        flips, steps = score.abs(), 1 - 2 * samples  # |b - p| is the probability of a flip
        baseline, correction = torch.zeros_like(score.sum(-1)), torch.zeros_like(score)
        for distance in range(1, n):  # pair sample i with sample i + distance, for all i
            g, value = derivatives.roll(-distance, 0), values.roll(-distance, 0)
            here = (g * (samples - samples.roll(-distance, 0))).sum(-1, keepdim=True)
            # Evaluate H at the sample, and at each of its d flips.
            found = self.control(torch.cat([here, here + g * steps], -1), value.unsqueeze(-1))
            stay, flipped = found[..., :1, :], found[..., 1:, :]
            change = (flips.unsqueeze(-1) * (flipped - stay)).mean(-2)
            baseline = baseline + change[..., 0]
            # A flip of bit k changes the factor (x_k - p_k) by 1 - 2 x_k, and no other factor.
            correction = correction + change[..., 1:] * score + flips * flipped[..., 1] * steps / d
        return baseline / (n - 1), correction / (n - 1)
