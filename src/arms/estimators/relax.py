r"""RELAX: REBAR with a free function, say a neural network, added to the control variate.

$$ g = \big(f(b) - c(\tilde z)\big)\,(b - \sigma(\phi)) + \partial_\phi c(z) - \partial_\phi c(\tilde z),
   \qquad c(z) = \eta\, f(\sigma(z/\tau)) + r(z) $$

averaged over n/2 samples. Unbiased because any c will do, for the reason given for REBAR. Without the first term of c
(`relaxation=None`) the objective may be a black box. The network r learns with eta and tau, on `variance_loss`.
Reference: Grathwohl et al., "Backpropagation through the void: Optimizing control variates for black-box gradient
estimation", ICLR 2018.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Generator, Tensor, nn

from arms.estimators.base import Draw, Slopes
from arms.estimators.rebar import REBAR, Relaxation
from arms.latents import Latent

HIDDEN = 137


class AdditiveControl(nn.Module):
    """r(z) = sum_i h(z_i), one piecewise linear h for all latents, zero at first: the control for any number of them.

    >>> AdditiveControl()(torch.zeros(4, 5, 3)).shape
    torch.Size([4, 5])
    """

    knots: Tensor

    def __init__(self, knots: int = 9, reach: float = 4.0) -> None:
        super().__init__()
        self.register_buffer("knots", torch.linspace(-reach, reach, knots))
        self.bends = nn.Parameter(torch.zeros(knots))

    def forward(self, z: Tensor) -> Tensor:
        """Map `[n, *batch, d]` to `[n, *batch]`."""
        ramps = nn.functional.leaky_relu(z.unsqueeze(-1) - self.knots.to(z), 0.3)
        return (ramps @ self.bends.to(z)).sum(-1)


class HiddenControl(nn.Module):
    """r(z) by one hidden layer of LeakyReLU units on z, or on z and a context; see `relax_control`."""

    def __init__(self, d: int, hidden: int, context: int) -> None:
        super().__init__()
        self.latent = nn.Linear(d, hidden)
        self.context = nn.Linear(context, hidden, bias=False) if context else None
        self.output = nn.Linear(hidden, 1)

    def forward(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        """Map `[n, *batch, d]`, and a context `[*batch, c]` where there is one, to `[n, *batch]`."""
        if (self.context is None) != (context is None):
            raise ValueError(
                "a control made by relax_control(..., context=c) needs a latent with a context, "
                "arms.Bernoulli(logits, x), and one without needs a latent without"
            )
        hidden = self.latent(z)
        if self.context is not None:
            hidden = hidden + self.context(context)
        values: Tensor = self.output(nn.functional.leaky_relu(hidden, 0.3)).squeeze(-1)
        return values


class ReplicaControl(nn.Module):
    """The same network, one for each of R replicas: z `[n, R, B, d]` and context `[R, B, c]` to `[n, R, B]`."""

    def __init__(self, replicas: int, d: int, context: int, generator: Generator, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.latent, self.context = (self._uniform(replicas, inputs, hidden, generator) for inputs in (d, context))
        self.bias = nn.Parameter(torch.zeros(replicas, 1, hidden, device=generator.device))
        self.output = self._uniform(replicas, hidden, 1, generator)

    def forward(self, z: Tensor, context: Tensor) -> Tensor:
        """Map each replica by its own weights."""
        latent, seen, bias, output = (p.to(z) for p in (self.latent, self.context, self.bias, self.output))
        hidden = nn.functional.leaky_relu(z @ latent + (context.to(z) @ seen + bias), 0.3)
        values: Tensor = (hidden @ output).squeeze(-1)
        return values

    @staticmethod
    def _uniform(replicas: int, inputs: int, outputs: int, generator: Generator) -> nn.Parameter:
        limit = math.sqrt(6 / (inputs + outputs))
        draw = torch.rand(replicas, inputs, outputs, generator=generator, device=generator.device)
        return nn.Parameter(limit * (2 * draw - 1))


def relax_control(d: int, hidden: int = HIDDEN, context: int = 0) -> nn.Module:
    """Return the control network of the ARMS paper's VAE: a hidden layer on z, or on [x, z] with x `[*batch, context]`.

    Args:
        d: How many latents.
        hidden: Width of the hidden layer.
        context: Width of x; 0 where the network sees z alone.

    >>> relax_control(3)(torch.zeros(4, 5, 3)).shape
    torch.Size([4, 5])
    """
    return HiddenControl(d, hidden, context)


@dataclass(frozen=True)
class RELAX(REBAR):
    """RELAX, n/2 samples, each with f(b) and c at two relaxed points: 3n/2 evaluations, n of them differentiated.

    Args:
        num_samples: n, twice the samples of b.
        relaxation: Temperature and scale of the relaxed objective; None leaves it out, for black boxes.
        control: Any module that maps `[n, *batch, d]` to `[n, *batch]`. Where the latent has a context, such as the
            image behind the logits, it is called as control(z, context): `arms.Bernoulli(logits, context)`.

    Keep one RELAX and train it on `arms.variance_loss`, in one backward with the rest (they share one evaluation):

    >>> from arms import variance_loss
    >>> estimator = RELAX(4, control=relax_control(3))
    >>> optimizer = torch.optim.Adam(estimator.parameters())
    >>> logits, weights = torch.zeros(5, 3, requires_grad=True), torch.ones(3, requires_grad=True)
    >>> estimate = estimator(lambda b: (b @ weights).square(), logits)
    >>> logits.backward(estimate.grad.detach())  # what arms.expectation(...).sum().backward() does
    >>> (estimate.value.sum() + variance_loss(estimate)).backward()  # the second reaches the estimator only
    >>> optimizer.step()
    """

    relaxation: Relaxation | None = field(default_factory=Relaxation)  # type: ignore[assignment]
    control: nn.Module = field(default_factory=AdditiveControl)

    needs_relaxation: ClassVar[bool] = False
    formula: ClassVar[str] = "mean of (f(b) - c(z')) (b - p) + dc(z) - dc(z'), c(z) = eta f(sigmoid(z / tau)) + r(z)"
    reference: ClassVar[str] = "Grathwohl et al. 2018"

    def __post_init__(self) -> None:
        super().__post_init__()
        control: object = self.control
        if not isinstance(control, nn.Module):
            raise ValueError(f"control must be a module, such as arms.relax_control(d), got {control!r}")

    @property
    def slopes(self) -> Slopes:
        return "none" if self.relaxation is None else "twice"

    @property
    def evaluations(self) -> int:
        return self.num_samples // 2 if self.relaxation is None else super().evaluations

    @property
    def derivatives(self) -> int:
        return 0 if self.relaxation is None else super().derivatives

    def parameters(self) -> Iterator[nn.Parameter]:
        if self.relaxation is not None:
            yield from super().parameters()
        yield from self.control.parameters()

    def prepare(self, logits_shape: torch.Size, context_shape: torch.Size, generator: Generator) -> Self:
        prepared = super().prepare(logits_shape, context_shape, generator)
        return replace(
            prepared, control=ReplicaControl(logits_shape[0], logits_shape[-1], context_shape[-1], generator)
        )

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        if self.relaxation is not None:
            return super().draw(latent, generator)
        samples, *memory = self._latent_draw(latent, generator)
        return Draw(self, latent, samples, memory=tuple(memory))

    def control_variate(self, draw: Draw, values: Tensor, slopes: Tensor | None) -> tuple[Tensor, Tensor]:
        learning = torch.is_grad_enabled()
        with torch.enable_grad():
            z = draw.memory[0].detach().requires_grad_()
            context = draw.latent.context
            try:
                free: Tensor = self.control(z) if context is None else self.control(z, context)
            except RuntimeError as error:
                raise ValueError(f"the control cannot be applied to points {list(z.shape)}: {error}") from error
            if free.shape != z.shape[:-1]:
                raise ValueError(
                    f"the control must return one value per sample, shape {list(z.shape[:-1])}, got {list(free.shape)}"
                )
            (slope,) = torch.autograd.grad(
                free.sum(), z, create_graph=learning, allow_unused=True, materialize_grads=True
            )
        if self.relaxation is None:
            return free, slope
        control, relaxed_slope = super().control_variate(draw, values, slopes)
        return free + control, slope + relaxed_slope
