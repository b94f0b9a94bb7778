"""The optimizer Adam, whose state can be saved, and learning rates.

Rates are computed on the device, so that they can change while a CUDA graph is replayed. PyTorch's
private kernels were tried on versions 2.11 and 2.13, and are expected from 2.8 on. With other
versions, public operations are used. They are slower, and give the same results up to rounding.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from arms.bench.config import TrainConfig

_FOREACH = ("lerp_", "mul_", "mul", "addcmul_", "sqrt", "add_", "div", "sub_")
HAS_FOREACH = all(hasattr(torch, f"_foreach_{name}") for name in _FOREACH)
HAS_FUSED_ADAM = hasattr(torch, "_fused_adam_")

FIRST_DECAY = 0.9
SECOND_DECAY = 0.999
EPSILON = 1e-7
"""Adam's epsilon. The ARMS paper uses this value, which is the default of TensorFlow."""
RATE_FIELDS = (
    *("learning_rate", "prior_learning_rate"),
    *("schedule", "warmup_steps", "decay_every", "decay_factor"),
)
"""Fields that determine learning rates. Runs of an ensemble may differ in these fields."""


class Optimizer(ABC):
    """The interface of an optimizer, which updates a list of tensors in place."""

    parameters: list[Tensor]

    @abstractmethod
    def step(self, grads: Sequence[Tensor], rate: Tensor, count: Tensor) -> None:
        """Update every parameter in place.

        `grads` contains one gradient per parameter. `rate` is a tensor without axes, or contains
        one learning rate per replica, `[R]`. `count` is a tensor without axes. It is the number of
        steps, including this step.
        """

    @abstractmethod
    def state(self) -> dict[str, list[Tensor]]:
        """Return the optimizer's state as lists of tensors, by name.

        Each list has one tensor per parameter, of the same shape as the parameter.
        """

    @abstractmethod
    def second_moments(self) -> list[Tensor]:
        """Return the moving averages of the squared gradients, one tensor per parameter.

        The averages decay with `SECOND_DECAY`. They start at 0, and this start is not corrected.
        """


class Moments(NamedTuple):
    """The tensors and constants of Adam. Each list has one tensor per parameter."""

    parameters: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]
    decays: tuple[float, float]
    epsilon: float


def fused_adam_(adam: Moments, grads: Sequence[Tensor], rate: Tensor, count: Tensor) -> None:
    """Do a step of Adam in one pass over memory.

    All tensors must be contiguous, and `rate` must be a single number. `torch.optim.Adam` with
    `fused=True` calls the same kernel, but its overhead exceeds the time of the kernel.
    """
    if not HAS_FUSED_ADAM:
        foreach_adam_(adam, grads, rate, count)
        return
    torch._fused_adam_(
        adam.parameters,
        [grad.contiguous() for grad in grads],
        adam.means,
        adam.squares,
        [],
        [count] * len(adam.parameters),
        lr=rate,
        beta1=adam.decays[0],
        beta2=adam.decays[1],
        weight_decay=0.0,
        eps=adam.epsilon,
        amsgrad=False,
        maximize=False,
    )


def foreach_adam_(adam: Moments, grads: Sequence[Tensor], rate: Tensor, count: Tensor) -> None:
    """Do a step of Adam on lists of tensors, which need not be contiguous.

    `rate` is a single number, or contains one rate per replica, `[R]`. The compiler makes a single
    kernel of this function. From a loop over parameters, it would make one kernel per parameter.
    """
    if not HAS_FOREACH:
        plain_adam_(adam, grads, rate, count)
        return
    grads, (first, second) = list(grads), adam.decays
    torch._foreach_lerp_(adam.means, grads, 1 - first)
    torch._foreach_mul_(adam.squares, second)
    torch._foreach_addcmul_(adam.squares, grads, grads, 1 - second)
    scale = torch.rsqrt(1 - second**count)
    width = torch._foreach_mul(torch._foreach_sqrt(adam.squares), [scale] * len(grads))
    torch._foreach_add_(width, adam.epsilon)
    rates = per_parameter(rate / (1 - first**count), adam.parameters)
    steps = torch._foreach_mul(torch._foreach_div(adam.means, width), rates)
    torch._foreach_sub_(adam.parameters, steps)


def plain_adam_(adam: Moments, grads: Sequence[Tensor], rate: Tensor, count: Tensor) -> None:
    """Do a step of Adam that uses only public operations of PyTorch.

    `rate` is a single number, or contains one rate per replica, `[R]`.
    """
    first, second = adam.decays
    rates = per_parameter(rate / (1 - first**count), adam.parameters)
    for parameter, mean, square, grad, own in zip(
        adam.parameters, adam.means, adam.squares, grads, rates, strict=True
    ):
        mean.lerp_(grad, 1 - first)
        square.mul_(second).addcmul_(grad, grad, value=1 - second)
        parameter.sub_(own * mean / ((square / (1 - second**count)).sqrt() + adam.epsilon))


def per_parameter(rate: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return one tensor of learning rates per parameter. It broadcasts with the parameter.

    `rate` is a single number, or contains one rate per replica, `[R]`. The replica axis is aligned
    with the leading axis of each parameter.
    """
    if rate.ndim == 0:
        return [rate] * len(parameters)
    return [rate.to(p.dtype).reshape(-1, *[1] * (p.ndim - 1)) for p in parameters]


def lerp_all_(targets: Sequence[Tensor], sources: Sequence[Tensor], weight: float) -> None:
    """Replace each target by `target + weight * (source - target)`, in place."""
    if HAS_FOREACH:
        torch._foreach_lerp_(list(targets), list(sources), weight)
        return
    for target, source in zip(targets, sources, strict=True):
        target.lerp_(source, weight)


class Adam(Optimizer):
    """The optimizer Adam. A step is a single kernel on every device."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        means, squares = ([torch.zeros_like(p) for p in self.parameters] for _ in range(2))
        decays = (FIRST_DECAY, SECOND_DECAY)
        self._moments = Moments(self.parameters, means, squares, decays, EPSILON)

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor], rate: Tensor, count: Tensor) -> None:
        if not self.parameters:
            return
        # The fused kernel takes one rate, and ignores strides, so tensors must be contiguous.
        fuses = rate.ndim == 0 and not torch.compiler.is_compiling()
        fuses = fuses and all(p.is_contiguous() for p in self.parameters)
        (fused_adam_ if fuses else foreach_adam_)(self._moments, grads, rate, count)

    def state(self) -> dict[str, list[Tensor]]:
        return {"mean": self._moments.means, "square": self._moments.squares}

    def second_moments(self) -> list[Tensor]:
        return self._moments.squares


def build_optimizer(config: TrainConfig, parameters: Sequence[Tensor]) -> Optimizer:
    """Return a new optimizer for the given parameters.

    To support other optimizers, extend this function.
    """
    return Adam(parameters)


@torch.no_grad()
def descend(parameters: Sequence[Tensor], grads: Sequence[Tensor], rate: Tensor) -> None:
    """Do a step of plain gradient descent, and update the parameters in place.

    `rate` is a single number, or contains one rate per replica, `[R]`.
    """
    rates = per_parameter(rate, parameters)
    for parameter, grad, own in zip(parameters, grads, rates, strict=True):
        parameter.addcmul_(grad, own, value=-1)


class LearningRates:
    """The learning rates of Adam and of the prior, for each replica and step.

    A rate is a tensor `[R]`. If all replicas have the same rates, it is a tensor without axes,
    which is faster.
    """

    def __init__(self, configs: Sequence[TrainConfig], device: str | torch.device) -> None:
        self._device = torch.device(device)
        self._configs = [config for config in configs for _ in range(config.replicas)]
        of_runs = {tuple(getattr(config, name) for name in RATE_FIELDS) for config in configs}
        self._is_common = len(of_runs) == 1
        self._changes = any(c.schedule != "constant" or c.warmup_steps for c in configs)
        self._rate = self._column(lambda c: c.learning_rate)
        self._prior_rate = self._column(lambda c: c.prior_learning_rate)
        self._steps = self._column(lambda c: c.steps)
        self._warmup = self._column(lambda c: c.warmup_steps)
        self._cosine = self._column(lambda c: c.schedule == "cosine")
        self._decay_every = self._column(lambda c: max(1, c.decay_every))
        self._decay = self._column(lambda c: c.decay_factor if c.schedule == "step" else 1)

    def after(self, steps_done: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rate of Adam and the rate of the prior for the step after `steps_done`."""
        if not self._changes:
            return self._rate, self._prior_rate
        # The prior follows the same schedule. Otherwise, it would still move at the end.
        now = self._factor(steps_done)
        return self._rate * now, self._prior_rate * now

    def _factor(self, steps_done: Tensor) -> Tensor:
        """Return the factor by which the schedule multiplies both rates at the next step.

        It is the product of the factors for warmup, cosine decay and stepwise decay.
        """
        rise = ((steps_done + 1) / self._warmup.clamp(min=1)).clamp(max=1)
        progress = ((steps_done - self._warmup) / (self._steps - self._warmup)).clamp(0, 1)
        fall = 1 - self._cosine * (1 - torch.cos(math.pi * progress)) / 2
        return rise * fall * self._decay ** torch.floor(steps_done / self._decay_every)

    def _column(self, value: Callable[[TrainConfig], float]) -> Tensor:
        """Return a tensor with `value(config)` for each replica, `[R]`.

        If all runs have the same rates, the tensor has no axes.
        """
        found = [value(config) for config in self._configs]
        # The fused Adam takes the rate in double precision on a CPU, and in single on a GPU.
        dtype = torch.float64 if self._device.type == "cpu" else torch.float32
        values = found[0] if self._is_common else found
        return torch.tensor(values, dtype=dtype, device=self._device)
