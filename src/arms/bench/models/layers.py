"""Layers whose parameters have a leading replica axis, and calls of modules with other tensors."""

import math
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Generator, Tensor, nn

HAS_TRITON = find_spec("triton") is not None


class ReplicaLinear(nn.Module):
    """R affine maps at once: `[*lead, R, B, inputs]` to `[*lead, R, B, outputs]`."""

    bfloat16_backward = False
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
        if not (self.bfloat16_backward and HAS_TRITON):
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


def parameter_places(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameter in every place of a module that holds one, by the name of the place.

    A layer that is used twice has one place, and a parameter that two layers share has two.
    """
    return _tensors_in([(path, owner._parameters) for path, owner in module.named_modules()])


def buffer_places(module: nn.Module) -> dict[str, Tensor]:
    """Return the same for buffers."""
    return _tensors_in([(path, owner._buffers) for path, owner in module.named_modules()])


def call_with(
    module: nn.Module,
    tensors: dict[str, Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """Call a module with other tensors in its places.

    PyTorch's own search for ties would leave them in a layer that is used twice, after the call.
    """
    return torch.func.functional_call(module, tensors, args, kwargs, tie_weights=False)


def _tensors_in(places: Sequence[tuple[str, Mapping[str, Tensor | None]]]) -> dict[str, Tensor]:
    return {
        f"{path}.{name}" if path else name: tensor
        for path, held in places
        for name, tensor in held.items()
        if tensor is not None
    }
