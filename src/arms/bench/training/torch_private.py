"""Private functions of PyTorch's compiler, with fallbacks for versions without them.

They were tested on 2.11 and 2.13, and are expected to exist from 2.8 on. The private kernels of
Adam are in `optimizer`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, TypeAlias

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

INDUCTOR: dict[str, str | int | bool | Callable[..., Any]] = {
    "fallback_random": True,  # the noise of the eager kernels: the same numbers, and cheaper
    "comprehensive_padding": False,  # aligned rows are not worth the copies at an operator's border
    "unroll_reductions_threshold": 32,  # a sum over a few samples is no reduction
    "max_pointwise_cat_inputs": 3,  # runs of an ensemble are computed one by one
}


def trace(function: Callable[[], Sequence[Tensor]]) -> tuple[GraphModule, Draws] | None:
    """Run a function, and return it as a graph of plain operations, with the noise that it draws.

    Compilers do not support second derivatives, but `make_fx` writes them as plain operations. If
    `make_fx` is missing, the graph is None, and the function must run without compilation.
    """
    if make_fx is None:
        return None
    traced = make_fx(function)()
    return traced, take_out_noise(traced)


def take_out_noise(traced: GraphModule) -> Draws:
    """Convert the noise drawn in a graph to inputs, for PyTorch < 2.13.

    Return the draws in order. Only draws before the first one that depends on other values, such as
    dropout, are converted.
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
    """Return the compiler options that this version supports; others would be errors."""
    try:
        from torch._inductor import list_options
    except ImportError:
        return {}
    known = set(list_options())
    return {name: value for name, value in INDUCTOR.items() if name in known}
