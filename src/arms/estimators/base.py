"""The contract of an estimator: `draw` points, then `combine` what the objective says of them into a gradient.

Nothing here runs anything: the one way from an objective to a gradient is `arms.estimators.pipeline.estimate`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

import torch
from numpy.typing import ArrayLike
from torch import Generator, Tensor, nn

from arms.arguments import as_count
from arms.latents import Bernoulli, Latent, Logits
from arms.targets import Expectation, Target

Values: TypeAlias = "Tensor | ArrayLike"
Objective: TypeAlias = Callable[[Tensor], Values]
TensorObjective: TypeAlias = Callable[[Tensor], Tensor]
Slopes: TypeAlias = Literal["none", "extra", "all", "twice"]


class Estimate(NamedTuple):
    """What calling an estimator returns."""

    grad: Tensor
    """`[*batch, *event]`: the estimate of the gradient with respect to the logits, ascent direction, detached.

    An estimator with parameters of its own leaves it attached to those and to nothing else, so that they can learn.
    For the multi-sample bound it is what autograd does not add through the value: the score part, or the whole minus
    that.
    """
    value: Tensor
    """`[*batch]`: the target as seen by the samples, attached to the graph of whatever the objective depends on."""
    values: Tensor
    """`[n, *batch]`: the objective at the samples, attached likewise."""


@dataclass(frozen=True)
class Draw:
    """Points at which the objective is to be evaluated, and what the estimator must remember about them."""

    estimator: "Estimator"
    """What the points were drawn for."""
    latent: Latent
    """What was drawn, its logits as they were."""
    points: Tensor
    """`[m, *batch, *event]`: the samples, then `extra` other points (midpoints, relaxed samples). Detached, unless
    the estimator's own parameters have a part in where the extra points lie."""
    extra: int = 0
    """How many of the points, the last ones, are not samples."""
    memory: tuple[Any, ...] = ()
    """What `combine` needs beside the points: the noise behind them, say."""
    given: Latent | None = None
    """The latent as the user gave it, with its graph, where the draw is to be attached to it later."""
    original: Tensor | None = None
    """A copy of the points as they were handed out, to notice if they were changed in place."""
    parent: "Draw | None" = None
    """The draw of the layer before, where this one is of a deeper layer."""

    @property
    def samples(self) -> Tensor:
        """The samples `[n, *batch, *event]` as the objective gets them, a copy: a simulator may change it at will."""
        return self.latent.shown(self.points[: len(self.points) - self.extra].detach().clone())

    @property
    def logits(self) -> Tensor:
        """The logits `[*batch, *event]`."""
        return self.latent.logits


@dataclass(frozen=True)
class Estimator(ABC):
    """An estimator of the gradient of a target with respect to the logits of a latent.

    A subclass is one file with a formula, a reason for being unbiased and a reference in its docstring. It must define
    `draw` and `combine`; all else has defaults.

    Args:
        num_samples: How many samples are drawn; the evaluations of the objective, for most.
    """

    num_samples: int

    unbiased: ClassVar[bool] = True
    """Whether the expectation of the estimate is the gradient, for every objective. Checked both ways."""
    latents: ClassVar[tuple[type[Latent], ...]] = (Bernoulli,)
    """Which latents it takes."""
    min_samples: ClassVar[int] = 1
    """The smallest `num_samples`."""
    even_samples: ClassVar[bool] = False
    """Whether samples come in pairs, so that `num_samples` must be even."""
    formula: ClassVar[str] = ""
    """The estimate of one latent's gradient, in plain text."""
    reference: ClassVar[str] = ""
    """Where the estimator was first published."""

    def __post_init__(self) -> None:
        what = f"num_samples of {type(self).__name__}"
        count = as_count(self.num_samples, self.min_samples, what, even=self.even_samples)
        object.__setattr__(self, "num_samples", count)

    @property
    def target(self) -> Target:
        """What is differentiated."""
        return Expectation()

    @property
    def slopes(self) -> Slopes:
        """What is asked of the objective's derivative df/db: `none`; at the points after the samples (`extra`); at
        `all` points; or after the samples and differentiable once more (`twice`)."""
        return "none"

    @property
    def evaluations(self) -> int | None:
        """Evaluations of the objective per call; None where that depends on the number of latents."""
        return self.num_samples

    @property
    def derivatives(self) -> int:
        """How many of the evaluations, the last ones, are differentiated with respect to their point."""
        return self.evaluations or 0 if self.slopes == "all" else 0

    @property
    def equal_weights(self) -> bool:
        """Whether the plain mean over samples stands for the expectation: not where they are drawn otherwise."""
        return True

    @property
    def has_parameters(self) -> bool:
        """Whether it learns anything itself."""
        return any(True for _ in self.parameters())

    @abstractmethod
    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        """Draw the points at which the objective is to be evaluated.

        Args:
            latent: What is drawn; its logits are to be treated as constants.
            generator: Source of all randomness; the global one unless given.

        Returns:
            The points, samples first, and whatever `combine` needs beside them.
        """

    @abstractmethod
    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        """Return the estimate `[*batch, *event]`: pure, no randomness, no state.

        Args:
            draw: What `draw` returned.
            values: `[m, *batch]`, the objective at all points.
            slopes: `[derivatives, *batch, *event]`, its derivative at the last points, if the estimator asks for it.

        Returns:
            The gradient with respect to the logits, attached to `parameters()` and to nothing else.
        """

    def value(self, draw: Draw, values: Tensor) -> Tensor:
        """Return the target `[*batch]` as seen by the samples, of the objective's values at all points."""
        return self.target.value(self.sample_values(draw, values))

    def sample_values(self, draw: Draw, values: Tensor) -> Tensor:
        """Return the objective's values at the samples, of those at all points."""
        return values[: len(values) - draw.extra] if draw.extra else values

    def attached(self) -> int:
        """Return how many of the points, the leading ones, `value` is made of and needs the graph of."""
        return self.target.attached(self.num_samples)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield what the estimator itself may learn, to be trained on `variance_loss`: nothing, for most."""
        return iter(())

    def prepare(self, logits_shape: torch.Size, context_shape: torch.Size, generator: Generator) -> Self:
        """Return the estimator with fresh parameters, if it has any, for one kind of latent.

        Args:
            logits_shape: `[R, B, *event]`: R replicas, which must not share parameters. Each parameter has a leading
                axis of R, and broadcasts from `[R, 1]` to the values `[n, R, B]`, say.
            context_shape: `[R, B, c]`, of the latents' context.
            generator: Source of the initial parameters, on the device where they are to live.
        """
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
        """Draw, evaluate the objective once at all points, and combine.

        Args:
            objective: Maps points `[m, *batch, *event]` to values `[m, *batch]`.
            logits: Logits of Bernoullis `[*batch, d]`, a latent, or a distribution of torch.
            generator: Source of all randomness; the global one unless given.
            chunk: Evaluate this many points at a time, and again in backward; all at once unless given.
            validate: Look for NaN and infinity in logits, values and slopes, which on a GPU waits for the device.
        """
        from arms.estimators.pipeline import Options, estimate  # the machinery knows the contract, not the reverse
        from arms.latents import as_latent

        options = Options(chunk, "all" if validate else "cheap")
        return estimate(self, objective, as_latent(logits, validate=validate), generator, options)


def variance_loss(estimate: Estimate) -> Tensor:
    """Return the squared norm of the estimate, mean over the batch: what the parameters of an estimator minimise.

    The mean of an unbiased estimate does not depend on them, so this differs from its variance by a constant.

    Args:
        estimate: What calling an estimator with parameters returned.

    >>> from arms import REBAR
    >>> estimator = REBAR(2)
    >>> variance_loss(estimator(lambda b: b.prod(-1), torch.zeros(5, 3))).backward()
    >>> [parameter.grad.shape for parameter in estimator.parameters()]
    [torch.Size([]), torch.Size([])]
    """
    event = estimate.grad.shape[estimate.value.ndim :]
    return estimate.grad.square().mean() * event.numel()
