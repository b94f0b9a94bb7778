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
    "fallback_random": True,  # the same random numbers as in eager kernels, and faster
    "comprehensive_padding": False,  # aligned rows do not justify the copies before an operator
    "unroll_reductions_threshold": 32,  # write sums over a few samples as additions
    "max_pointwise_cat_inputs": 3,  # compute more concatenated parts one by one
}


def trace(function: Callable[[], Sequence[Tensor]]) -> tuple[GraphModule, Draws] | None:
    """Run a function, and convert it to a graph of plain operations.

    The first result is the graph. Its inputs are random numbers. The second result is a list of
    functions that draw these random numbers. Compilers do not support second derivatives, but
    `make_fx` writes them as plain operations. If PyTorch has no `make_fx`, the result is None, and
    the function must run without compilation.
    """
    if make_fx is None:
        return None
    traced = make_fx(function)()
    return traced, take_out_noise(traced)


def take_out_noise(traced: GraphModule) -> Draws:
    """Replace the random draws in a graph by inputs, and return functions that draw them.

    The functions are in the order of the inputs. If a draw depends on other values, as in dropout,
    this draw and all later draws stay in the graph. PyTorch before 2.13 needs this replacement.
    """
    random = [
        node
        for node in traced.graph.nodes
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    ]
    drawn = list(takewhile(lambda node: not node.all_input_nodes, random))
    draws = [partial(node.target, *node.args, **node.kwargs) for node in drawn]
    # Insert each placeholder at the very beginning, from the last draw to the first.
    for index, node in reversed(list(enumerate(drawn))):
        with traced.graph.inserting_before():
            node.replace_all_uses_with(traced.graph.placeholder(f"noise_{index}"))
        traced.graph.erase_node(node)
    traced.recompile()
    return draws


def inductor_options() -> dict[str, str | int | bool | Callable[..., Any]]:
    """Return the options in `INDUCTOR` that the installed version of PyTorch supports.

    Other options would raise an error.
    """
    try:
        from torch._inductor import list_options
    except ImportError:
        return {}
    known = set(list_options())
    return {name: value for name, value in INDUCTOR.items() if name in known}
