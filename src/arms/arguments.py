"""Checks of user input, tests of what can be read from a tensor, and lazy properties."""

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
LARGEST_EXACT = 2**53  # up to here, float64 holds every integer


def as_count(value: object, least: int, what: str, *, even: bool = False) -> int:
    """Return `value` as an int of at least `least` (and even, where samples come in pairs)."""
    wanted = f"{what} must be {'an even' if even else 'an'} integer >= {least}"
    try:
        count = operator.index(None if isinstance(value, bool) else value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{wanted}, got {value!r}") from None
    if not least <= count < 2**63:
        limit = " and below 2**63" if count > least else ""
        raise ValueError(f"{wanted}{limit}, got {count}")
    if even and count % 2:
        raise ValueError(f"{what} must be even, for pairs of samples, got {count}: try {count + 1}")
    return count


def as_positive(value: object, what: str) -> float:
    """Return `value` as a float that is positive and finite."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    try:
        found = float(value) if is_number else 0.0  # type: ignore[arg-type]
    except OverflowError:  # of a large integer
        found = math.inf
    if not 0 < found < math.inf:
        raise ValueError(f"{what} must be positive and finite, got {value!r}")
    return found


def described(error: BaseException) -> str:
    """Return an exception on one line: its type, and its message if it has one."""
    message = f"{type(error).__name__}: {error}".removesuffix(": ")
    return textwrap.shorten(message, 400, placeholder=" ...")


def unknown_name(
    kind: str, name: object, known: Collection[str], biased: Collection[str] = (), or_else: str = ""
) -> ValueError:
    """Return the error about an unknown name, with similar names and all known ones."""
    near = difflib.get_close_matches(str(name).lower(), [*known, *biased], n=2)
    perhaps = f"perhaps {' or '.join(near)}; " if near else ""
    others = f", or of the biased {', '.join(biased)}" if biased else ""
    others += f", or give {or_else}" if or_else else ""
    choice = f"{perhaps}choose one of {', '.join(known)}{others}"
    return ValueError(f"no {kind} is called {name!r}: {choice}")


def check_logits(logits: object, event_axes: str) -> Tensor:
    """Return `logits` if they are a floating-point tensor that ends in axes such as `d, K`."""
    axes = event_axes.count(",") + 1
    if not isinstance(logits, Tensor):
        wanted = "a tensor, a latent, or a Bernoulli, Categorical or OneHotCategorical"
        got = f"{type(logits).__name__}: use torch.as_tensor on an array"
        raise ValueError(f"logits must be {wanted} distribution, got {got}")
    if logits.dtype not in FLOATS:
        raise ValueError(f"logits must be floating point, got {logits.dtype}: call .float()")
    check_dense(logits, "logits")
    if logits.ndim < axes:
        got = f"shape {list(logits.shape)}" if logits.ndim else "a scalar: unsqueeze it"
        raise ValueError(f"logits must have shape [*batch, {event_axes}], got {got}")
    if axes == 2 and not logits.shape[-1]:
        raise ValueError(f"logits must have at least one category, got {list(logits.shape)}")
    return logits


def check_dense(tensor: Tensor, what: str) -> None:
    """Raise if a tensor is sparse, nested, or on the meta device."""
    if tensor.is_nested or tensor.layout != torch.strided or tensor.is_meta:
        kind = "a nested tensor" if tensor.is_nested else f"layout {tensor.layout}"
        got = f"{kind} on {tensor.device}"
        raise ValueError(f"{what} must be a dense tensor on a device with numbers, got {got}")


def check_generator(generator: object) -> None:
    """Raise unless this is None or a generator of PyTorch."""
    if generator is not None and not isinstance(generator, Generator):
        seed = generator if type(generator) is int else 0
        got = f"{type(generator).__name__}: try torch.Generator().manual_seed({seed})"
        raise ValueError(f"generator must be a torch.Generator or None, got {got}")


def version_of(tensor: Tensor) -> int:
    """Return how often a tensor was changed in place; 0 in inference mode, which does not count."""
    return 0 if tensor.is_inference() else tensor._version


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return a half-precision tensor as float32: noise and sums need the precision."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def true_or_unreadable(condition: Tensor) -> bool:
    """Return whether a boolean scalar is true, or cannot be read."""
    return not is_readable(condition) or bool(condition)


def is_finite(tensor: Tensor) -> bool:
    """Whether a tensor that can be read holds neither NaN nor infinity."""
    # A sum is finite only if all its terms are, and takes one pass; a large one may overflow.
    return math.isfinite(tensor.detach().sum().item()) or bool(tensor.isfinite().all())


def is_readable(tensor: Tensor) -> bool:
    """Return whether values can be read now: not while compiling, vmapping or capturing a graph."""
    if torch.compiler.is_compiling():
        return False
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    if not torch._C._are_functorch_transforms_active():
        return True
    # Private functions (tried on PyTorch 2.8 to 2.13). Under vmap a value is many values, and
    # reading it raises. The wrappers of torch.func.grad hide those of vmap.
    while torch._C._functorch.is_gradtrackingtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return not torch._C._functorch.is_batchedtensor(tensor)


def has_tangent(tensor: Tensor) -> bool:
    """Return whether forward-mode differentiation passes through a tensor."""
    return not torch.compiler.is_compiling() and forward_ad.unpack_dual(tensor).tangent is not None


def in_function_transform() -> bool:
    """Return whether torch.func.grad, vmap or another transform of functions is running."""
    compiling, functorch = torch.compiler.is_compiling(), torch._C._functorch
    return not compiling and functorch.peek_interpreter_stack() is not None


def leave_graph(what: str) -> None:
    """Leave a graph that is being compiled; where fullgraph=True forbids that, say what to do."""
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break(msg=f"arms: torch.compile(fullgraph=True) cannot trace {what}")


if TYPE_CHECKING:
    from functools import cached_property

    lazy_property = cached_property
else:

    class lazy_property:  # noqa: N801 (used like a function)
        """`cached_property` without the lock of Python 3.11, which torch.compile cannot trace."""

        def __init__(self, function: Callable[[Any], Any]) -> None:
            self.function = function
            self.__doc__ = function.__doc__

        def __get__(self, instance: object, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = self.function(instance)
            # Found before this descriptor from now on. Frozen dataclasses allow no assignment.
            object.__setattr__(instance, self.function.__name__, value)
            return value
