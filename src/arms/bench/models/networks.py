"""Networks with a leading replica axis by name, and the generators of their weights."""

import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Generator, Tensor, nn

from arms.arguments import as_count

HAS_TRITON = find_spec("triton") is not None
Builder: TypeAlias = Callable[[int, int, int], nn.Module]
"""Makes a network with all weights zero, given the numbers of replicas, inputs and outputs."""


class ReplicaLinear(nn.Module):
    """R affine maps at once: `[*lead, R, B, inputs]` to `[*lead, R, B, outputs]`."""

    bfloat16_backward = False
    """Whether its gradient may use bfloat16 products on a GPU; it can then be taken only once."""

    def __init__(self, replicas: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(replicas, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(replicas, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the rows of each replica, over all leading axes, its own matrix."""
        first = x.movedim(-3, 0)  # [R, *lead, B, inputs]: one matrix product per replica
        rows = first.flatten(1, -2)
        # A product that starts from a bias costs a GPU one more pass; an addition is fused.
        on_gpu, bias = x.is_cuda, self.bias
        out = self._product(rows) + bias if on_gpu else torch.baddbmm(bias, rows, self.weight)
        return out.reshape(first.shape[:-1] + out.shape[-1:]).movedim(0, -3)

    def _product(self, rows: Tensor) -> Tensor:
        if not (self.bfloat16_backward and HAS_TRITON):
            return torch.bmm(rows, self.weight)
        from arms.bench.models import kernels

        product: Tensor = kernels.rough_product(rows, self.weight)
        return product

    def initialise(self, generators: Sequence[Generator]) -> None:
        """Draw Glorot-uniform weights of replica r from generator r, and set biases to zero."""
        _, inputs, outputs = self.weight.shape
        limit = math.sqrt(6 / (inputs + outputs))
        with torch.no_grad():
            for weight, generator in zip(self.weight, generators, strict=True):
                weight.copy_(limit * (2 * torch.rand(weight.shape, generator=generator) - 1))
            self.bias.zero_()


def tensor_places(module: nn.Module, kind: str) -> dict[str, Tensor]:
    """Return the tensor in every place of a module that holds one, by the name of the place.

    A layer that is used twice has one place, and a parameter that two layers share has two. The
    kind is "_parameters" or "_buffers".
    """
    return {
        f"{path}.{name}" if path else name: tensor
        for path, owner in module.named_modules()
        for name, tensor in getattr(owner, kind).items()
        if tensor is not None
    }


def call_with(module: nn.Module, tensors: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
    """Call a module with other tensors in its places.

    PyTorch's own search for ties would leave them in a layer that is used twice, after the call.
    """
    return torch.func.functional_call(module, tensors, args, kwargs, tie_weights=False)


def perceptron(*hidden: int) -> Builder:
    """Return a builder of perceptrons with hidden layers of these widths."""

    def build(replicas: int, inputs: int, outputs: int) -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in pairwise((inputs, *hidden, outputs)):
            layers += [ReplicaLinear(replicas, before, after), nn.LeakyReLU(0.3)]
        return nn.Sequential(*layers[:-1])

    return build


NETWORKS: dict[str, Builder] = {"linear": perceptron(), "nonlinear": perceptron(200, 200)}
"""Networks by name. Each serves as the encoder and the decoder of every layer."""


def seeded_generator(seed: int, stream: str, index: int = 0, device: str = "cpu") -> Generator:
    """Return the generator for one use of a run's seed; no two uses share numbers.

    >>> one, other = seeded_generator(0, "init"), seeded_generator(0, "train")
    >>> torch.rand(1, generator=one) == torch.rand(1, generator=other)
    tensor([False])
    """
    entropy = [as_count(seed, 0, "seed"), index, *stream.encode()]
    words = np.random.SeedSequence(entropy).generate_state(2)
    return torch.Generator(device).manual_seed(int(words[0]) << 31 ^ int(words[1]))
