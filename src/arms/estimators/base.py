"""The contract of an estimator: a design, and a rule that combines values into a gradient.

Nothing here runs anything. The one path from an objective to a gradient is `arms.estimate`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import torch
from numpy.typing import ArrayLike
from torch import Generator, Tensor, nn

from arms.designs import Design, Draw
from arms.latents import Logits
from arms.targets import Expectation, Target

Values: TypeAlias = "Tensor | ArrayLike"
Objective: TypeAlias = Callable[..., Values]
"""Maps samples to values `[m, *batch]`; samples of a joint latent arrive as keyword arguments."""
TensorObjective: TypeAlias = Callable[..., Tensor]


class Estimate(NamedTuple):
    """What calling an estimator returns."""

    grad: Any
    """The gradient with respect to the logits, ascent direction, `[*batch, *event]`; a dictionary
    for a joint latent.

    It is detached. Only an estimator with parameters leaves it attached to those, so that they can
    learn.
    """
    value: Tensor
    """`[*batch]`: the target as estimated from the samples, attached to what the objective depends
    on."""
    values: Tensor
    """`[n, *batch]`: the objective at the samples (for a bound: the log-weights), attached
    likewise."""


class Estimator(ABC):
    """An estimator of the gradient of a target with respect to the logits of a latent.

    A subclass is one file whose docstring has a formula, a reason for being unbiased (or biased),
    and a reference. It sets `design` and defines `combine`.
    """

    design: Design
    """Where the objective is evaluated, at what cost, and how these points are distributed."""
    unbiased: ClassVar[bool] = True
    """Whether the expectation of the estimate is the gradient, for every objective. The label is
    tested both ways."""
    requires: ClassVar[tuple[type, ...]] = ()
    """Capabilities that `combine` asks of the latent, beside those that the design requires."""

    @property
    def target(self) -> Target:
        """What is differentiated."""
        return Expectation()

    @abstractmethod
    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        """Combine the objective's values into a gradient estimate.

        It must be a pure function of its arguments, because exact tests evaluate it on all
        outcomes of the design at once.

        Args:
            draw: What the design has drawn.
            values: `[m, *batch]`, the objective at all points; log-weights if the target is a bound.
            derivatives: df/db `[k, *batch, *event]` at the last k points, if the design needs any.

        Returns:
            The gradient `[*batch, *event]` with respect to the logits, ascent direction. It may be
            attached to `parameters()`, and to nothing else.
        """

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield what the estimator itself learns, by minimizing `arms.variance_loss`."""
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
            objective: Maps points `[m, *batch, *event]` to values `[m, *batch]`. For a bound it
                returns log p(x, b).
            logits: Logits of independent bits `[*batch, d]`, a latent, or a torch distribution.
            generator: Source of all randomness; the global generator by default.
            chunk: Evaluate this many points at a time, and again in the backward pass.
            validate: Look for NaN and infinity in logits, values and derivatives. On a GPU this
                waits for the device.
        """
        from arms.estimate import estimate  # estimate builds on this contract
        from arms.latents import as_latent
        from arms.objective import Options

        latent = as_latent(logits, validate=validate)
        found = estimate(
            self, objective, latent, generator, Options(chunk, "all" if validate else "cheap")
        )
        return found._replace(grad=latent.split_gradient(found.grad))


def set_design(estimator: Estimator, design: Design) -> None:
    """Set the design of an estimator that is a frozen dataclass of other fields."""
    object.__setattr__(estimator, "design", design)


class Wrapper(Estimator):
    """An estimator that changes another one, and is otherwise like it."""

    inner: Estimator

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return self.inner.unbiased

    @property
    def requires(self) -> tuple[type, ...]:  # type: ignore[override]
        return self.inner.requires

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.inner.parameters()


class Learnable(Estimator):
    """An estimator with parameters that can be made anew for several replicas of a model."""

    @abstractmethod
    def prepare(
        self, logits_shape: torch.Size, context_shape: torch.Size, generator: Generator
    ) -> Self:
        """Return the estimator with fresh parameters for R replicas.

        Args:
            logits_shape: `[R, B, *event]`. Replicas must not share parameters: each parameter has
                a leading axis of length R, and broadcasts from `[R, 1]` to values `[n, R, B]`, say.
            context_shape: `[R, B, c]`, of the latents' context.
            generator: Source of the initial parameters, on the device where they are to live.
        """


def variance_loss(estimate: Estimate) -> Tensor:
    """Return the squared norm of an estimate, averaged over the batch.

    The parameters of an estimator minimize it. The mean of an unbiased estimate does not depend on
    them, so this differs from the variance by a constant.

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
    """Return the gradients of all parts; a joint latent may have joint parts."""
    if isinstance(grad, dict):
        return [one for part in grad.values() for one in _tensors(part)]
    return [grad]
