"""Layers whose parameters have a leading replica axis."""

import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec

import torch
from torch import Generator, Tensor, nn

__all__ = ["HAS_TRITON", "ReplicaLinear"]

HAS_TRITON = find_spec("triton") is not None


class ReplicaLinear(nn.Module):
    """R affine maps at once: `[*lead, R, B, inputs]` to `[*lead, R, B, outputs]`."""

    rough_gradients = False
    """Whether its gradient may use bfloat16 products on a GPU; it can then be differentiated only once."""

    def __init__(self, replicas: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(replicas, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(replicas, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the rows of each replica, over all leading axes, its own matrix."""
        first = x.movedim(-3, 0)  # [R, *lead, B, inputs]: one matrix product per replica
        rows = first.flatten(1, -2)
        # On a GPU a product that starts from a bias costs one more pass; an addition is fused with what follows.
        if x.is_cuda:
            out = self._product()(rows, self.weight) + self.bias
        else:
            out = torch.baddbmm(self.bias, rows, self.weight)
        return out.reshape(first.shape[:-1] + out.shape[-1:]).movedim(0, -3)

    def _product(self) -> Callable[[Tensor, Tensor], Tensor]:
        if not (self.rough_gradients and HAS_TRITON):
            return torch.bmm
        from arms.bench.models import kernels

        return kernels.rough_product

    def initialise(self, generators: Sequence[Generator]) -> None:
        """Draw Glorot-uniform weights, those of replica r from generator r, and set biases to zero."""
        _, inputs, outputs = self.weight.shape
        limit = math.sqrt(6 / (inputs + outputs))
        with torch.no_grad():
            for weight, generator in zip(self.weight, generators, strict=True):
                weight.copy_(limit * (2 * torch.rand(weight.shape, generator=generator) - 1))
            self.bias.zero_()
