r"""REBAR: the score function with a control variate of value zero in expectation, made of the relaxed objective itself.

$$ g = \big(f(b) - c(\tilde z)\big)\,(b - \sigma(\phi)) + \partial_\phi c(z) - \partial_\phi c(\tilde z),
   \qquad c(z) = \eta\, f(\sigma(z/\tau)) $$

averaged over n/2 samples (an average of products: multiplying averages, as the ARMS authors' released code does, is
biased). Here z = phi + logistic noise, b = 1[z > 0], and z~ is a second draw of z given b. With s = 2b - 1 and l
logistic noise, z~ = s softplus(l + softplus(s phi)), which no logit overflows, and its slope in phi is
sigma(l + softplus(s phi)) sigma(s phi). The draws are made the other way round, b first and then z given b by the same
formula: the law is the same, and the slope of z is 1 as before.

Unbiased because E[c(z~) (b - p)] + E[d c(z~)/d phi] is the gradient of E[c(z~)], which is E[c(z)], for any fixed c. How
eta and tau are chosen changes the variance only, so they may learn (`variance_loss`).
Reference: Tucker et al., "REBAR: Low-variance, unbiased gradient estimates for discrete latent variable models",
NeurIPS 2017.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Generator, Tensor, nn

from arms.arguments import as_positive, at_least_float32
from arms.estimators.base import Draw, Estimator, Slopes
from arms.latents import Latent
from arms.noise import uniform

FURTHEST = 1000.0  # Bits are certain long before; beyond, infinity would meet itself.


class Relaxation(nn.Module):
    """The learnt temperature tau > 0 and scale eta of c(z) = eta f(sigma(z / tau)).

    Args:
        temperature: tau, as it begins.
        scale: eta, as it begins.
        shape: Of both, to broadcast to the batch: `()` is one pair for all, `(5, 1)` one for each of five replicas.

    >>> Relaxation().temperature
    tensor(0.1000, grad_fn=<ExpBackward0>)
    """

    def __init__(self, temperature: float = 0.1, scale: float = 1.0, shape: Sequence[int] = ()) -> None:
        super().__init__()
        temperature = as_positive(temperature, "temperature")
        self.log_temperature = nn.Parameter(torch.full(tuple(shape), math.log(temperature)))
        self.scale = nn.Parameter(torch.full(tuple(shape), float(scale)))

    @property
    def temperature(self) -> Tensor:
        """The temperature tau."""
        return self.log_temperature.exp()

    def forward(self, z: Tensor) -> Tensor:
        """Return the relaxed bits sigma(z / tau)."""
        return torch.sigmoid(z / self.temperature.to(z).unsqueeze(-1))


@dataclass(frozen=True)
class REBAR(Estimator):
    """REBAR, n/2 samples, each with f(b) and f at two relaxed points: 3n/2 evaluations, n of them differentiated.

    The values of the estimate are the f(b), `[n/2, *batch]`; only they pass gradients to what the objective is made of.

    Args:
        num_samples: n, twice the samples of b.
        relaxation: The temperature and scale of the control variate, which may learn.

    >>> REBAR(4)(lambda b: b.prod(-1), torch.zeros(5, 3)).grad.shape
    torch.Size([5, 3])
    """

    relaxation: Relaxation = field(default_factory=Relaxation)

    needs_relaxation: ClassVar[bool] = True
    min_samples: ClassVar[int] = 2
    even_samples: ClassVar[bool] = True
    formula: ClassVar[str] = "mean of (f(b) - c(z')) (b - p) + dc(z) - dc(z'), c(z) = eta f(sigmoid(z / tau))"
    reference: ClassVar[str] = "Tucker et al. 2017"

    def __post_init__(self) -> None:
        super().__post_init__()
        given: object = self.relaxation
        if not isinstance(given, Relaxation) and (self.needs_relaxation or given is not None):
            raise ValueError(f"relaxation must be an arms.Relaxation, got {given!r}: leave it out for the default")

    @property
    def slopes(self) -> Slopes:
        return "twice"

    @property
    def evaluations(self) -> int:
        return 3 * self.num_samples // 2

    @property
    def derivatives(self) -> int:
        return self.num_samples

    def attached(self) -> int:
        return self.num_samples // 2

    def parameters(self) -> Iterator[nn.Parameter]:
        yield from self.relaxation.parameters()

    def prepare(self, logits_shape: torch.Size, context_shape: torch.Size, generator: Generator) -> Self:
        return replace(self, relaxation=Relaxation(shape=(logits_shape[0], 1)).to(generator.device))

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        samples, *memory = self._latent_draw(latent, generator)
        relaxed = self.relaxation(memory[0]).to(samples.dtype)
        return Draw(self, latent, torch.cat([samples, relaxed]), len(relaxed), tuple(memory))

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        path = draw.memory[1]
        count = self.num_samples // 2
        control, slope = self.control_variate(draw, values[count:], slopes)
        return combine_relaxed(draw.latent.logits, draw.points[:count], values[:count].detach(), control, slope, path)

    def control_variate(self, draw: Draw, values: Tensor, slopes: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return c(z) `[2m, *batch]` and dc/dz `[2m, *batch, d]`, from f and df/db at the relaxed points."""
        assert slopes is not None
        z = draw.memory[0]
        relaxed, scale = self.relaxation(z), self.relaxation.scale.to(z)
        inner = relaxed * (1 - relaxed) / self.relaxation.temperature.to(z).unsqueeze(-1)  # d sigma(z / tau) / dz
        return scale * at_least_float32(values), scale.unsqueeze(-1) * at_least_float32(slopes) * inner

    def _latent_draw(self, latent: Latent, generator: Generator | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return bits `[m, ...]`, z and z~ given them `[2m, ...]`, and d z~/d phi `[m, ...]`."""
        samples = latent.sample(self.num_samples // 2, generator)
        noise = uniform(2, at_least_float32(samples), generator).logit()
        return samples, *latent_points(latent.logits, samples, noise)


def latent_points(phi: Tensor, samples: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return z and z~ given the bits `[m, ...]`, stacked as `[2m, ...]`, and d z~/d phi `[m, ...]`.

    `noise` `[2, m, ...]` is logistic; -inf, the logit of a uniform 0, is fine: z is 0 there and its path flat.
    """
    phi = at_least_float32(phi).clamp(-FURTHEST, FURTHEST)
    sign = 2 * samples.to(phi.dtype) - 1
    depth = noise + nn.functional.softplus(sign * phi)
    z = sign * nn.functional.softplus(depth)
    return z.flatten(0, 1), torch.sigmoid(depth[1]) * torch.sigmoid(sign * phi)


def combine_relaxed(
    phi: Tensor, samples: Tensor, values: Tensor, control: Tensor, slope: Tensor, path: Tensor
) -> Tensor:
    """Return the mean over samples of (f(b) - c(z~)) (b - p) + c'(z) - c'(z~) d z~/d phi, in the dtype of phi.

    `control` and `slope` hold z in their first half and z~ in their second; `path` is d z~/d phi.
    """
    wide = at_least_float32(phi)
    free, conditional = slope.chunk(2)
    difference = at_least_float32(values) - control.chunk(2)[1]
    grad = (difference.unsqueeze(-1) * (samples - torch.sigmoid(wide)) + free - conditional * path).mean(0)
    # A latent that cannot change has no gradient; the slopes at its z and z~ would only cancel on average.
    return torch.where(torch.sigmoid(-wide.abs()) > 0, grad, 0.0).to(phi.dtype)
