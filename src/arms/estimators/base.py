"""The contract of an estimator: a design, and a rule that combines values into a gradient."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

import torch
from numpy.typing import ArrayLike
from torch import Generator, Tensor, nn

from arms.arguments import as_count
from arms.designs import Design, Draw
from arms.latents import Logits
from arms.targets import Expectation, Target

Values: TypeAlias = "Tensor | ArrayLike"
Objective: TypeAlias = Callable[..., Values]
"""Maps samples to values `[m, *batch]`; samples of a joint latent arrive as keyword arguments."""
TensorObjective: TypeAlias = Callable[..., Tensor]


class Estimate(NamedTuple):
    """The result of calling an estimator."""

    grad: Any
    """The gradient with respect to the logits, ascent direction, `[*batch, *event]`; a dictionary
    for a joint latent. It is attached to nothing but the estimator's parameters."""
    value: Tensor
    """`[*batch]`, the target estimated from the samples, with autograd's graph."""
    values: Tensor
    """`[n, *batch]`, the objective at the samples (log-weights for a bound), with its graph."""


class Estimator(ABC):
    """An estimator of the gradient of a target with respect to the logits of a latent.

    A subclass sets `design` and defines `combine`. Its file states the formula, a reason for being
    unbiased or biased, and a reference.
    """

    design: Design
    """Where the objective is evaluated, at what cost, and how these points are distributed."""
    target: Target = Expectation()
    """The function of the values that is differentiated."""
    unbiased: bool = True
    """Whether the expectation of the estimate is the gradient, for every objective."""
    requires: tuple[type, ...] = ()
    """Capabilities of the latent that `combine` needs, besides those that the design requires."""

    @abstractmethod
    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        """Combine values into the gradient `[*batch, *event]` for the logits, ascent direction.

        It must be a pure function, because exact tests evaluate it on all outcomes at once. The
        result may be attached to `parameters()` only.

        Args:
            draw: What the design has drawn.
            values: `[m, *batch]`, the objective at all points; log-weights for a bound. In float32
                or float64, like the derivatives.
            derivatives: df/db `[k, *batch, *event]` at the last k points, if the design needs any.
        """

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the estimator's own parameters, which minimize `arms.variance_loss`."""
        return iter(())

    def __call__(
        self,
        objective: Objective,
        logits: Logits,
        generator: Generator | None = None,
        *,
        chunk: int | None = None,
        validate: bool = True,
    ) -> Estimate:
        """Draw, evaluate the objective once at all points, and combine.

        Args:
            objective: Maps points `[m, *batch, *event]` to values; for a bound, to log p(x, b).
            logits, generator, chunk, validate: As for `arms.expectation`.
        """
        from arms.estimate import estimate  # estimate builds on this contract
        from arms.latents import as_latent
        from arms.objective import Options

        latent = as_latent(logits, validate=validate)
        options = Options(chunk, "all" if validate else "cheap")
        found = estimate(self, objective, latent, generator, options)
        return found._replace(grad=latent.split_gradient(found.grad))


def set_design(estimator: Estimator, design: Design, **facts: object) -> None:
    """Set the design of an estimator that is a frozen dataclass, and other facts about it."""
    for name, value in {"design": design, **facts}.items():
        object.__setattr__(estimator, name, value)


def count_samples(estimator: Any, least: int, even: bool = False) -> int:
    """Return the `num_samples` of an estimator, checked."""
    what = f"num_samples of {type(estimator).__name__}"
    return as_count(estimator.num_samples, least, what, even=even)


class Wrapper(Estimator):
    """An estimator that changes another one, and is otherwise like it."""

    inner: Estimator

    def wrap(self, design: Design, **facts: object) -> None:
        own = {"unbiased": self.inner.unbiased, "requires": self.inner.requires}
        set_design(self, design, **own | facts)

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.inner.parameters()


class Learnable(Estimator):
    """An estimator with parameters that can be recreated for several replicas of a model."""

    def parameters(self) -> Iterator[nn.Parameter]:
        modules = (value for value in vars(self).values() if isinstance(value, nn.Module))
        return (one for module in modules for one in module.parameters())

    @abstractmethod
    def prepare(
        self, logits_shape: torch.Size, context_shape: torch.Size, generator: Generator
    ) -> Self:
        """Return the estimator with fresh parameters for R replicas, on the generator's device.

        Logits are `[R, B, *event]`, and the latents' context is `[R, B, c]`. Replicas must not
        share parameters: each one has a leading axis of length R, and broadcasts to the batch.
        """


def uniform_weights(shape: Sequence[int], generator: Generator) -> nn.Parameter:
    """Return initial weights `[..., inputs, outputs]` of a learned network (Glorot)."""
    limit = math.sqrt(6 / (shape[-2] + shape[-1]))
    draw = torch.rand(*shape, generator=generator, device=generator.device)
    return nn.Parameter(limit * (2 * draw - 1))


def variance_loss(estimate: Estimate) -> Tensor:
    """Return the squared norm of an estimate, averaged over the batch.

    The parameters of an estimator minimize it. They do not change the mean of an unbiased
    estimate, so this differs from the variance by a constant.

    Args:
        estimate: What calling an estimator with parameters returned.

    >>> from arms import REBAR
    >>> estimator = REBAR(2)
    >>> variance_loss(estimator(lambda b: b.prod(-1), torch.zeros(5, 3))).backward()
    >>> [parameter.grad.shape for parameter in estimator.parameters()]
    [torch.Size([]), torch.Size([])]
    """
    batch = estimate.value.ndim
    norms = [grad.square().mean() * grad.shape[batch:].numel() for grad in _tensors(estimate.grad)]
    return torch.stack(norms).sum()


def _tensors(grad: Any) -> list[Tensor]:
    if isinstance(grad, dict):
        return [one for part in grad.values() for one in _tensors(part)]
    return [grad]
