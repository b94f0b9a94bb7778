"""Every call of PyTorch's private names, and what stands in for each where a version lacks it.

All of them were tried on 2.11 and 2.13 and are expected from 2.8 on; the public ones are slower,
and agree to rounding. `arms.arguments` fences `Bernoulli._param`, which the library itself reads.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.fx import GraphModule

try:
    from torch.fx.experimental.proxy_tensor import make_fx as _make_fx
except ImportError:
    make_fx = None
else:
    make_fx = _make_fx

Draws: TypeAlias = Sequence[Callable[[], Tensor]]

_FOREACH = ("lerp_", "mul_", "mul", "addcmul_", "sqrt", "add_", "div", "sub_")
HAS_FOREACH = all(hasattr(torch, f"_foreach_{name}") for name in _FOREACH)
HAS_FUSED_ADAM = hasattr(torch, "_fused_adam_")

INDUCTOR: dict[str, str | int | bool | Callable[..., Any]] = {
    "fallback_random": True,  # the noise of the eager kernels: the same numbers, and cheaper
    "comprehensive_padding": False,  # aligned rows are not worth the copies at an operator's border
    "unroll_reductions_threshold": 32,  # a sum over a few samples is no reduction
    "max_pointwise_cat_inputs": 3,  # runs of an ensemble are computed one by one
}


class Moments(NamedTuple):
    """What Adam moves and keeps, one tensor per parameter, and its constants."""

    parameters: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]
    decays: tuple[float, float]
    epsilon: float


def fused_adam_(adam: Moments, grads: Sequence[Tensor], rate: Tensor, count: Tensor) -> None:
    """Do a step of Adam with one rate for all, on contiguous tensors, in one pass over memory.

    `torch._fused_adam_` is behind `torch.optim.Adam(fused=True)`, which costs more on the host than
    the kernel takes. It reads a rate on the CPU in float64; on a GPU it wants float32.
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
    """Do a step of Adam with any rates, on any tensors: compiled, it is one kernel for all of them.

    From a loop over parameters in place of `torch._foreach_*` the compiler makes a kernel for each.
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
    """Do a step of Adam in public operations."""
    first, second = adam.decays
    rates = per_parameter(rate / (1 - first**count), adam.parameters)
    for parameter, mean, square, grad, own in zip(
        adam.parameters, adam.means, adam.squares, grads, rates, strict=True
    ):
        mean.lerp_(grad, 1 - first)
        square.mul_(second).addcmul_(grad, grad, value=1 - second)
        parameter.sub_(own * mean / ((square / (1 - second**count)).sqrt() + adam.epsilon))


def per_parameter(rate: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return a rate for each parameter: the common one, or `[R]` along its leading axis."""
    if rate.ndim == 0:
        return [rate] * len(parameters)
    return [rate.to(p.dtype).reshape(-1, *[1] * (p.ndim - 1)) for p in parameters]


def lerp_all_(targets: Sequence[Tensor], sources: Sequence[Tensor], weight: float) -> None:
    """Move every target by that share towards its source, in one kernel where there is one."""
    if HAS_FOREACH:
        torch._foreach_lerp_(list(targets), list(sources), weight)
        return
    for target, source in zip(targets, sources, strict=True):
        target.lerp_(source, weight)


def trace(function: Callable[[], Sequence[Tensor]]) -> tuple[GraphModule, Draws] | None:
    """Run a function, and return it as a graph of plain operations, and the noise that it draws.

    Compilers do not take second derivatives, which are operations like any other once `make_fx` has
    written them out. Without `make_fx` it is None: the function must then run as it is.
    """
    if make_fx is None:
        return None
    traced = make_fx(function)()
    return traced, take_out_noise(traced)


def take_out_noise(traced: GraphModule) -> Draws:
    """Make the noise that a graph draws its inputs; return the draws in order, for PyTorch < 2.13.

    Up to the first that depends on something, such as a dropout: what comes later must wait for it.
    """
    random = [
        node
        for node in traced.graph.nodes
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    ]
    drawn = list(takewhile(lambda node: not node.all_input_nodes, random))
    draws = [partial(node.target, *node.args, **node.kwargs) for node in drawn]
    # Backwards, each to the very beginning: the placeholders then stand in the order of the draws.
    for index, node in reversed(list(enumerate(drawn))):
        with traced.graph.inserting_before():
            node.replace_all_uses_with(traced.graph.placeholder(f"noise_{index}"))
        traced.graph.erase_node(node)
    traced.recompile()
    return draws


def inductor_options() -> dict[str, str | int | bool | Callable[..., Any]]:
    """Return the compiler's options that this version knows: an unknown one is an error."""
    try:
        from torch._inductor import list_options
    except ImportError:
        return {}
    known = set(list_options())
    return {name: value for name, value in INDUCTOR.items() if name in known}
