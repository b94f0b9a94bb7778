"""The border: what a user hands in is brought to one form, or refused with a sentence that helps."""

import operator
from typing import TypeAlias

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Distribution, Independent

Logits: TypeAlias = "Tensor | Bernoulli | Independent[Bernoulli]"


def as_count(value: object, least: int, what: str, *, even: bool = False) -> int:
    """Return `value` as an int of at least `least` (and even, where samples come in pairs)."""
    wanted = f"{'an even' if even else 'an'} integer >= {least}"
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{what} must be {wanted}, got {value!r}") from None
    if count < least:
        raise ValueError(f"{what} must be {wanted}, got {count}")
    if even and count % 2:
        raise ValueError(f"{what} must be even, since samples are drawn in pairs; got {count}: try {count + 1}")
    return count


def as_logits(logits: Logits) -> Tensor:
    """Return the logits `[*batch, d]` behind a tensor, a Bernoulli or an Independent(Bernoulli, 1)."""
    tensor = _logits_of(logits) if isinstance(logits, Distribution) else logits
    if not isinstance(tensor, Tensor):
        raise ValueError(
            f"logits must be a tensor, a Bernoulli or an Independent(Bernoulli, 1), got {type(logits).__name__}"
        )
    if not tensor.is_floating_point():
        raise ValueError(f"logits must be floating point, got {tensor.dtype}: call .float() on them")
    if tensor.ndim == 0:
        raise ValueError("logits must have shape [*batch, d] with the latent axis last, got a scalar: unsqueeze it")
    return tensor


def _logits_of(distribution: Distribution) -> Tensor:
    base = distribution
    if isinstance(base, Independent):
        if base.reinterpreted_batch_ndims != 1:
            raise ValueError(
                "an Independent distribution must reinterpret exactly one axis, the latent one, "
                f"got {base.reinterpreted_batch_ndims}: use Independent(Bernoulli(...), 1)"
            )
        base = base.base_dist
    if not isinstance(base, Bernoulli):
        raise ValueError(f"the latent distribution must be Bernoulli, got {type(base).__name__}")
    # What it was built from: sampling, for one, leaves probabilities of fewer digits beside the given logits.
    return _exact_logit(base.probs) if base._param is base.__dict__.get("probs") else base.logits


def _exact_logit(probs: Tensor) -> Tensor:
    # Bernoulli.logits pulls p = 0 and p = 1 inwards by an epsilon; here they stay, and their gradient is 0, not NaN.
    inside = (probs > 0) & (probs < 1)
    edge = torch.where(probs > 0.5, torch.inf, -torch.inf).to(probs)
    return torch.where(inside, torch.logit(torch.where(inside, probs, 0.5)), edge)


def widen(tensor: Tensor) -> Tensor:
    """Return the tensor in float32 if it is a half-precision one: noise and sums need the bits."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def holds(condition: Tensor) -> bool:
    """Whether a boolean scalar is true, or cannot be looked at: while compiling, vmapping or capturing a CUDA graph."""
    if torch.compiler.is_compiling() or (condition.is_cuda and torch.cuda.is_current_stream_capturing()):
        return True
    try:
        return bool(condition)
    except RuntimeError:  # vmap: the value is many values
        return True
