"""Layers whose every parameter has a leading replica axis."""

import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec

import torch
from torch import Generator, Tensor, nn

HAS_TRITON = find_spec("triton") is not None


class ReplicaLinear(nn.Module):
    """R affine maps at once: `[*lead, R, B, inputs]` to `[*lead, R, B, outputs]`."""

    rough_gradients = False
    """Whether, on a GPU, its gradient may be made of bfloat16 products; it can then be taken only once."""

    def __init__(self, replicas: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(replicas, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(replicas, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Multiply each replica's rows, whatever axes stand before, with its own matrix."""
        first = x.movedim(-3, 0)
        rows = first.flatten(1, -2)
        # A GPU's product that begins with a bias costs a pass more; an addition is fused with what follows.
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
        """Draw Glorot-uniform weights, replica r from its own generator, and zero biases."""
        _, inputs, outputs = self.weight.shape
        limit = math.sqrt(6 / (inputs + outputs))
        with torch.no_grad():
            for weight, generator in zip(self.weight, generators, strict=True):
                weight.copy_(limit * (2 * torch.rand(weight.shape, generator=generator) - 1))
            self.bias.zero_()
