"""Convert logits, latents and torch distributions to checked latents."""

from typing import TypeAlias

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical

from arms.arguments import check_logits, is_finite, is_readable
from arms.latents.base import Latent
from arms.latents.bits import Bits
from arms.latents.categories import Indices, OneHot

Logits: TypeAlias = "Tensor | Latent | Distribution"
"""Logits of independent bits, a latent, or a torch distribution."""


def as_latent(logits: Logits, *, validate: bool = True) -> Latent:
    """Convert logits, a torch distribution or a latent to a latent, and check its logits.

    Args:
        logits: Logits of independent bits, a torch distribution, or a latent.
        validate: Check for NaN. On a GPU, this waits for the device.

    >>> as_latent(torch.zeros(3))
    Bits(logits=tensor([0., 0., 0.]), context=None)
    """
    latent = Bits(logits) if isinstance(logits, Tensor) else _as_given(logits)
    check_logits(latent.logits, latent.event_axes)
    # `is_finite` takes half the time of `undefined`, and finite logits always define a
    # distribution.
    looked_at = validate and is_readable(latent.logits)
    if looked_at and not is_finite(latent.logits) and bool(latent.undefined().any()):
        problem = f"contain NaN or do not define a distribution ({latent.allowed})"
        raise ValueError(f"logits {problem}: check the operation that produced them")
    return latent


def _as_given(logits: "Latent | Distribution") -> Latent:
    if isinstance(logits, Latent):
        return logits
    # Any other object is passed on as a tensor of logits, where its type is checked.
    return _of_distribution(logits) if isinstance(logits, Distribution) else Bits(logits)


def _of_distribution(distribution: Distribution) -> Latent:
    base = distribution
    if isinstance(base, Independent):
        if (count := base.reinterpreted_batch_ndims) != 1:
            wanted = "reinterpreted_batch_ndims = 1, as in Independent(Bernoulli(...), 1)"
            raise ValueError(f"Independent must have {wanted}, got {count}")
        base = base.base_dist
    if isinstance(base, Bernoulli):
        return Bits(_exact_logit(base.probs) if _has_probs(base) else base.logits)
    name, kinds = type(base).__name__, "a Bernoulli, a Categorical or a OneHotCategorical"
    if not isinstance(base, OneHotCategorical | Categorical):
        raise ValueError(f"the torch distribution must be {kinds}, got {name}")
    if not base.batch_shape:
        what = f"a {name} must have logits of shape [*batch, d, K], got [K]"
        raise ValueError(f"{what}: call .unsqueeze(0) on the logits")
    inner = base if isinstance(base, Categorical) else base._categorical
    kind = Indices if isinstance(base, Categorical) else OneHot
    return kind(_exact_log(inner.probs) if _has_probs(inner) else inner.logits)


def _has_probs(distribution: Bernoulli | Categorical) -> bool:
    # `probs` may also have been computed from given logits. Only the private `_param` shows this.
    return distribution._param is distribution.__dict__.get("probs")


def _exact_logit(probs: Tensor) -> Tensor:
    """Return log(p / (1 - p)), which is infinite at p = 0 and p = 1.

    `Bernoulli.logits` is finite there.
    """
    inside = (probs > 0) & (probs < 1)
    # The inner `where` makes the gradient at p = 0 and p = 1 zero instead of NaN.
    return torch.where(inside, torch.where(inside, probs, 0.5).logit(), probs.detach().logit())


def _exact_log(probs: Tensor) -> Tensor:
    """Return log p. At p = 0, the result is -inf and its gradient is 0.

    `Categorical.logits` is finite there.
    """
    possible = probs > 0
    return torch.where(possible, torch.where(possible, probs, 1.0).log(), -torch.inf)
