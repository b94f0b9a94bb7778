"""The exact gradient of a VAE whose latents have few states.

The decoder's outputs do not depend on the image, so each state is decoded only once per batch. All
further computations are matrix products.
"""

import torch
from torch import Tensor

from arms.bench.models import DiscreteVAE
from arms.estimators import Estimate
from arms.latents import Enumerable


def states_of(model: DiscreteVAE) -> Tensor:
    """Return all states of the latents of a model with one layer, `[S, *event]`."""
    latent = model.latent(model.prior.detach())
    assert isinstance(latent, Enumerable)
    return latent.states()


def estimate_states(
    model: DiscreteVAE, states: Tensor, x: Tensor, logits: Tensor, *, analytic_kl: bool = False
) -> Estimate:
    """Return the same estimate as `arms.Exact`, for a model with one layer.

    If f(s) is the objective at state s, then `Estimate.value` is E[f], and `Estimate.grad` is
    E[(f - E[f]) s]. `states` is the result of `states_of`, `x` are the images, and `logits` are the
    logits of q, detached.
    """
    flat, shape = states.flatten(1), states.shape[1:]
    # log q(s) is linear in s, and normalized over all states.
    slope, _ = model.layers[0].log_ratio(torch.zeros_like(model.prior), logits)
    probs = torch.softmax(_products(flat.double(), -slope.double(), len(shape)), 0)
    decoded = model.decode(states[:, None, None].expand(-1, model.replicas, 1, *shape))
    values = model.likelihood.log_prob_table(decoded, x)
    if analytic_kl:
        values = values - model.kl(logits).detach()
    else:
        weight, constant = model.layers[0].log_ratio(model.prior, logits)
        values = values + _products(flat, weight, len(shape)) + constant
    value = (probs * values).sum(0)
    signal = probs * (values.detach() - value.detach())
    grad = torch.einsum("srb,se->rbe", signal, flat.double())
    return Estimate(grad.reshape(logits.shape).to(logits.dtype), value.to(x.dtype), values)


def _products(states: Tensor, vectors: Tensor, event_dims: int) -> Tensor:
    """Return the inner product of every state with every vector, `[S, R, B]`.

    `states` contains S flat states, `[S, numbers]`. `vectors` is `[R, B, *event]`, where the event
    has `event_dims` axes.
    """
    return torch.einsum("se,rbe->srb", states, vectors.flatten(-event_dims))
