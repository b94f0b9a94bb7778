"""The interface of an estimator: a design, and a rule that combines values into a gradient."""

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
"""A function from samples to values `[m, *batch]`.

The samples of a joint latent arrive as keyword arguments.
"""
TensorObjective: TypeAlias = Callable[..., Tensor]


class Estimate(NamedTuple):
    """The result of calling an estimator."""

    grad: Any
    """The gradient with respect to the logits, `[*batch, *event]`, in the direction of ascent.

    For a joint latent, this is a dictionary with one gradient per part. Autograd can differentiate
    `grad` with respect to the estimator's own parameters only."""
    value: Tensor
    """An estimate of the target from the samples, `[*batch]`, attached to autograd's graph."""
    values: Tensor
    """The objective at the samples, `[n, *batch]`, attached to autograd's graph.

    For a bound, these are the log-weights.
    """


class Estimator(ABC):
    """Estimates the gradient of a target with respect to the logits of a latent.

    A subclass sets `design` and defines `combine`. The docstring of its file states the formula, a
    reference, and why the estimator is unbiased or biased.
    """

    design: Design
    """The points at which the objective is evaluated, and their joint distribution."""
    target: Target = Expectation()
    """The quantity that is differentiated: the expectation E[f(b)], a bound, or the best of k."""
    unbiased: bool = True
    """Whether the expectation of the estimate is the gradient for every objective."""
    requires: tuple[type, ...] = ()
    """The capabilities that `combine` requires of the latent. The design may require others."""

    @abstractmethod
    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        """Return the gradient `[*batch, *event]`, in the direction of ascent, given values of f.

        This must be a pure function, because exact tests evaluate it on all outcomes at once.
        Autograd may differentiate the result with respect to `parameters()` only.

        Args:
            draw: The points that the design has drawn.
            values: The objective at all points, `[m, *batch]`, in float32 or float64. For a bound,
                these are log-weights.
            derivatives: The derivatives df/db, `[k, *batch, *event]`, in float32 or float64. They
                belong to the last k points. None if the design needs no derivatives.
        """

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the estimator's own parameters. To train them, minimize `arms.variance_loss`."""
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
        """Draw points, evaluate the objective once at each point, and combine the values.

        Args:
            objective: A function that maps points `[m, *batch, *event]` to values `[m, *batch]`.
                For a bound, the values are log p(x, b).
            logits: As for `arms.expectation`.
            generator: As for `arms.expectation`.
            chunk: As for `arms.expectation`.
            validate: As for `arms.expectation`.
        """
        from arms.estimate import estimate  # `arms.estimate` imports this module
        from arms.latents import as_latent
        from arms.objective import Options

        latent = as_latent(logits, validate=validate)
        options = Options(chunk, "all" if validate else "cheap")
        found = estimate(self, objective, latent, generator, options)
        return found._replace(grad=latent.split_gradient(found.grad))


def set_design(estimator: Estimator, design: Design, **facts: object) -> None:
    """Set the attribute `design` of an estimator, and one attribute for each entry of `facts`.

    Estimators are frozen dataclasses, so an ordinary assignment would raise an error.
    """
    for name, value in {"design": design, **facts}.items():
        object.__setattr__(estimator, name, value)


def count_samples(estimator: Any, least: int, even: bool = False) -> int:
    """Return the estimator's `num_samples` as an integer.

    Raise if `num_samples` is below `least`, or if it is odd and `even` is True.
    """
    what = f"num_samples of {type(estimator).__name__}"
    return as_count(estimator.num_samples, least, what, even=even)


class Wrapper(Estimator):
    """An estimator that modifies another one, called the inner estimator.

    The wrapper has the parameters of the inner estimator. It also has the same `unbiased` and
    `requires`, unless `wrap` gets other values.
    """

    inner: Estimator

    def wrap(self, design: Design, **facts: object) -> None:
        own = {"unbiased": self.inner.unbiased, "requires": self.inner.requires}
        set_design(self, design, **own | facts)

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.inner.parameters()


class Learnable(Estimator):
    """An estimator with parameters.

    The method `prepare` creates these parameters for several replicas of a model.
    """

    def parameters(self) -> Iterator[nn.Parameter]:
        modules = (value for value in vars(self).values() if isinstance(value, nn.Module))
        return (one for module in modules for one in module.parameters())

    @abstractmethod
    def prepare(
        self, logits_shape: torch.Size, context_shape: torch.Size, generator: Generator
    ) -> Self:
        """Return a copy of the estimator that has new parameters.

        The parameters are created on the generator's device. `logits_shape` is `[R, B, *event]` for
        R replicas. `context_shape` is the shape of the latent's context, `[R, B, c]`. Replicas must
        not share parameters. Every parameter therefore has a leading axis of length R, and must
        broadcast over the B rows.
        """


def uniform_weights(shape: Sequence[int], generator: Generator) -> nn.Parameter:
    """Return random weights `[..., inputs, outputs]` from Glorot's uniform distribution."""
    limit = math.sqrt(6 / (shape[-2] + shape[-1]))
    draw = torch.rand(*shape, generator=generator, device=generator.device)
    return nn.Parameter(limit * (2 * draw - 1))


def variance_loss(estimate: Estimate) -> Tensor:
    """Return the squared norm of an estimated gradient, averaged over the batch.

    Minimize this loss to train the parameters of an estimator. These parameters do not change the
    mean of an unbiased estimate, so the loss differs from the variance by a constant only.

    Args:
        estimate: The result of calling an estimator that has parameters.

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
