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
from typing import ClassVar, NoReturn, Protocol, Self

import torch
from torch import Generator, Tensor, nn

from arms.arguments import Logits, widen
from arms.couplings import Independent, uniform
from arms.estimators.base import Draw, Estimate, Estimator, Objective, checked_logits, evaluate

FURTHEST = 1000.0  # Bits are certain long before; beyond, infinity would meet itself.


class Relaxation(nn.Module):
    """The learnt temperature tau > 0 and scale eta of c(z) = eta f(sigma(z / tau)).

    `shape` must broadcast to the batch: `()` is one pair for all, `(5, 1)` one for each of five replicas.

    >>> Relaxation().temperature
    tensor(0.1000, grad_fn=<ExpBackward0>)
    """

    def __init__(self, temperature: float = 0.1, scale: float = 1.0, shape: Sequence[int] = ()) -> None:
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
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

    >>> REBAR(4)(lambda b: b.prod(-1), torch.zeros(5, 3)).grad.shape
    torch.Size([5, 3])
    """

    relaxation: Relaxation = field(default_factory=Relaxation)

    least: ClassVar[int] = 2
    pairs: ClassVar[bool] = True
    relaxes: ClassVar[bool] = True
    formula: ClassVar[str] = "mean of (f(b) - c(z')) (b - p) + dc(z) - dc(z'), c(z) = eta f(sigmoid(z / tau))"
    reference: ClassVar[str] = "Tucker et al. 2017"

    def parameters(self) -> Iterator[nn.Parameter]:
        yield from self.relaxation.parameters()

    def for_replicas(self, replicas: int, d: int, context: int, generator: Generator) -> Self:
        return replace(self, relaxation=Relaxation(shape=(replicas, 1)).to(generator.device))

    def __call__(
        self,
        objective: Objective,
        logits: Logits,
        generator: Generator | None = None,
        *,
        chunk: int | None = None,
        validate: bool = True,
    ) -> Estimate:
        phi = checked_logits(logits, validate=validate).detach()
        bits = Draw(self, phi, Independent().sample(phi, self.num_samples // 2, generator))
        values = evaluate(objective, bits, chunk=chunk, validate=validate)
        z, path = latent_points(phi, bits.samples, _logistic(bits.samples, generator))
        learnt = tuple(parameter for parameter in self.parameters() if parameter.requires_grad)
        learning = torch.is_grad_enabled() and bool(learnt)
        with torch.enable_grad():
            z.requires_grad_()
            control, through = self.control_variate(objective, z, phi, chunk=chunk, validate=validate)
            slope, passed = torch.autograd.grad(control.sum(), (z, through), create_graph=learning, allow_unused=True)
        if passed is None:
            _refuse(self)
        grad = combine_relaxed(phi, bits.samples, values.detach(), control, slope, path)
        return Estimate(_attach_only(grad, learnt) if learning else grad.detach(), values)

    def control_variate(
        self, objective: Objective, z: Tensor, phi: Tensor, *, chunk: int | None, validate: bool
    ) -> tuple[Tensor, Tensor]:
        """Return c(z) `[2m, *batch]` for z `[2m, *batch, d]`, and the points that its gradient must pass through."""
        relaxed = Draw(self, phi, self.relaxation(z).to(phi.dtype))
        try:
            values = evaluate(objective, relaxed, chunk=chunk, validate=validate)
        except RuntimeError as error:
            if "requires grad" in str(error):  # numpy() and its like
                _refuse(self, error)
            raise
        if not values.requires_grad:
            _refuse(self)
        return self.relaxation.scale.to(z) * widen(values), relaxed.samples

    def draw(self, logits: Tensor, generator: Generator | None = None) -> Draw:
        raise ValueError(
            f"{type(self).__name__} has no two-step form, since it evaluates the objective between 0 and 1 too: "
            "call arms.expectation(objective, logits, estimator)"
        )

    def combine(self, draw: Draw, values: Tensor) -> Tensor:
        raise ValueError(f"{type(self).__name__} needs more than values at its samples: call arms.expectation")


def latent_points(phi: Tensor, samples: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return z and z~ given the bits `[m, ...]`, stacked as `[2m, ...]`, and d z~/d phi `[m, ...]`.

    `noise` `[2, m, ...]` is logistic; -inf, the logit of a uniform 0, is fine: z is 0 there and its path flat.
    """
    phi = widen(phi).clamp(-FURTHEST, FURTHEST)
    sign = 2 * samples.to(phi.dtype) - 1
    depth = noise + nn.functional.softplus(sign * phi)
    z = sign * nn.functional.softplus(depth)
    return z.flatten(0, 1), torch.sigmoid(depth[1]) * torch.sigmoid(sign * phi)


def _logistic(samples: Tensor, generator: Generator | None) -> Tensor:
    return uniform(2, widen(samples), generator).logit()


def combine_relaxed(
    phi: Tensor, samples: Tensor, values: Tensor, control: Tensor, slope: Tensor, path: Tensor
) -> Tensor:
    """Return the mean over samples of (f(b) - c(z~)) (b - p) + c'(z) - c'(z~) d z~/d phi, in the dtype of phi.

    `control` and `slope` hold z in their first half and z~ in their second; `path` is d z~/d phi.
    """
    wide = widen(phi)
    free, conditional = slope.chunk(2)
    difference = widen(values) - control.chunk(2)[1]
    grad = (difference.unsqueeze(-1) * (samples - torch.sigmoid(wide)) + free - conditional * path).mean(0)
    # A latent that cannot change has no gradient; the slopes at its z and z~ would only cancel on average.
    return torch.where(torch.sigmoid(-wide.abs()) > 0, grad, 0.0).to(phi.dtype)


def _refuse(estimator: REBAR, cause: Exception | None = None) -> NoReturn:
    raise ValueError(
        f"{type(estimator).__name__} differentiates the objective between 0 and 1, and this one passes no gradient to "
        "its samples: write it in differentiable torch operations, or use an estimator for black boxes such as arms-s"
    ) from cause


class _Context(Protocol):
    value: Tensor
    parameters: tuple[Tensor, ...]


class _AttachOnly(torch.autograd.Function):
    """The identity, whose backward reaches the parameters and nothing else the value was made of."""

    @staticmethod
    def forward(ctx: _Context, value: Tensor, *parameters: Tensor) -> Tensor:
        ctx.value, ctx.parameters = value, parameters
        return value.detach()

    @staticmethod
    def backward(ctx: _Context, upstream: Tensor) -> tuple[Tensor | None, ...]:
        grads = torch.autograd.grad(ctx.value, ctx.parameters, upstream, retain_graph=True, allow_unused=True)
        return None, *grads


def _attach_only(value: Tensor, parameters: Sequence[nn.Parameter]) -> Tensor:
    attached: Tensor = _AttachOnly.apply(value, *parameters)  # type: ignore[no-untyped-call]
    return attached
