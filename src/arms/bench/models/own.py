"""What makes a user's own network a model of the bench: an adapter to the replica axis, replicas, name, fingerprint."""

import copy
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from arms.arguments import described
from arms.bench.models.layers import buffer_places, call_with, parameter_places
from arms.bench.models.seeding import seeded_generator
from arms.bench.models.vae import DiscreteVAE

AnyModule = TypeVar("AnyModule", bound=nn.Module)

WIDE = ("prior", "pixel_mean")
"""Tensors of a `DiscreteVAE` that have a replica axis even with one replica."""


class PlainNetwork(nn.Module):
    """An ordinary network, which maps `[N, *shape]` to `[N, ...]`, as an encoder or decoder of `DiscreteVAE`.

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

    Args:
        module: One of them. All its parameters and buffers have a leading replica axis.
        replicas: How many there are.
    """

    def __init__(self, module: nn.Module, replicas: int) -> None:
        super().__init__()
        self.replicas = replicas
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the rows of each replica its own module.

        Rows and buffers are copies. The module may change them in place, and what it computed from
        them earlier can still be differentiated.
        """
        outputs = []
        for replica in range(x.shape[-3]):
            before = self._tensors_of(replica)
            after = dict(before)
            outputs.append(call_with(self.module, after, (x.select(-3, replica).clone(),)))
            self._keep_buffers(replica, before, after)
        return torch.stack(outputs, -3)

    def _tensors_of(self, replica: int) -> dict[str, Tensor]:
        """Return the parameters of one replica, and copies of its buffers; ties stay ties."""
        own = {place: tensor[replica] for place, tensor in parameter_places(self.module).items()}
        copies: dict[int, Tensor] = {}
        for place, buffer in buffer_places(self.module).items():
            if isinstance(buffer, nn.Parameter):  # which is a parameter in another place
                own[place] = buffer[replica]
            else:
                own[place] = copies.setdefault(id(buffer), buffer[replica].clone())
        return own

    def _keep_buffers(
        self, replica: int, before: Mapping[str, Tensor], after: Mapping[str, Tensor]
    ) -> None:
        """Write back what a call has made of the buffers of one replica.

        PyTorch does not say whether they were changed: batch normalization does not count it.
        """
        buffers = buffer_places(self.module)
        assigned = [place for place in buffers if after[place] is not before[place]]
        copied = [
            place
            for place, held in buffers.items()
            if not isinstance(held, nn.Parameter) and held.layout == torch.strided
        ]
        for place in (*copied, *assigned):  # of a tie, the place that was assigned anew counts
            buffers[place][replica] = after[place].detach()


def replicated(make: Callable[[], object], replicas: int, seed: int) -> DiscreteVAE:
    """Return a model of R replicas from a function that makes one.

    Whatever it draws from PyTorch's global generator on the CPU depends on the seed and the replica alone, and leaves
    that generator as it was.

    Args:
        make: Returns a `DiscreteVAE` of one replica, with fresh weights.
        replicas: How many.
        seed: Seed of the weights.
    """
    models = []
    for replica in range(replicas):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeded_generator(seed, "init", replica).initial_seed())
            models.append(_one_replica(make()))
            _initialise_lazy_layers(models[-1])
    if replicas == 1:
        return models[0]
    _check_alike(models)
    try:
        return _side_by_side(models)
    except Exception as error:  # a module that cannot be copied, for example a scripted one
        raise ValueError(
            f"the replicas of this model cannot be put side by side ({described(error)}): train it "
            "with one replica, several times"
        ) from error


def keep_replicas(model: DiscreteVAE, kept: Sequence[int]) -> DiscreteVAE:
    """Return a copy of a model with some of its replicas; with several, all its tensors have a replica axis."""
    part = _reshaped(copy.deepcopy(model), lambda _, tensor: tensor[list(kept)])
    part.replicas = len(kept)
    return part


def structure_of(model: DiscreteVAE) -> str:
    """Return a fingerprint of what a model is made of, whatever its weights and however many replicas it has.

    Its modules with their settings, and the names, types and shapes of its tensors, are in it. What a `forward` does
    with them is not: models that differ in that alone need different names.
    """
    if isinstance(model.encoder, ReplicaModules) or isinstance(model.decoder, ReplicaModules):
        model = _first_of(model)
    parts = [re.sub(r" at 0x[0-9a-f]+", "", repr(model))]
    parts += [
        _described(part)
        for part in (model.encoder, model.decoder)
        if not isinstance(part, nn.Module)
    ]
    for name, tensor in model.state_dict().items():
        shape = list(tensor.shape)
        if shape[:1] == [model.replicas]:
            shape = shape[1:]
        parts.append(f"{name} {tensor.dtype} {shape}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def name_of(model: DiscreteVAE, made_by: object = None) -> str:
    """Return what a model is called: its name, else that of the function that made it, else that of its class."""
    function = getattr(made_by, "__name__", "")
    own_class = type(model).__name__ if type(model) is not DiscreteVAE else "own"
    return model.name or (function if function.isidentifier() else "") or own_class


def _one_replica(model: object) -> DiscreteVAE:
    if not isinstance(model, DiscreteVAE):
        raise ValueError(
            f"a function that makes a model must return a DiscreteVAE, got {type(model).__name__}: "
            "wrap encoder and decoder in arms.bench.DiscreteVAE"
        )
    if model.replicas != 1:
        raise ValueError(
            f"a function that makes a model must return one replica, got {model.replicas}: it is called once for each"
        )
    return model


def check_savable(model: nn.Module) -> None:
    """Raise if a checkpoint cannot hold all of a model's state."""
    for name, value in model.state_dict().items():
        if is_lazy(value):
            raise ValueError(
                f"every lazy layer of a model must be used, got {name} without a size: remove it"
            )
        if not isinstance(value, Tensor) or name.endswith("_extra_state"):
            raise ValueError(
                f"the state of a model must be parameters and buffers, got {name} from "
                "get_extra_state: keep it in a buffer"
            )
        if value.layout != torch.strided or value.is_nested:
            raise ValueError(
                f"parameters and buffers of a model must be dense, got {name} of layout "
                f"{value.layout}: call .to_dense() on it, or register it with persistent=False"
            )


def check_finite(model: nn.Module) -> None:
    """Raise if a weight of a model is infinite or not a number."""
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            got = "NaN" if parameter.isnan().any() else "infinite numbers"
            raise ValueError(
                f"the weights of a model must be finite before the first step, got {got} in "
                f"{name}: check how it is initialised"
            )


def check_registered(model: nn.Module, outputs: Iterable[Tensor]) -> None:
    """Raise if outputs of a model depend on a tensor that requires a gradient but is no parameter.

    Such a tensor would never be trained. Examples are a layer in a Python list, and a layer that
    only a function refers to.
    """
    known = {id(parameter) for parameter in model.parameters()}
    nodes = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor) and id(leaf) not in known:
            raise ValueError(
                "everything that a model learns must be a parameter of its modules, got a tensor of "
                f"shape {list(leaf.shape)} that requires a gradient and is not: make the encoder "
                "and the decoder modules that hold it, with nn.ModuleList for lists, or freeze it "
                "by requires_grad_(False)"
            )
        following = {after for after, _ in node.next_functions if after is not None} - seen
        seen |= following
        nodes += following


def _initialise_lazy_layers(model: DiscreteVAE) -> None:
    """Give lazy layers, which learn their sizes from the first input, their weights."""
    if not any(map(is_lazy, chain(model.parameters(), model.buffers()))):
        return
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            model.encode(torch.zeros_like(model.pixel_mean))
            model.decode(torch.zeros(1, *model.prior.shape))
    except Exception as error:
        raise ValueError(
            f"the lazy layers of the model cannot be initialised: {described(error)}"
        ) from error
    for module, mode in modes.items():
        module.training = mode
    check_savable(model)  # in particular, no layer is left without a size


def _check_alike(models: Sequence[DiscreteVAE]) -> None:
    """Raise if models made for different replicas cannot be put side by side."""
    _check_replaceable_tensors(models[0])
    tensors = [dict(_shared_tensors(model)) for model in models]
    names = [name for shared in tensors[0] for name in shared]
    inside = ("encoder.", "decoder.")
    if others := [name for name in names if name not in WIDE and not name.startswith(inside)]:
        raise ValueError(
            f"replicas of a model are put side by side by its encoder, decoder and prior, and it has {others[0]} "
            "besides: train it with one replica, or move that into the encoder or the decoder"
        )
    if any(_shapes(own) != _shapes(tensors[0]) for own in tensors):
        raise ValueError(
            "the models made for the replicas must have the same tensors, got others: make them alike"
        )
    _check_ties(tensors[0])
    for first, *rest in zip(*(model.modules() for model in models), strict=False):
        for name, value in vars(first).items():
            if any(_differ(value, vars(other).get(name)) for other in rest):
                raise ValueError(
                    "tensors that differ between replicas must be parameters or buffers, got the "
                    f"attribute {name} of {type(first).__name__}: register it as a buffer"
                )


def _check_replaceable_tensors(model: DiscreteVAE) -> None:
    """Raise if the modules of a model cannot be called with the tensors of another replica."""
    for part in ("encoder", "decoder"):
        if isinstance(getattr(model, part), torch.jit.ScriptModule):
            raise ValueError(
                f"the {part} of several replicas must be an ordinary module, got a scripted or traced "
                "one: train with one replica, or wrap it in nn.Sequential"
            )
    for module in model.modules():
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm | WeightNorm):
                norm = "spectral_norm" if isinstance(hook, SpectralNorm) else "weight_norm"
                raise ValueError(
                    f"the weights of several replicas must be parameters, got torch.nn.utils.{norm}, "
                    f"which hides them: use torch.nn.utils.parametrizations.{norm} or one replica"
                )


def _check_ties(tensors: Mapping[tuple[str, ...], Tensor]) -> None:
    """Raise if a model shares weights in a way that is lost when it gets a replica axis."""
    for names in tensors:
        if len(names) > 1 and set(WIDE) & set(names):
            raise ValueError(
                f"the prior of a model must not be shared, got {' and '.join(names)}: train it with "
                "one replica, several times"
            )
    memory: dict[int, str] = {}
    for (name, *_), tensor in tensors.items():
        start = tensor.data_ptr() if isinstance(tensor, nn.Parameter) else 0
        if start and (other := memory.setdefault(start, name)) != name:
            raise ValueError(
                f"tied weights must be one and the same parameter, got {other} and {name} that "
                "share only their memory: assign the parameter itself, without .data"
            )


def _differ(one: object, other: object) -> bool:
    """Whether an attribute of a module is a constant tensor, and another one in another replica."""
    if not isinstance(one, Tensor) or one.requires_grad or one.layout != torch.strided:
        return False
    if not isinstance(other, Tensor) or (one.shape, one.dtype) != (other.shape, other.dtype):
        return True
    return not torch.equal(one, other)


def _side_by_side(models: Sequence[DiscreteVAE]) -> DiscreteVAE:
    """Return models of one replica each as one model; tensors that they share stay shared."""
    wide = copy.deepcopy(models[0])
    every = [dict(_shared_tensors(model)) for model in models]
    for names in every[0]:
        join = torch.cat if names[0] in WIDE else torch.stack
        _put(wide, names, join([tensors[names].detach() for tensors in every]))
    for part in ("encoder", "decoder"):
        if isinstance(module := getattr(wide, part), nn.Module):
            setattr(wide, part, ReplicaModules(module, len(models)))
    wide.replicas = len(models)
    return wide


def _first_of(model: DiscreteVAE) -> DiscreteVAE:
    """Return the first of the models that were put side by side."""
    one = copy.deepcopy(model)
    for part in ("encoder", "decoder"):
        if isinstance(own := getattr(one, part), ReplicaModules):
            setattr(one, part, own.module)
    one.replicas = 1
    return _reshaped(one, lambda name, tensor: tensor[:1] if name in WIDE else tensor[0])


def _reshaped(module: AnyModule, change: Callable[[str, Tensor], Tensor]) -> AnyModule:
    """Change every parameter and buffer of a module, given its name."""
    for names, tensor in _shared_tensors(module):
        _put(module, names, change(names[0], tensor.detach()))
    return module


def _shared_tensors(module: nn.Module) -> list[tuple[tuple[str, ...], Tensor]]:
    """Return every parameter and buffer of a module once, with the names of all its places."""
    found: dict[int, tuple[list[str], Tensor]] = {}
    for name, tensor in chain(parameter_places(module).items(), buffer_places(module).items()):
        found.setdefault(id(tensor), ([], tensor))[0].append(name)
    return [(tuple(names), tensor) for names, tensor in found.values()]


def _put(module: nn.Module, names: Sequence[str], tensor: Tensor) -> None:
    """Put a tensor of another shape in the places of a parameter or a buffer."""
    parameter = None
    for name in names:
        path, _, own = name.rpartition(".")
        owner = module.get_submodule(path)
        if own in owner._parameters:
            before = owner._parameters[own]
            assert before is not None
            if parameter is None:
                parameter = nn.Parameter(tensor, before.requires_grad)
            owner.register_parameter(own, parameter)
        else:
            owner._buffers[own] = tensor if parameter is None else parameter


def _shapes(tensors: Mapping[tuple[str, ...], Tensor]) -> dict[tuple[str, ...], object]:
    return {names: (tensor.shape, tensor.dtype) for names, tensor in tensors.items()}


def _described(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))
