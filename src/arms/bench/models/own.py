"""What makes a user's own network a model of the bench: an adapter to the replica axis, replicas, name, fingerprint."""

import copy
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from arms.bench.models.seeding import seeded_generator
from arms.bench.models.vae import BinaryVAE

__all__ = ["PlainNetwork", "ReplicaModules", "keep_replicas", "name_of", "replicated", "structure_of"]


AnyModule = TypeVar("AnyModule", bound=nn.Module)


class PlainNetwork(nn.Module):
    """An ordinary network, which maps `[N, *shape]` to `[N, ...]`, as an encoder or decoder of `BinaryVAE`.

    It hides the axes in front: samples, replicas and images become one batch, and the outputs of each image one row.

    Args:
        network: Any module; it sees one batch axis.
        shape: What a row of features is shown to it as, such as (1, 28, 28) for a convolution; a row unless given.

    >>> encoder = PlainNetwork(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 20)), (1, 8, 8))
    >>> encoder(torch.zeros(3, 5, 64)).shape
    torch.Size([3, 5, 20])
    """

    def __init__(self, network: nn.Module, shape: Sequence[int] | None = None) -> None:
        super().__init__()
        self.network, self.shape = network, tuple(shape) if shape is not None else None

    def forward(self, x: Tensor) -> Tensor:
        """Return `[*lead, outputs]` of x `[*lead, features]`."""
        rows = x.reshape(-1, x.shape[-1])
        if self.shape is not None:
            rows = rows.unflatten(-1, self.shape)
        outputs: Tensor = self.network(rows)
        return outputs.reshape(*x.shape[:-1], -1)

    def extra_repr(self) -> str:
        """Return the shape."""
        return f"shape={self.shape}" if self.shape else ""


class ReplicaModules(nn.Module):
    """Modules of one structure side by side: `[*lead, R, B, features]` to `[*lead, R, B, outputs]`.

    Every parameter and buffer has a leading replica axis, under the name that it has in each of the modules.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.replicas = len(modules)
        self.module = _stacked(modules)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the rows of each replica its own module."""
        tensors = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        outputs = [
            torch.func.functional_call(self.module, {name: t[replica] for name, t in tensors.items()}, (rows,))
            for replica, rows in enumerate(x.unbind(-3))
        ]
        return torch.stack(outputs, -3)


def replicated(make: Callable[[], object], replicas: int, seed: int) -> BinaryVAE:
    """Return a model of R replicas from a function that makes one.

    Whatever it draws from PyTorch's global generator on the CPU depends on the seed and the replica alone, and leaves
    that generator as it was.

    Args:
        make: Returns a `BinaryVAE` of one replica, with fresh weights.
        replicas: How many.
        seed: Seed of the weights.
    """
    models = []
    for replica in range(replicas):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeded_generator(seed, "init", replica).initial_seed())
            models.append(_one_replica(make()))
    return models[0] if replicas == 1 else _side_by_side(models)


def keep_replicas(model: BinaryVAE, kept: Sequence[int]) -> BinaryVAE:
    """Return a copy of a model with some of its replicas; with several, all its tensors have a replica axis."""
    part = _reshaped(copy.deepcopy(model), lambda tensor: tensor[list(kept)])
    part.replicas = len(kept)
    return part


def structure_of(model: BinaryVAE) -> str:
    """Return a fingerprint of what a model is made of, whatever its weights and however many replicas it has.

    Its modules with their settings, and the names, types and shapes of its tensors, are in it. What a `forward` does
    with them is not: models that differ in that alone need different names.
    """
    if isinstance(model.encoder, ReplicaModules) or isinstance(model.decoder, ReplicaModules):
        model = _first_of(model)
    parts = [re.sub(r" at 0x[0-9a-f]+", "", repr(model))]
    parts += [_described(part) for part in (model.encoder, model.decoder) if not isinstance(part, nn.Module)]
    for name, tensor in model.state_dict().items():
        shape = list(tensor.shape)
        if shape[:1] == [model.replicas]:
            shape = shape[1:]
        parts.append(f"{name} {tensor.dtype} {shape}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def name_of(model: BinaryVAE, made_by: object = None) -> str:
    """Return what a model is called: its name, else that of the function that made it, else that of its class."""
    function = getattr(made_by, "__name__", "")
    own_class = type(model).__name__ if type(model) is not BinaryVAE else "own"
    return model.name or (function if function.isidentifier() else "") or own_class


def _one_replica(model: object) -> BinaryVAE:
    if not isinstance(model, BinaryVAE):
        raise ValueError(
            f"a function that makes a model must return a BinaryVAE, got {type(model).__name__}: "
            "wrap encoder and decoder in arms.bench.BinaryVAE"
        )
    if model.replicas != 1:
        raise ValueError(
            f"a function that makes a model must return one replica, got {model.replicas}: it is called once for each"
        )
    return model


def _side_by_side(models: Sequence[BinaryVAE]) -> BinaryVAE:
    """Return models of one replica each as one."""
    wide = copy.deepcopy(models[0])
    known = ("encoder.", "decoder.", "prior", "pixel_mean")
    if others := [name for name in wide.state_dict() if not name.startswith(known)]:
        raise ValueError(
            f"replicas of a model are put side by side by its encoder, decoder and prior, and it has {others[0]} "
            "besides: train it with one replica, or move that into the encoder or the decoder"
        )
    for part in ("encoder", "decoder"):
        own = [getattr(model, part) for model in models]
        if isinstance(own[0], nn.Module):
            setattr(wide, part, ReplicaModules(own))
    wide.prior = nn.Parameter(torch.cat([model.prior.detach() for model in models]))
    wide.pixel_mean = torch.cat([model.pixel_mean for model in models])
    wide.replicas = len(models)
    return wide


def _first_of(model: BinaryVAE) -> BinaryVAE:
    """Return the first of the models that were put side by side."""
    one = copy.deepcopy(model)
    for part in ("encoder", "decoder"):
        if isinstance(own := getattr(one, part), ReplicaModules):
            setattr(one, part, _reshaped(own.module, lambda tensor: tensor[0]))
    one.prior, one.pixel_mean, one.replicas = nn.Parameter(one.prior[:1].detach()), one.pixel_mean[:1], 1
    return one


def _stacked(modules: Sequence[nn.Module]) -> nn.Module:
    """Return a copy of the first module with the tensors of all of them, stacked."""
    states = [module.state_dict() for module in modules]
    if any(_shapes(state) != _shapes(states[0]) for state in states):
        raise ValueError("the models made for the replicas must have the same tensors, got others: make them alike")
    if len(list(modules[0].named_parameters(remove_duplicate=False))) > len(list(modules[0].parameters())):
        raise ValueError("tied weights cannot be given a replica axis: train with one replica, several times")
    parts = [{**dict(module.named_parameters()), **dict(module.named_buffers())} for module in modules]
    wide = copy.deepcopy(modules[0])
    for name in parts[0]:
        _put(wide, name, torch.stack([own[name].detach() for own in parts]))
    return wide


def _reshaped(module: AnyModule, change: Callable[[Tensor], Tensor]) -> AnyModule:
    """Change every parameter and buffer of a module."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        _put(module, name, change(tensor.detach()))
    return module


def _put(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Put a tensor of another shape in the place of a parameter or a buffer."""
    path, _, own = name.rpartition(".")
    owner = module.get_submodule(path)
    if own in owner._parameters:
        before = owner._parameters[own]
        assert before is not None
        owner.register_parameter(own, nn.Parameter(tensor, requires_grad=before.requires_grad))
    else:
        owner._buffers[own] = tensor


def _shapes(state: dict[str, Tensor]) -> dict[str, object]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}


def _described(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))
