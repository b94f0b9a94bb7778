"""The value that a user gets, with the estimate as its derivative; and whether log-weights carry their part of it."""

import math
from typing import NoReturn

import torch
from torch import Tensor

from arms.arguments import at_least_float32, is_readable
from arms.estimators import Draw
from arms.estimators.attachment import attach_gradient, has_tangent
from arms.estimators.multi_sample import direct_term
from arms.estimators.pipeline import Options
from arms.latents import Latent, OneHot
from arms.targets import Target

__all__ = ["attached", "is_wanted"]


def is_wanted(latent: Latent) -> bool:
    """Whether anybody can ask for the gradient; where nobody can, it is not made."""
    return (torch.is_grad_enabled() and latent.logits.requires_grad) or has_tangent(latent.logits)


def attached(draw: Draw, latent: Latent, value: Tensor, values: Tensor, grad: Tensor, options: Options) -> Tensor:
    """Return the value of a draw with its gradient, once it is sure that log-weights carry their part of it."""
    if draw.estimator.target.direct:
        _check_direct_term(draw, latent, value, values, options)
    return attach_gradient(value, latent, grad)


def _check_direct_term(draw: Draw, latent: Latent, value: Tensor, values: Tensor, options: Options) -> None:
    """Raise if log-weights do not pass to the logits what log q(b) does: every bound's estimate counts on it."""
    target = draw.estimator.target
    if not (value.requires_grad or has_tangent(value)):
        _refuse_log_q(target, "values without a graph")
    readable = options.checks == "all" and is_readable(latent.logits) and is_readable(value)
    if not readable or not (latent.logits.requires_grad and value.requires_grad):
        return  # inside of a transform or a compiler nobody can look
    (found,) = torch.autograd.grad(value.sum(), latent.logits, retain_graph=True, allow_unused=True)
    if found is None:
        _refuse_log_q(target, "log-weights in whose graph these logits have no part")
    weights = values.detach().requires_grad_()
    (shares,) = torch.autograd.grad(draw.estimator.value(draw, weights).sum(), weights)
    expected = direct_term(draw.latent, draw.points.detach(), shares)
    coarsest = max(torch.finfo(one.dtype).eps for one in (values, latent.logits))
    if isinstance(latent, OneHot):
        found = _felt(latent, found)
    if ((found - expected).abs() > 10 * math.sqrt(coarsest) * expected.abs().clamp(min=1)).any():
        _refuse_log_q(target, "log-weights that depend on these logits otherwise")


def _felt(latent: OneHot, grad: Tensor) -> Tensor:
    """Return a gradient for logits that torch has normalised as what was normalised feels of it.

    Its distributions take log q from the normalised logits, whose gradient lacks the part - p; behind the normalisation
    it is there. Logits of other makes, which do not add up to one, must have it themselves.
    """
    logits = at_least_float32(latent.logits.detach())
    if not (logits.logsumexp(-1).abs() < 1e-4).all():
        return grad
    return grad - (logits.softmax(-1) * grad.sum(-1, keepdim=True)).to(grad.dtype)


def _refuse_log_q(target: Target, found: str) -> NoReturn:
    raise ValueError(
        f"the log-weights of the {target} must carry the graph of log q(b), computed from the very tensor of logits "
        f"that was given and not detached: a part of the gradient goes through it; got {found}"
    )
