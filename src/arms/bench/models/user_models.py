"""Support for a user's own models: replicas, names, fingerprints and checks."""

import copy
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from arms.arguments import described
from arms.bench.models.networks import call_with, seeded_generator, tensor_places
from arms.bench.models.vae import DiscreteVAE

Places: TypeAlias = tuple[str, ...]
"""The names of one tensor in a model. A tensor has several names if layers share it."""
WIDE = ("prior", "pixel_mean")
"""Tensors of a `DiscreteVAE` that always have a replica axis."""
MAKER = "the function that makes the model"
NETWORK = re.compile(r"(en|de)coder|deeper_(en|de)coders\.\d+")
"""A pattern for the names of encoders and decoders."""


class PlainNetwork(nn.Module):
    """Wraps an ordinary network, so that it can be the encoder or decoder of a `DiscreteVAE`.

    The network gets `[N, *shape]` and returns `[N, ...]`. The axes of samples, replicas and images
    become the single batch axis N. The outputs for each image are flattened.

    Args:
        network: Any module whose inputs have one batch axis.
        shape: Shape of a single input, such as (1, 28, 28) for a convolution. By default, an input
            is a flat row.

    >>> network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 20))
    >>> PlainNetwork(network, (1, 8, 8))(torch.zeros(3, 5, 64)).shape
    torch.Size([3, 5, 20])
    """

    def __init__(self, network: nn.Module, shape: Sequence[int] | None = None) -> None:
        super().__init__()
        self.network, self.shape = network, tuple(shape) if shape is not None else None

    def forward(self, x: Tensor) -> Tensor:
        """Map x `[*lead, features]` to `[*lead, outputs]`."""
        rows = x.reshape(-1, *([x.shape[-1]] if self.shape is None else self.shape))
        outputs: Tensor = self.network(rows)
        return outputs.reshape(*x.shape[:-1], -1)

    def extra_repr(self) -> str:
        """Return a text for the module's repr. It contains the shape of a single input."""
        return f"shape={self.shape}" if self.shape else ""


class ReplicaModules(nn.Module):
    """R modules of the same structure, combined into a single module.

    Its parameters and buffers have a leading replica axis. It maps `[*lead, R, B, features]` to
    `[*lead, R, B, outputs]`.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """Apply each replica's module to the rows of the replica.

        A module may modify its inputs and buffers in place, but earlier results must stay
        differentiable. Each module therefore gets copies of inputs and buffers. All buffers are
        written back afterwards, because PyTorch does not report which buffers were modified.
        """
        parameters = tensor_places(self.module, "_parameters")
        buffers = tensor_places(self.module, "_buffers")
        own = {place for place, held in buffers.items() if not isinstance(held, nn.Parameter)}
        dense = [place for place in buffers if buffers[place].layout == torch.strided]
        outputs = []
        for replica in range(x.shape[-3]):
            before = {place: held[replica] for place, held in (parameters | buffers).items()}
            copies = {id(buffers[place]): before[place].clone() for place in own}
            before |= {place: copies[id(buffers[place])] for place in own}  # keep tied buffers
            after = dict(before)
            outputs.append(call_with(self.module, after, x.select(-3, replica).clone()))
            assigned = [place for place in buffers if after[place] is not before[place]]
            # If buffers are tied, the last assigned place determines the value.
            for place in (*(place for place in dense if place in own), *assigned):
                buffers[place][replica] = after[place].detach()
        return torch.stack(outputs, -3)


def replicated(make: Callable[[], object], replicas: int, seed: int) -> DiscreteVAE:
    """Build a model with several replicas.

    The function `make` makes a model with one replica. It is called once for each replica. The
    function may draw random numbers from PyTorch's global CPU generator. They depend only on the
    seed and the number of the replica. The state of the generator is restored afterwards.
    """
    models = []
    for replica in range(replicas):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeded_generator(seed, "init", replica).initial_seed())
            if not isinstance(model := make(), DiscreteVAE):
                got = type(model).__name__
                raise ValueError(f"{MAKER} must return an arms.bench.DiscreteVAE, got {got}")
            if (count := model.replicas) != 1:
                raise ValueError(f"{MAKER} must return a model of one replica, got {count}")
            _initialize_lazy_layers(model)
            models.append(model)
    if replicas == 1:
        return models[0]
    every = [_shared_tensors(model) for model in models]
    _check_alike(models, every)

    def join(places: Places, _: Tensor) -> Tensor:
        own = [tensors[places].detach() for tensors in every]
        return torch.cat(own) if places[0] in WIDE else torch.stack(own)

    try:
        wide = _changed(models[0], replicas, join)
    except Exception as error:  # for example, a scripted module cannot be copied
        failed = f"replicas of this model cannot be stacked ({described(error)})"
        raise ValueError(f"{failed}: train one replica at a time") from error
    for name, module in _networks(wide):
        wide.set_submodule(name, ReplicaModules(module))
    return wide


def keep_replicas(model: DiscreteVAE, kept: Sequence[int]) -> DiscreteVAE:
    """Return a copy of a model that contains only the replicas with the numbers in `kept`."""
    return _changed(model, len(kept), lambda _, tensor: tensor[list(kept)])


def structure_of(model: DiscreteVAE) -> str:
    """Return a fingerprint of a model's structure.

    The fingerprint depends on the modules and their settings, and on the names, types and shapes of
    tensors. It does not depend on weights, on the number of replicas, or on the code of `forward`.
    Models that differ only in this code need different names.
    """
    wrapped = [name for name, part in _networks(model) if isinstance(part, ReplicaModules)]
    if wrapped:
        model = _changed(model, 1, lambda at, held: held[:1] if at[0] in WIDE else held[0])
        for name in wrapped:
            model.set_submodule(name, model.get_submodule(f"{name}.module"))
    parts = [re.sub(r" at 0x[0-9a-f]+", "", repr(model))]
    functions = [f for f in (model.encoder, model.decoder) if not isinstance(f, nn.Module)]
    parts += [str(getattr(f, "__qualname__", type(f).__name__)) for f in functions]
    for name, tensor in model.state_dict().items():
        wide = list(tensor.shape[:1]) == [model.replicas]
        parts.append(f"{name} {tensor.dtype} {list(tensor.shape[wide:])}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def name_of(model: DiscreteVAE, made_by: object = None) -> str:
    """Return a name for a model: its attribute `name` if this is not empty.

    Otherwise, the name of the function `made_by` or of the model's class is used.
    """
    function = getattr(made_by, "__name__", "")
    own_class = type(model).__name__ if type(model) is not DiscreteVAE else "own"
    return model.name or (function if function.isidentifier() else "") or own_class


def check_savable(model: nn.Module) -> None:
    """Raise if a part of the model's state cannot be stored in a checkpoint."""
    for name, value in model.state_dict().items():
        if is_lazy(value):
            what = f"the lazy parameter {name} was not initialized, because forward skips its layer"
            raise ValueError(f"{what}: remove the layer")
        if not isinstance(value, Tensor) or name.endswith("_extra_state"):
            wanted = "the state of a model must consist of parameters and buffers"
            got = f"{name} from get_extra_state"
            raise ValueError(f"{wanted}, got {got}: store it in a buffer")
        if value.layout != torch.strided or value.is_nested:
            got = f"parameters and buffers must be dense, got {name} of layout {value.layout}"
            raise ValueError(f"{got}: call .to_dense(), or register a buffer with persistent=False")


def check_finite(model: nn.Module) -> None:
    """Raise if a weight is NaN or infinite."""
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            got = f"{'NaN' if weight.isnan().any() else 'infinite numbers'} in {name}"
            expected = "weights must be finite before the first step"
            raise ValueError(f"{expected}, got {got}: check how this weight is initialized")


def check_registered(model: nn.Module, outputs: Iterable[Tensor]) -> None:
    """Raise if the outputs depend on a trainable tensor that is not a parameter of the model.

    Such a tensor requires a gradient, but would never be trained. Examples are the weights of
    layers in a Python list or in a closure.
    """
    known = {id(parameter) for parameter in model.parameters()}
    nodes = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor) and id(leaf) not in known:
            raise ValueError(
                "every tensor that requires a gradient must be a registered parameter of the "
                f"model, got an unregistered tensor of shape {list(leaf.shape)}: put modules into "
                "attributes or an nn.ModuleList, or call requires_grad_(False) on the tensor"
            )
        following = {after for after, _ in node.next_functions if after is not None} - seen
        seen |= following
        nodes += following


def _initialize_lazy_layers(model: DiscreteVAE) -> None:
    """Initialize lazy layers by calling the model once. They get their sizes from this call."""
    if not any(map(is_lazy, chain(model.parameters(), model.buffers()))):
        return
    modes = {module: module.training for module in model.modules()}
    model.eval()
    samples = [torch.zeros(1, 1, 1, *layer.event_shape) for layer in model.layers]
    try:
        with torch.no_grad():
            logits = [model.encode(torch.zeros_like(model.pixel_mean))]
            logits += [model.encode_layer(i + 1, b) for i, b in enumerate(samples[:-1])]
            model.terms(model.pixel_mean, logits, samples)
    except Exception as error:
        what = "lazy layers are initialized by calling the model once, but the call"
        raise ValueError(f"{what} raised {described(error)}") from error
    for module, mode in modes.items():
        module.training = mode
    check_savable(model)  # raises if a lazy layer was not initialized


def _check_alike(models: Sequence[DiscreteVAE], tensors: Sequence[Mapping[Places, Tensor]]) -> None:
    """Raise if the given models, one per replica, cannot be combined into one model.

    `tensors` contains the result of `_shared_tensors` for each model.
    """
    _check_replaceable_tensors(models[0])
    names = [name for places in tensors[0] for name in places if name not in WIDE]
    if others := [name for name in names if not re.match(rf"({NETWORK.pattern})\.", name)]:
        raise ValueError(
            "a model with several replicas may have tensors in its encoder, decoder and prior "
            f"only, got {others[0]}: move it into the encoder or the decoder, or train one replica"
        )
    shapes = [[(places, t.shape, t.dtype) for places, t in own.items()] for own in tensors]
    if any(own != shapes[0] for own in shapes):
        what = "the function that makes the model must return the same structure for every replica"
        raise ValueError(f"{what}, got tensors of different names, shapes or dtypes")
    _check_ties(tensors[0])
    for first, *rest in zip(*(model.modules() for model in models), strict=False):
        for name, value in vars(first).items():
            if any(_differ(value, vars(other).get(name)) for other in rest):
                got = f"the attribute {name} of {type(first).__name__}: register it as a buffer"
                raise ValueError(f"tensors that differ between replicas must be buffers, got {got}")


def _check_replaceable_tensors(model: DiscreteVAE) -> None:
    """Raise if a call of the model cannot use other weights instead of the model's own.

    With several replicas, each replica calls the same modules with different weights.
    """
    for name, module in _networks(model):
        if isinstance(module, torch.jit.ScriptModule):
            remedy = "train with one replica, or wrap it in nn.Sequential"
            what = f"with several replicas the {name} must not be scripted or traced"
            raise ValueError(f"{what}: {remedy}")
    for hook in chain(*(module._forward_pre_hooks.values() for module in model.modules())):
        if isinstance(hook, SpectralNorm | WeightNorm):
            norm = "spectral_norm" if isinstance(hook, SpectralNorm) else "weight_norm"
            what = "with several replicas all weights must be nn.Parameters, but"
            remedy = f"use torch.nn.utils.parametrizations.{norm}, or train one replica"
            raise ValueError(f"{what} torch.nn.utils.{norm} replaces them: {remedy}")


def _check_ties(tensors: Mapping[Places, Tensor]) -> None:
    """Raise if tensors share memory in a way that several replicas cannot."""
    memory: dict[int, str] = {}
    for places, tensor in tensors.items():
        if len(places) > 1 and set(WIDE) & set(places):
            shared = " and ".join(places)
            what = f"the prior must not be shared with other tensors, got {shared}"
            raise ValueError(f"{what}: train one replica")
        start = tensor.data_ptr() if isinstance(tensor, nn.Parameter) else 0
        if start and (other := memory.setdefault(start, places[0])) != places[0]:
            what = f"{other} and {places[0]} share memory but are different Parameters"
            raise ValueError(f"{what}: assign the same Parameter to both")


def _differ(one: object, other: object) -> bool:
    """Return whether an attribute is a constant tensor with different values in two replicas.

    `one` and `other` are the values of the attribute in the two replicas.
    """
    if not isinstance(one, Tensor) or one.requires_grad or one.layout != torch.strided:
        return False
    return not isinstance(other, Tensor) or one.dtype != other.dtype or not torch.equal(one, other)


def _networks(model: DiscreteVAE) -> list[tuple[str, nn.Module]]:
    """Return the names and modules of all encoders and decoders of a model.

    Encoders and decoders that are plain functions are left out.
    """
    modules = model.named_modules(remove_duplicate=False)
    return [(name, part) for name, part in modules if NETWORK.fullmatch(name)]


def _changed(
    model: DiscreteVAE, replicas: int, change: Callable[[Places, Tensor], Tensor]
) -> DiscreteVAE:
    """Return a copy of a model with other parameters and buffers, and `replicas` replicas.

    The function `change` is called once per tensor with the tensor's names and the old tensor, and
    returns the new tensor. A tensor that several layers share stays shared.
    """
    changed = copy.deepcopy(model)
    changed.replicas = replicas
    for places, tensor in _shared_tensors(changed).items():
        new = change(places, tensor.detach())
        if isinstance(tensor, nn.Parameter):
            new = nn.Parameter(new, tensor.requires_grad)
        for name in places:
            path, _, own = name.rpartition(".")
            owner = changed.get_submodule(path)
            held: dict[str, Any] = owner._parameters if own in owner._parameters else owner._buffers
            held[own] = new
    return changed


def _shared_tensors(module: nn.Module) -> dict[Places, Tensor]:
    """Return all parameters and buffers of a module. The key of a tensor contains all its names."""
    found: dict[int, tuple[list[str], Tensor]] = {}
    held = [tensor_places(module, kind).items() for kind in ("_parameters", "_buffers")]
    for name, tensor in chain(*held):
        found.setdefault(id(tensor), ([], tensor))[0].append(name)
    return {tuple(names): tensor for names, tensor in found.values()}
