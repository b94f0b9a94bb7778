"""Checks of user input and tensors, and lazy properties."""

import difflib
import math
import operator
import textwrap
from collections.abc import Callable, Collection
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor
from torch.autograd import forward_ad

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LARGEST_EXACT = 2**53  # float64 represents every integer up to this one


def as_count(value: object, least: int, what: str, *, even: bool = False) -> int:
    """Return `value` as an int. Raise if it is below `least`, or if it is odd and `even` is True.

    `what` is the name of the value in error messages.
    """
    wanted = f"{what} must be {'an even' if even else 'an'} integer >= {least}"
    try:
        count = operator.index(None if isinstance(value, bool) else value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{wanted}, got {value!r}") from None
    if not least <= count < 2**63:
        limit = " and below 2**63" if count > least else ""
        raise ValueError(f"{wanted}{limit}, got {count}")
    if even and count % 2:
        wanted = f"{what} must be even because samples are drawn in pairs"
        raise ValueError(f"{wanted}, got {count}: try {count + 1}")
    return count


def as_positive(value: object, what: str) -> float:
    """Return `value` as a float. Raise unless it is positive and finite.

    `what` is the name of the value in error messages.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    try:
        found = float(value) if is_number else 0.0  # type: ignore[arg-type]
    except OverflowError:  # the integer is too large for a float
        found = math.inf
    if not 0 < found < math.inf:
        raise ValueError(f"{what} must be a positive, finite number, got {value!r}")
    return found


def described(error: BaseException) -> str:
    """Return one line of text: the type of an exception, then its message if it is not empty."""
    message = f"{type(error).__name__}: {error}".removesuffix(": ")
    return textwrap.shorten(message, 400, placeholder=" ...")


def unknown_name(
    kind: str, name: object, known: Collection[str], biased: Collection[str] = (), or_else: str = ""
) -> ValueError:
    """Return an error for the unknown name `name`. Its message lists similar and all known names.

    `kind` says what the name was expected to be, such as "estimator". `biased` are names of biased
    estimators that are also allowed. `or_else` says in words what else the user can pass.
    """
    near = difflib.get_close_matches(str(name).lower(), [*known, *biased], n=2)
    perhaps = f"did you mean {' or '.join(near)}? Otherwise " if near else ""
    others = f", or one of the biased estimators {', '.join(biased)}" if biased else ""
    others += f", or pass {or_else}" if or_else else ""
    choice = f"{perhaps}choose one of {', '.join(known)}{others}"
    return ValueError(f"there is no {kind} named {name!r}: {choice}")


def check_logits(logits: object, event_axes: str) -> Tensor:
    """Return `logits`. Raise unless they are a dense floating-point tensor with enough axes.

    `event_axes` are the names of the last axes, such as "d, K".
    """
    axes = event_axes.count(",") + 1
    if not isinstance(logits, Tensor):
        torchs = "a torch Bernoulli, Categorical or OneHotCategorical distribution"
        swapped = callable(logits) and not isinstance(logits, type)
        remedy = "pass the objective first" if swapped else "convert an array with torch.as_tensor"
        got = f"{type(logits).__name__}: {remedy}"
        raise ValueError(f"logits must be a tensor, {torchs}, or an arms latent, got {got}")
    if logits.dtype not in FLOATS:
        raise ValueError(
            f"logits must be floating-point numbers, got {logits.dtype}: call .float()"
        )
    check_dense(logits, "logits")
    if logits.ndim < axes:
        got = f"shape {list(logits.shape)}" if logits.ndim else "a scalar: call .unsqueeze(0)"
        raise ValueError(f"logits must have shape [*batch, {event_axes}], got {got}")
    if axes == 2 and not logits.shape[-1]:
        got = f"shape {list(logits.shape)}"
        raise ValueError(f"logits must have at least one category on the last axis, got {got}")
    return logits


def check_dense(tensor: Tensor, what: str) -> None:
    """Raise if a tensor is sparse, nested, or on the meta device."""
    if tensor.is_nested or tensor.layout != torch.strided or tensor.is_meta:
        kind = "a nested tensor" if tensor.is_nested else f"a tensor of layout {tensor.layout}"
        got = "a tensor on the meta device, which stores no values" if tensor.is_meta else kind
        raise ValueError(f"{what} must be an ordinary dense tensor, got {got}")


def check_generator(generator: object) -> None:
    """Raise unless `generator` is None or a `torch.Generator`."""
    if generator is not None and not isinstance(generator, Generator):
        seed = generator if type(generator) is int else 0
        got = f"{type(generator).__name__}: try torch.Generator().manual_seed({seed})"
        raise ValueError(f"generator must be a torch.Generator or None, got {got}")


def version_of(tensor: Tensor) -> int:
    """Return how often a tensor was changed in place, or 0 if it was created in inference mode."""
    return 0 if tensor.is_inference() else tensor._version


def at_least_float32(tensor: Tensor) -> Tensor:
    """Convert a tensor from half precision to float32. Return other tensors unchanged.

    Noise and sums need more digits than half precision has.
    """
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def true_or_unreadable(condition: Tensor) -> bool:
    """Return whether a boolean scalar is true. If its value cannot be read now, return True."""
    return not is_readable(condition) or bool(condition)


def is_finite(tensor: Tensor) -> bool:
    """Return whether a tensor contains neither NaN nor infinity. It must be readable now."""
    # A finite sum proves that all terms are finite, in one pass. An infinite sum proves nothing,
    # because the sum of large finite terms may overflow.
    return math.isfinite(tensor.detach().sum().item()) or bool(tensor.isfinite().all())


def is_readable(tensor: Tensor) -> bool:
    """Return whether the values of a tensor can be read now.

    Values cannot be read while a graph is compiled or captured, nor inside vmap.
    """
    if torch.compiler.is_compiling():
        return False
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    if not torch._C._are_functorch_transforms_active():
        return True
    # These functions are private (tried on PyTorch 2.8 to 2.13). Reading a tensor under vmap
    # raises an error. The wrappers of torch.func.grad can hide a wrapper of vmap.
    while torch._C._functorch.is_gradtrackingtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return not torch._C._functorch.is_batchedtensor(tensor)


def has_tangent(tensor: Tensor) -> bool:
    """Return whether a tensor carries a tangent, for forward-mode differentiation."""
    return not torch.compiler.is_compiling() and forward_ad.unpack_dual(tensor).tangent is not None


def in_function_transform() -> bool:
    """Return whether torch.func.grad, vmap or a similar transform is running."""
    compiling, functorch = torch.compiler.is_compiling(), torch._C._functorch
    return not compiling and functorch.peek_interpreter_stack() is not None


def leave_graph(what: str) -> None:
    """Break the graph if torch.compile is tracing one.

    With `fullgraph=True`, this raises an error which says that torch.compile cannot trace `what`.
    """
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break(msg=f"arms: torch.compile(fullgraph=True) cannot trace {what}")


if TYPE_CHECKING:
    from functools import cached_property

    lazy_property = cached_property
else:

    class lazy_property:  # noqa: N801 (used like a function)
        """A `cached_property` without Python 3.11's lock, which torch.compile cannot trace."""

        def __init__(self, function: Callable[[Any], Any]) -> None:
            self.function = function
            self.__doc__ = function.__doc__

        def __get__(self, instance: object, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = self.function(instance)
            # The stored value takes precedence over this descriptor from now on.
            # `object.__setattr__` also works on frozen dataclasses.
            object.__setattr__(instance, self.function.__name__, value)
            return value
