"""The contract of an estimator: `draw` samples, then `combine` samples and objective values into a gradient."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Self, TypeAlias

import torch
from numpy.typing import ArrayLike
from torch import Generator, Tensor, nn
from torch.utils.checkpoint import checkpoint

from arms.arguments import Logits, as_count, as_logits, holds, widen

Values: TypeAlias = "Tensor | ArrayLike"
Objective: TypeAlias = Callable[[Tensor], Values]
TensorObjective: TypeAlias = Callable[[Tensor], Tensor]


class Estimate(NamedTuple):
    """What calling an estimator returns."""

    grad: Tensor
    """`[*batch, d]`: the estimate of the gradient with respect to the logits, detached.

    An estimator with parameters of its own leaves it attached to those and to nothing else, so that they can learn.
    For the multi-sample bound it is the score part; autograd adds the rest through the value.
    """
    values: Tensor
    """`[n, *batch]`: the objective at the samples, attached to the graph of whatever the objective depends on."""


@dataclass(frozen=True)
class Draw:
    """Samples of an estimator, and what it must remember to turn objective values into a gradient."""

    estimator: "Estimator"
    logits: Tensor
    """`[*batch, d]`, as given: still attached to the graph that made them."""
    samples: Tensor
    """`[n, *batch, d]` of 0 and 1 in the dtype of the logits, detached: evaluate the objective here."""
    noise: Tensor | None = None
    """The noise behind the samples, for the estimators whose gradient depends on it."""


@dataclass(frozen=True)
class Estimator(ABC):
    """An estimator of the gradient of E[f(b)], b ~ Bernoulli(sigmoid(logits)), from `num_samples` evaluations of f."""

    num_samples: int

    unbiased: ClassVar[bool] = True
    """Whether the expectation of the estimate is the gradient, for every objective."""
    objective: ClassVar[Literal["expectation", "multi-sample bound"]] = "expectation"
    """What is differentiated: the mean of the objective, or the multi-sample bound of log-weights."""
    least: ClassVar[int] = 1
    """The smallest `num_samples`."""
    pairs: ClassVar[bool] = False
    """Whether samples come in pairs, so that `num_samples` must be even."""
    relaxes: ClassVar[bool] = False
    """Whether the objective is differentiated between 0 and 1 too: no black boxes then, and no two-step form."""
    alone: ClassVar[bool] = False
    """Whether it needs more than its samples, or another number of them: others cannot share its replica axis then."""
    formula: ClassVar[str] = ""
    """The estimate of one latent's gradient, in plain text."""
    reference: ClassVar[str] = ""
    """Where the estimator was first published."""

    def __post_init__(self) -> None:
        count = as_count(self.num_samples, self.least, f"num_samples of {type(self).__name__}", even=self.pairs)
        object.__setattr__(self, "num_samples", count)

    @abstractmethod
    def draw(self, logits: Tensor, generator: Generator | None = None) -> Draw:
        """Draw the samples at which the objective is to be evaluated."""

    @abstractmethod
    def combine(self, draw: Draw, values: Tensor) -> Tensor:
        """Return the estimate `[*batch, d]` from the objective's values `[n, *batch]`: pure, no randomness."""

    def value(self, draw: Draw, values: Tensor) -> Tensor:
        """Return the value `[*batch]` whose gradient is estimated, as seen by these samples."""
        return values.mean(0)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield what the estimator itself may learn, to be trained on `variance_loss`: nothing, for most."""
        return iter(())

    def for_replicas(self, replicas: int, d: int, context: int, generator: Generator) -> Self:
        """Return the estimator with parameters of its own for each replica of logits `[R, B, d]`, freshly drawn."""
        return self

    def with_context(self, context: Tensor) -> Self:
        """Return the estimator, sharing all parameters, with a view of what made the logits, `[*batch, c]`."""
        return self

    def __call__(
        self,
        objective: Objective,
        logits: Logits,
        generator: Generator | None = None,
        *,
        chunk: int | None = None,
        validate: bool = True,
    ) -> Estimate:
        """Draw, evaluate the objective once at all samples, and combine."""
        draw = draw_from(self, logits, generator, validate=validate)
        values = evaluate(objective, draw, chunk=chunk, validate=validate)
        return Estimate(gradient(draw, values), values)


def variance_loss(estimate: Estimate) -> Tensor:
    """Return the squared norm of the estimate, mean over the batch: what the parameters of an estimator minimise.

    The mean of an unbiased estimate does not depend on them, so this differs from its variance by a constant.

    >>> from arms import REBAR
    >>> estimator = REBAR(2)
    >>> variance_loss(estimator(lambda b: b.prod(-1), torch.zeros(5, 3))).backward()
    >>> [parameter.grad.shape for parameter in estimator.parameters()]
    [torch.Size([]), torch.Size([])]
    """
    return estimate.grad.square().sum(-1).mean()


def checked_logits(logits: Logits, *, validate: bool = True) -> Tensor:
    """Return the logits as a tensor `[*batch, d]` without NaN."""
    tensor = as_logits(logits)
    if validate and not holds(~tensor.isnan().any()):
        raise ValueError("logits must not be NaN: look for the step that made them so (infinite logits are fine)")
    return tensor


def draw_from(
    estimator: Estimator, logits: Logits, generator: Generator | None = None, *, validate: bool = True
) -> Draw:
    """Draw from checked logits."""
    tensor = checked_logits(logits, validate=validate)
    draw = estimator.draw(tensor, generator)
    if draw.samples.shape[1:] != tensor.shape:
        raise ValueError(
            f"samples must have shape [n, {', '.join(map(str, tensor.shape))}], got {list(draw.samples.shape)}: "
            f"look at the sample method of {estimator}"
        )
    return draw


def evaluate(objective: Objective, draw: Draw, *, chunk: int | None = None, validate: bool = True) -> Tensor:
    """Evaluate the objective at the samples: all at once, or `chunk` at a time, recomputed in backward."""
    if chunk is None:
        values = objective(draw.samples)
    else:
        slices = torch.split(draw.samples, as_count(chunk, 1, "chunk"))
        parts = [
            checkpoint(lambda part: _as_tensor(draw, objective(part)), part, use_reentrant=False) for part in slices
        ]
        if any(part.ndim == 0 for part in parts):
            raise ValueError(f"the objective must return {_shape_of_values(draw)}, got a scalar for each chunk")
        values = torch.cat(parts)
    return as_values(draw, values, validate=validate)


def as_values(draw: Draw, values: Values, *, validate: bool = True) -> Tensor:
    """Return objective values, of whatever array type, as a checked tensor `[n, *batch]`."""
    tensor = _as_tensor(draw, values)
    if tensor.shape != draw.samples.shape[:-1]:
        raise ValueError(
            f"the objective must return one value a sample, shape {_shape_of_values(draw)}, got {list(tensor.shape)}: "
            "reduce the latent axis and nothing else"
        )
    if not tensor.is_floating_point():
        tensor = tensor.to(torch.promote_types(draw.samples.dtype, torch.float32))
    if validate and not holds(tensor.isfinite().all()):
        raise ValueError(
            "the objective returned NaN or infinity: one such sample spoils the whole gradient "
            "(validate=False lets it through)"
        )
    return tensor.to(draw.samples.device)


def gradient(draw: Draw, values: Tensor) -> Tensor:
    """Return the estimate of a draw, detached, in the dtype of the logits."""
    with torch.no_grad():
        return draw.estimator.combine(draw, values.detach()).to(draw.logits.dtype)


def score(draw: Draw) -> Tensor:
    """Return b - p, the gradient of log p(b), `[n, *batch, d]`: 1 - p of the ones is not left to a difference.

    >>> from arms import Reinforce
    >>> score(Draw(Reinforce(2), torch.tensor([20.0]), torch.tensor([[0.0], [1.0]]))).flatten()
    tensor([-1.0000e+00,  2.0612e-09])
    """
    logits = widen(draw.logits)
    # Between two ends, lerp takes either exactly, in one pass: torch.where costs twice the time.
    return torch.lerp(-torch.sigmoid(logits), torch.sigmoid(-logits), draw.samples.to(logits.dtype))


def _as_tensor(draw: Draw, values: Values) -> Tensor:
    try:
        return values if isinstance(values, Tensor) else torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"the objective must return a tensor or an array of shape {_shape_of_values(draw)}, "
            f"got {type(values).__name__}"
        ) from None


def _shape_of_values(draw: Draw) -> list[int]:
    return list(draw.samples.shape[:-1])
