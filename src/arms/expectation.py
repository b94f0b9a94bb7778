"""The user's door: a tensor whose value is the objective's mean and whose gradient is the estimate."""

import torch
from torch import Generator, Tensor

from arms.arguments import Logits
from arms.estimators import Draw, Estimator, Objective
from arms.estimators import estimator as as_estimator
from arms.estimators.base import Values, as_values, draw_from, evaluate, gradient

LARGEST = 1e4
"""A logit whose p is 0 or 1 in every floating-point format."""


def expectation(
    objective: Objective,
    logits: Logits,
    estimator: str | Estimator = "arms-s",
    num_samples: int | None = None,
    generator: Generator | None = None,
    *,
    chunk: int | None = None,
    validate: bool = True,
) -> Tensor:
    """Return E[objective(b)] for b ~ Bernoulli(sigmoid(logits)), as seen by n samples, ready for `.backward()`.

    `objective` maps samples `[n, *batch, d]` to values `[n, *batch]`; it may be a black box. The result `[*batch]` is
    the mean of those values. Its gradient is the estimator's for the logits, plus autograd's own for whatever the
    objective itself depends on.

    `estimator` is a name of `arms.ESTIMATORS` or an object; `num_samples` (8 unless said) counts evaluations of the
    objective. `chunk` evaluates that many samples at a time and recomputes them in backward, when memory is short.
    `validate=False` skips the look at values (NaN, infinity), which on a GPU waits for the device.

    >>> logits = torch.zeros(5, 3, requires_grad=True)
    >>> value = expectation(lambda b: (b - 0.4).square().sum(-1), logits, num_samples=4)
    >>> value.sum().backward()
    >>> value.shape, logits.grad.shape
    (torch.Size([5]), torch.Size([5, 3]))
    """
    drawn = draw(logits, estimator, num_samples, generator, validate=validate)
    return _surrogate(drawn, evaluate(objective, drawn, chunk=chunk, validate=validate))


def draw(
    logits: Logits,
    estimator: str | Estimator = "arms-s",
    num_samples: int | None = None,
    generator: Generator | None = None,
    *,
    validate: bool = True,
) -> Draw:
    """Draw samples now and bring their objective values to `attach` later: for simulators and environments.

    >>> drawn = draw(torch.zeros(3), "disarm", num_samples=2)
    >>> drawn.samples.sum(0)  # at p = 1/2 the two are each other's complement
    tensor([1., 1., 1.])
    """
    return draw_from(as_estimator(estimator, num_samples), logits, generator, validate=validate)


def attach(draw: Draw, values: Values, *, validate: bool = True) -> Tensor:
    """Return the value `[*batch]` of a draw, given its objective values `[n, *batch]`, ready for `.backward()`.

    >>> logits = torch.zeros(3, requires_grad=True)
    >>> drawn = draw(logits, "arms-s", num_samples=4)
    >>> attach(drawn, drawn.samples.numpy().sum(-1)).backward()
    >>> logits.grad.shape
    torch.Size([3])
    """
    return _surrogate(draw, as_values(draw, values, validate=validate))


def _surrogate(draw: Draw, values: Tensor) -> Tensor:
    value = draw.estimator.value(draw, values)
    if not (torch.is_grad_enabled() and draw.logits.requires_grad):
        return value
    # Zero in value, the estimate in slope. The clamp meets only logits that cannot move: inf - inf would be NaN.
    slope = (draw.logits.clamp(-LARGEST, LARGEST) * gradient(draw, values)).sum(-1)
    return value + (slope - slope.detach())
