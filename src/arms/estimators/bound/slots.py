r"""The importance-weighted bound of Burda et al., and formulas that all its estimators use.

$$ L_K = E\Big[\log \frac1K \sum_{k=1}^K w(b_k)\Big] \le \log p(x), \quad
   w(b) = p(x, b) / q(b), \quad b_k \sim q $$

A slot is one of the K places in this sum. Let f_{-k}(b) be this logarithm if slot k contains b.
The gradient has two parts. The score part is the sum over slots of E[f_{-k}(b_k) grad log q(b_k)].
The direct term is -E[sum_k w_k/(sum_l w_l) grad log q(b_k)], because log w contains log q.
Estimators are called *folded* if they handle both parts together:

$$ \nabla L_K = E\Big[\sum_k h_{-k}(b_k)\,\nabla \log q(b_k)\Big], \qquad
   h_{-k}(b) = f_{-k}(b) - \frac{w(b)}{\sum_{l \ne k} w_l + w(b)} $$

A slot depends on the other slots only through the log-sum-exp of their log-weights. This sum omits
slot k from the start, because subtracting w_k from the total would lose digits.
Reference: Burda, Grosse & Salakhutdinov, "Importance weighted autoencoders", ICLR 2016; folding:
this project (docs/bound.md).
"""

import torch
from torch import Tensor, nn

from arms.latents import Latent


def direct_term(latent: Latent, samples: Tensor, shares: Tensor) -> Tensor:
    """Return the direct term of a bound's gradient, `[*batch, *event]`.

    The term is -sum_k shares_k grad log q(b_k), where b_k is sample k, and shares_k is the weight
    of sample k divided by the sum of all K weights. `shares` is `[K, *batch]`.
    """
    return -(latent.with_event_axes(shares) * latent.score(samples)).sum(0)


def others_of_each(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest log-weight of the others for each slot, and differences from it.

    Both results are computed for each slot. `values` `[K, *batch]` contains the log-weights of the
    K slots. The first result, `[K, *batch]`, is the maximum over the other slots. The maximum is 0
    if there are no other slots, or if all weights of the other slots are zero. The second result,
    `[K, K, *batch]`, contains the log-weights minus the maximum, and -inf for the slot itself. Both
    large and small weights keep their digits.

    >>> others_of_each(torch.tensor([10_000.0, 1.0, 0.0]))[0]
    tensor([1.0000e+00, 1.0000e+04, 1.0000e+04])
    """
    table = torch.where(diagonal_mask(values), -torch.inf, values.unsqueeze(0))
    top = table.amax(1)
    top = torch.where(top > -torch.inf, top, 0.0)
    return top, table - top.unsqueeze(1)


def diagonal_mask(values: Tensor) -> Tensor:
    """Return the K x K identity matrix as a mask, for `values` `[K, *batch]`.

    The mask has shape `[K, K, 1, ...]`, with one axis of length one per batch axis of `values`.
    """
    count = len(values)
    diagonal = torch.eye(count, dtype=torch.bool, device=values.device)
    return diagonal.view(count, count, *[1] * (values.ndim - 1))


def replace_slots(others: Tensor, candidates: Tensor, folded: bool = False) -> Tensor:
    """Return the bound with each of m candidates in each slot, `[m, K, *batch]`.

    The module docstring defines the functions f_{-k} and h_{-k}. The result is f_{-k} at the
    candidates, or h_{-k} if `folded` is True. A constant per slot is left out, so that small
    differences keep their digits. `others` is the second result of `others_of_each`. `candidates`
    `[m, K, *batch]` contains log-weights minus the first result of `others_of_each`.
    """
    some, relative = _relative(others, candidates)
    bounds = nn.functional.softplus(relative, threshold=40)  # e^-40 is negligible in float64
    if folded:
        bounds = bounds - torch.sigmoid(relative)
    # If no other slot has weight, the share is always 1, a constant that can be left out.
    return torch.where(some, bounds, relative)


def slot_shares(others: Tensor, candidates: Tensor) -> Tensor:
    """Return the share of each candidate b in the total weight, if b replaces sample k.

    The share is w(b) / (sum_{l != k} w_l + w(b)), where w_l is the weight of the sample in slot l.
    The arguments and the shape of the result are the same as for `replace_slots`.
    """
    some, relative = _relative(others, candidates)
    return torch.where(some, torch.sigmoid(relative), torch.ones_like(relative))


def _relative(others: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """Return a mask of slots `[K, *batch]`, and shifted candidates `[m, K, *batch]`.

    The mask is False for a slot if the weights of all other slots are zero. For such a slot, the
    candidates are returned unchanged. For all other slots, the log of the sum of the other slots'
    weights is subtracted from the candidates.
    """
    rest = others.exp().sum(1).log()
    some = rest != -torch.inf  # True for NaN, so that NaN is propagated
    return some, candidates - torch.where(some, rest, 0.0)
