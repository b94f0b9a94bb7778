"""Adam with its state in plain sight: one kernel on every device, written for it or made by the compiler."""

from collections.abc import Sequence

import torch
from torch import Tensor

FIRST_DECAY = 0.9
SECOND_DECAY = 0.999
EPSILON = 1e-7
"""TensorFlow's default, and so the paper's."""


class Adam:
    """Adam over a list of tensors, which it moves in place."""

    def __init__(self, parameters: Sequence[Tensor], learning_rate: float) -> None:
        self.parameters, self.learning_rate = list(parameters), learning_rate
        self.means = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros_like(p) for p in self.parameters]
        device = self.parameters[0].device if self.parameters else "cpu"
        self.count = torch.zeros((), device=device)

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor]) -> None:
        """Move every parameter against its gradient."""
        if not self.parameters:
            return
        self.count.add_(1)
        # The fused kernel walks memory as it lies, and so wants every tensor in one piece.
        if torch.compiler.is_compiling() or not all(p.is_contiguous() for p in self.parameters):
            self._foreach(list(grads))
            return
        torch._fused_adam_(
            self.parameters,
            [grad.contiguous() for grad in grads],
            self.means,
            self.squares,
            [],
            [self.count] * len(self.parameters),
            lr=self.learning_rate,
            beta1=FIRST_DECAY,
            beta2=SECOND_DECAY,
            weight_decay=0.0,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
        )

    def _foreach(self, grads: list[Tensor]) -> None:
        """The same in operations that the compiler makes one kernel of, for all tensors."""
        copies = len(grads)
        torch._foreach_lerp_(self.means, grads, 1 - FIRST_DECAY)
        torch._foreach_mul_(self.squares, SECOND_DECAY)
        torch._foreach_addcmul_(self.squares, grads, grads, 1 - SECOND_DECAY)
        rate = self.learning_rate / (1 - FIRST_DECAY**self.count)
        scale = torch.rsqrt(1 - SECOND_DECAY**self.count)
        width = torch._foreach_mul(torch._foreach_sqrt(self.squares), [scale] * copies)
        torch._foreach_add_(width, EPSILON)
        steps = torch._foreach_mul(torch._foreach_div(self.means, width), [rate] * copies)
        torch._foreach_sub_(self.parameters, steps)
