r"""REBAR and RELAX: the score function with a learned control variate of mean zero.

$$ g = \big(f(b) - c(\tilde z)\big)\,(b - \sigma(\phi))
     + \partial_\phi c(z) - \partial_\phi c(\tilde z),
   \qquad c(z) = \eta\, f(\sigma(z/\tau)) + r(z) $$

The estimate is averaged over n/2 samples. (The ARMS authors' code multiplies averages instead,
which is biased.) Here z = phi + logistic noise, b = 1[z > 0], and z~ is a second draw of z given b.
REBAR has no free function r. With `relaxation=None`, c has no first term, and the objective may be
a black box.

Unbiased because, for any fixed c, E[c(z~) (b - p)] + E[d c(z~)/d phi] is the gradient of E[c(z~)],
and E[c(z~)] = E[c(z)]. The function c changes only the variance. Its parameters eta, tau and r can
therefore be trained on `variance_loss`.
Reference: Tucker et al., "REBAR: Low-variance, unbiased gradient estimates for discrete latent
variable models", NeurIPS 2017; Grathwohl et al., "Backpropagation through the void: Optimizing
control variates for black-box gradient estimation", ICLR 2018.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Generator, Tensor, nn

from arms.arguments import as_positive, at_least_float32
from arms.designs import Draw, RelaxedPairs
from arms.estimators.base import Learnable, count_samples, set_design, uniform_weights

HIDDEN = 137


class Relaxation(nn.Module):
    """The learned temperature tau > 0 and scale eta in c(z) = eta f(sigma(z / tau)).

    Args:
        temperature: The initial tau.
        scale: The initial eta.
        shape: The shape of both parameters, which broadcasts to the batch. With `()`, all rows use
            the same tau and eta. With `(5, 1)`, each of 5 replicas has its own tau and eta.

    >>> Relaxation().temperature
    tensor(0.1000, grad_fn=<ExpBackward0>)
    """

    def __init__(
        self, temperature: float = 0.1, scale: float = 1.0, shape: Sequence[int] = ()
    ) -> None:
        super().__init__()
        logarithm = math.log(as_positive(temperature, "temperature"))
        self.log_temperature = nn.Parameter(torch.full(tuple(shape), logarithm))
        self.scale = nn.Parameter(torch.full(tuple(shape), float(scale)))

    @property
    def temperature(self) -> Tensor:
        return self.log_temperature.exp()

    def forward(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z / self.temperature.to(z).unsqueeze(-1))


class AdditiveControl(nn.Module):
    """The control function r(z) = sum_i h(z_i), where h is piecewise linear and initially zero.

    All latents share h, so the number of latents is arbitrary.
    """

    knots: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("knots", torch.linspace(-4.0, 4.0, 9))
        self.bends = nn.Parameter(torch.zeros(9))

    def forward(self, z: Tensor) -> Tensor:
        ramps = nn.functional.leaky_relu(z.unsqueeze(-1) - self.knots.to(z), 0.3)
        return (ramps @ self.bends.to(z)).sum(-1)


class HiddenControl(nn.Module):
    """The network that `relax_control` returns."""

    def __init__(self, d: int, hidden: int, context: int) -> None:
        super().__init__()
        self.latent = nn.Linear(d, hidden)
        self.context = nn.Linear(context, hidden, bias=False) if context else None
        self.output = nn.Linear(hidden, 1)

    def forward(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        if self.context is not None and context is None:
            remedy = "pass the latents as arms.Bits(logits, x)"
            what = "relax_control(..., context=c) needs a context x, got none"
            raise ValueError(f"{what}: {remedy}")
        if self.context is None and context is not None:
            remedy = f"create the control with relax_control(..., context={context.shape[-1]})"
            what = "relax_control(...) without context cannot take the context of Bits(logits, x)"
            raise ValueError(f"{what}: {remedy}")
        hidden = self.latent(z)
        if self.context is not None:
            hidden = hidden + self.context(context)
        values: Tensor = self.output(nn.functional.leaky_relu(hidden, 0.3)).squeeze(-1)
        return values


class ReplicaControl(nn.Module):
    """The control network of `relax_control`, with separate weights for each of R replicas.

    The network maps z `[n, R, B, d]` and a context `[R, B, c]` to values `[n, R, B]`.
    """

    def __init__(self, replicas: int, d: int, context: int, generator: Generator) -> None:
        super().__init__()
        self.latent = uniform_weights((replicas, d, HIDDEN), generator)
        self.context = uniform_weights((replicas, context, HIDDEN), generator)
        self.bias = nn.Parameter(torch.zeros(replicas, 1, HIDDEN, device=generator.device))
        self.output = uniform_weights((replicas, HIDDEN, 1), generator)

    def forward(self, z: Tensor, context: Tensor) -> Tensor:
        of_context = context.to(z) @ self.context.to(z) + self.bias.to(z)
        hidden = nn.functional.leaky_relu(z @ self.latent.to(z) + of_context, 0.3)
        values: Tensor = (hidden @ self.output.to(z)).squeeze(-1)
        return values


def relax_control(d: int, hidden: int = HIDDEN, context: int = 0) -> nn.Module:
    """Return the control network of the ARMS paper, which has one hidden layer.

    The input of the network is z, or z and a context x.

    Args:
        d: The number of latents.
        hidden: Width of the hidden layer.
        context: Number of features of the context x `[*batch, context]`; 0 if there is no context.

    >>> relax_control(3)(torch.zeros(4, 5, 3)).shape
    torch.Size([4, 5])
    """
    return HiddenControl(d, hidden, context)


@dataclass(frozen=True)
class RELAX(Learnable):
    """The RELAX estimator. It uses n/2 samples.

    RELAX makes n/2 evaluations at samples, and n evaluations with derivatives at relaxed points.
    Without a relaxation, it makes only the n/2 evaluations at samples.

    Args:
        num_samples: n, even. It is twice the number of samples of b.
        relaxation: Temperature and scale of the relaxed objective; None for black boxes.
        control: The free function r: any module that maps `[n, *batch, d]` to `[n, *batch]`. With
            None, there is no free function, as in REBAR. If the latent has a context, such as the
            image from which the logits were computed, the module is called as
            `control(z, context)`: see `arms.Bits`.

    Create one RELAX, and train it on `arms.variance_loss` together with the model:

    >>> from arms import variance_loss
    >>> estimator = RELAX(4, control=relax_control(3))
    >>> optimizer = torch.optim.Adam(estimator.parameters())
    >>> logits, weights = torch.zeros(5, 3, requires_grad=True), torch.ones(3, requires_grad=True)
    >>> estimate = estimator(lambda b: (b @ weights).square(), logits)
    >>> logits.backward(estimate.grad.detach())  # as arms.expectation(...).sum().backward() does
    >>> (estimate.value.sum() + variance_loss(estimate)).backward()
    >>> optimizer.step()
    """

    num_samples: int
    relaxation: Relaxation | None = field(default_factory=Relaxation)
    control: nn.Module | None = field(default_factory=AdditiveControl)

    def __post_init__(self) -> None:
        if not isinstance(self.relaxation, Relaxation | None):
            raise ValueError(f"relaxation must be an arms.Relaxation, got {self.relaxation!r}")
        if not isinstance(self.control, nn.Module | None):
            raise ValueError(f"control must be an nn.Module or None, got {self.control!r}")
        if self.relaxation is None and self.control is None:
            raise ValueError("RELAX needs a relaxation, a control, or both, got neither")
        count = count_samples(self, 2, even=True)
        set_design(self, RelaxedPairs(count // 2, self.relaxation))

    def prepare(
        self, logits_shape: torch.Size, context_shape: torch.Size, generator: Generator
    ) -> Self:
        replicas, d = logits_shape[0], logits_shape[-1]
        relaxation, control = self.relaxation, self.control
        if relaxation is not None:
            relaxation = Relaxation(shape=(replicas, 1)).to(generator.device)
        if control is not None:
            control = ReplicaControl(replicas, d, context_shape[-1], generator)
        return replace(self, relaxation=relaxation, control=control)

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        z, path = draw.memory
        count = self.design.num_samples
        parts = []  # the terms of c(z) `[2m, *batch]`, each with its derivative with respect to z
        if self.control is not None:
            parts.append(_free_part(self.control, z, getattr(draw.latent, "context", None)))
        if self.relaxation is not None:
            assert derivatives is not None
            parts.append(_relaxed_part(self.relaxation, z, values[count:], derivatives))
        control, derivative = parts[0]
        if len(parts) == 2:
            control, derivative = control + parts[1][0], derivative + parts[1][1]
        samples, of_samples = draw.points[:count], values[:count].detach()
        return combine_relaxed(draw.latent.logits, samples, of_samples, control, derivative, path)


def _relaxed_part(
    relaxation: Relaxation, z: Tensor, values: Tensor, derivatives: Tensor
) -> tuple[Tensor, Tensor]:
    """Return eta f(sigma(z / tau)), `[2m, *batch]`, and its derivative, `[2m, *batch, d]`.

    The derivative is with respect to z. `values` and `derivatives` are f and df/db at the relaxed
    points sigma(z / tau).
    """
    relaxed, scale = relaxation(z), relaxation.scale.to(z)
    # d sigma(z / tau) / dz
    inner = relaxed * (1 - relaxed) / relaxation.temperature.to(z).unsqueeze(-1)
    derivative = scale.unsqueeze(-1) * derivatives * inner
    return scale * values, derivative


def _free_part(control: nn.Module, z: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
    learning = torch.is_grad_enabled()
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        try:
            free: Tensor = control(z) if context is None else control(z, context)
        except RuntimeError as error:
            what = f"the control must accept a tensor of shape {list(z.shape)}"
            raise ValueError(f"{what}, but raised: {error}") from error
        if free.shape != z.shape[:-1]:
            shapes = f"shape {list(z.shape[:-1])}, got {list(free.shape)}"
            raise ValueError(f"the control must return one value per sample, {shapes}")
        (derivative,) = torch.autograd.grad(
            free.sum(), z, create_graph=learning, allow_unused=True, materialize_grads=True
        )
    return free, derivative


def REBAR(num_samples: int, relaxation: Relaxation | None = None) -> RELAX:
    """Return REBAR: RELAX without a free function in its control variate.

    Args:
        num_samples: n, even. It is twice the number of samples of b.
        relaxation: Temperature and scale of the relaxed objective.

    >>> REBAR(4)(lambda b: b.prod(-1), torch.zeros(5, 3)).grad.shape
    torch.Size([5, 3])
    """
    return RELAX(num_samples, Relaxation() if relaxation is None else relaxation, control=None)


def combine_relaxed(
    phi: Tensor, samples: Tensor, values: Tensor, control: Tensor, derivative: Tensor, path: Tensor
) -> Tensor:
    """Return the mean over samples of (f(b) - c(z~)) (b - p) + c'(z) - c'(z~) d z~/d phi.

    The module docstring defines c, z and z~. `control` contains c(z) for all samples, then c(z~)
    for all samples. `derivative` contains the derivatives c'(z), then c'(z~). `path` is d z~/d phi.
    """
    wide = at_least_float32(phi)
    free, conditional = derivative.chunk(2)
    difference = values - control.chunk(2)[1]
    score = samples - torch.sigmoid(wide)
    grad = (difference.unsqueeze(-1) * score + free - conditional * path).mean(0)
    # A bit with p = 0 or 1 has no gradient, but the derivatives at z and z~ cancel only on average.
    return torch.where(torch.sigmoid(-wide.abs()) > 0, grad, 0.0).to(phi.dtype)
