"""Optimisers with their state in plain sight; another one is a class here and a line in `build_optimizer`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from arms.bench.config import TrainConfig
from arms.bench.training.torch_private import Moments, foreach_adam_, fused_adam_, per_parameter

FIRST_DECAY = 0.9
SECOND_DECAY = 0.999
EPSILON = 1e-7
"""TensorFlow's default, and so the paper's."""


class Optimizer(ABC):
    """Moves a list of tensors in place, against their gradients.

    The rate and the number of the step come in as tensors on the parameters' device, so that a CUDA graph that holds
    a step can be replayed while both change.
    """

    parameters: list[Tensor]

    @abstractmethod
    def step(self, grads: Sequence[Tensor], rate: Tensor, count: Tensor) -> None:
        """Move every parameter.

        Args:
            grads: one per parameter.
            rate: one for all `[]`, or one per replica `[R]` where every parameter has a leading replica axis.
            count: the steps done `[]`, this one included.
        """

    @abstractmethod
    def state(self) -> dict[str, list[Tensor]]:
        """Return what it remembers, by kind: one tensor per parameter, of the parameter's shape."""

    @abstractmethod
    def second_moments(self) -> list[Tensor]:
        """Return the moving average of each squared gradient, with `SECOND_DECAY`, not bias-corrected."""


class Adam(Optimizer):
    """Adam, one kernel on every device: written for it, or made by the compiler."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self.means = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros_like(p) for p in self.parameters]
        self._moments = Moments(
            self.parameters, self.means, self.squares, (FIRST_DECAY, SECOND_DECAY), EPSILON
        )

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor], rate: Tensor, count: Tensor) -> None:
        if not self.parameters:
            return
        # The fused kernel takes one rate, and walks memory as it lies: it wants every tensor in one piece.
        fuses = (
            rate.ndim == 0
            and not torch.compiler.is_compiling()
            and all(p.is_contiguous() for p in self.parameters)
        )
        (fused_adam_ if fuses else foreach_adam_)(self._moments, grads, rate, count)

    def state(self) -> dict[str, list[Tensor]]:
        return {"mean": self.means, "square": self.squares}

    def second_moments(self) -> list[Tensor]:
        return self.squares


def build_optimizer(config: TrainConfig, parameters: Sequence[Tensor]) -> Optimizer:
    """Return the optimiser of a run over some of its parameters; a second one would be chosen here, by a new field."""
    return Adam(parameters)


@torch.no_grad()
def descend(parameters: Sequence[Tensor], grads: Sequence[Tensor], rate: Tensor) -> None:
    """Move parameters by plain gradient descent, with one rate for all, or `[R]`."""
    for parameter, grad, own in zip(
        parameters, grads, per_parameter(rate, parameters), strict=True
    ):
        parameter.addcmul_(grad, own, value=-1)
