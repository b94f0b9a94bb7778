r"""Weights for the log-probabilities of samples that were drawn and scored elsewhere.

For n independent samples b_1, ..., b_n of a policy with rewards r_i, the weights w_i make

$$ \sum_i w_i \, \nabla \log \pi(b_i) $$

an unbiased estimate of the target's gradient. For the mean reward, this is leave-one-out REINFORCE,

$$ w_i = \frac1n \Big(r_i - \frac{1}{n-1} \sum_{j \ne i} r_j\Big). $$

For the best of k samples, it is a sum over all subsets S of size k that contain sample i,

$$ w_i = \frac{1}{\binom{n}{k}} \sum_{S \ni i} \big(\max S - \max (S \setminus i)\big). $$

Both are unbiased because the subtracted baseline is a function of the other samples only. If the
rewards are sorted, $r_{(0)} \le \dots \le r_{(n-1)}$, the sum for the best of k telescopes:

$$ \binom{n}{k} w_{(j)} = \sum_{m<j} \binom{m}{k-2} \big(r_{(j)} - r_{(m)}\big)
   = \sum_{t=1}^{j} \binom{t}{k-1} \big(r_{(t)} - r_{(t-1)}\big). $$

No term of the last sum is negative, so no digits are lost.

References: Kool, van Hoof & Welling, "Buy 4 REINFORCE samples, get a baseline for free!", 2019;
Mnih & Rezende, "Variational inference for Monte Carlo objectives", ICML 2016.
"""

import math
from collections.abc import Callable
from typing import NoReturn

import torch
from torch import Tensor
from torch.nn.functional import pad

from arms.arguments import FLOATS, LARGEST_EXACT, at_least_float32, check_dense, is_readable
from arms.targets import BestOf, Expectation, ImportanceBound


def weights(
    rewards: Tensor,
    target: Expectation | BestOf | ImportanceBound | None = None,
    *,
    mask: Tensor | None = None,
) -> Tensor:
    """Convert rewards to weights `[n, *groups]` for policy gradients.

    Maximize `(weights * log_probs).sum(0)`, where `log_probs` are the samples' log-probabilities.
    For each group, the gradient of this sum is an unbiased estimate of the target's gradient. The
    weights include the factor 1/n, and carry no gradient.

    Args:
        rewards: The rewards of n independent samples per group, `[n, *groups]`. For a bound, these
            are the log-weights.
        target: `Expectation()` for the mean reward (the default), `BestOf(k)` for the best of k
            samples, or `ImportanceBound()` for the score part of the bound with K = n.
        mask: A boolean tensor in the shape of the rewards. Samples whose entry is False are
            ignored, and get the weight 0. Groups may be empty.

    >>> weights(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    tensor([ 0.2500, -0.0833, -0.0833, -0.0833])
    >>> weights(torch.tensor([1.0, 0.0, 0.0, 0.0]), BestOf(2))
    tensor([0.5000, 0.0000, 0.0000, 0.0000])
    >>> weights(torch.tensor([3.0, 1.0, 2.0]), BestOf(3))  # the best improves on the second best
    tensor([1., 0., 0.])
    """
    target = Expectation() if target is None else target
    _check_types(rewards, mask)
    rule, least = _rule_for(target, len(rewards))
    if rewards.dtype.is_floating_point:
        dtype, values = rewards.dtype, at_least_float32(rewards.detach())
    else:  # float64 keeps the differences of large integers
        dtype, values = torch.get_default_dtype(), rewards.double()
    if mask is not None:
        values = torch.where(mask, values, 0.0)
    if mask is None:  # the count follows from the shape, without reading values
        _check_count(len(values), least, target, masked=False)
    if is_readable(values):
        whole = not rewards.dtype.is_floating_point
        _check_values(values, dtype, LARGEST_EXACT - 1 if whole else math.inf)
        if mask is not None:
            _check_count(_least_of_groups(mask, least), least, target, masked=True)
    found = rule(values, mask)
    return (found if mask is None else torch.where(mask, found, 0.0)).to(dtype)


Rule = Callable[[Tensor, Tensor | None], Tensor]


def _rule_for(target: object, n: int) -> tuple[Rule, int]:
    """Return the function that computes the weights, and the least number of samples per group.

    `n` is the number of samples per group, without regard to a mask.
    """
    if isinstance(target, Expectation) and target.samples is None:
        return _leave_one_out, 2
    if isinstance(target, BestOf):
        return lambda values, mask: best_of_weights(values, mask, target.k), max(2, target.k)
    if isinstance(target, ImportanceBound):
        if target.samples not in (None, n):
            raise ValueError(
                f"the samples argument of ImportanceBound must be the group size {n}, got "
                f"{target.samples}: write ImportanceBound() without samples"
            )
        return _bound, 1
    wanted = "Expectation(), BestOf(k) or ImportanceBound()"
    raise ValueError(f"target must be {wanted}, got {target!r}")


def _check_types(rewards: object, mask: object) -> None:
    """Raise unless rewards and mask are tensors of the right type and shape."""
    if not isinstance(rewards, Tensor):
        got = f"{type(rewards).__name__}: use torch.as_tensor"
        raise ValueError(f"rewards must be a tensor, got {got}")
    check_dense(rewards, "rewards")
    if rewards.ndim == 0 or rewards.is_complex():
        got = f"shape {list(rewards.shape)} and {rewards.dtype}"
        raise ValueError(f"rewards must be real numbers of shape [n, *groups], got {got}")
    if rewards.dtype.is_floating_point and rewards.dtype not in FLOATS:
        wanted = "float16, bfloat16, float32, float64 or integers"
        raise ValueError(f"rewards must be {wanted}, got {rewards.dtype}: call .float()")
    if mask is None:
        return
    wanted = f"a boolean tensor of the rewards' shape {list(rewards.shape)}"
    if not isinstance(mask, Tensor):
        raise ValueError(f"mask must be {wanted}, got {type(mask).__name__}")
    check_dense(mask, "mask")
    if mask.dtype != torch.bool or mask.shape != rewards.shape:
        raise ValueError(f"mask must be {wanted}, got {mask.dtype} {list(mask.shape)}")
    if mask.device != rewards.device:
        where = f"{rewards.device}, the device of the rewards"
        raise ValueError(f"mask must be on {where}, got {mask.device}")


def _check_values(values: Tensor, dtype: torch.dtype, most: float) -> None:
    """Raise if rewards are not finite, or so large that weights would overflow in `dtype`.

    `most` is a further limit for the magnitude of the rewards.
    """
    if not values.numel():
        return
    # Sums of n rewards, and the weights, must be finite.
    limit = min(torch.finfo(values.dtype).max / len(values), torch.finfo(dtype).max, most)
    low, high = (end.item() for end in values.aminmax())
    if not (high - low <= limit and -limit <= low and high <= limit):  # also rejects NaN
        _refuse(values, low, high, limit, dtype)


def _least_of_groups(mask: Tensor, least: int) -> int:
    """Return the number of samples in the smallest group that is not empty.

    If all groups are empty, return `least`.
    """
    sizes = mask.sum(0)
    return int(sizes.masked_fill(sizes == 0, least).min()) if sizes.numel() else least


def _check_count(fewest: int, least: int, target: object, *, masked: bool) -> None:
    """Raise if `fewest`, the size of the smallest group, is below `least`.

    `least` is the number of samples per group that the target needs.
    """
    if fewest < least:
        remedy = "draw more samples" + (", or mask out the whole group" if masked else "")
        raise ValueError(
            f"the {target} needs at least {least} samples per group, got {fewest}: {remedy}"
        )


def _refuse(values: Tensor, low: float, high: float, limit: float, dtype: torch.dtype) -> NoReturn:
    """Raise an error that explains why the weights would not be finite."""
    bad = values[~values.isfinite()]
    if len(bad):
        remedy = "correct the reward function, or exclude these samples with the mask argument"
        raise ValueError(f"rewards must be finite, got {bad[0].item()}: {remedy}")
    raise ValueError(
        f"rewards and their differences must be at most {limit:.3g} in magnitude for {dtype} and "
        f"{len(values)} samples, got {low:.3g} to {high:.3g}: divide the rewards by a constant"
    )


def _leave_one_out(rewards: Tensor, mask: Tensor | None) -> Tensor:
    # Subtract one reward, or a rough mean. Otherwise, a large common offset would cost digits.
    if mask is None:
        rewards, count = rewards - rewards[0], len(rewards)
        return (rewards - rewards.mean(0)) / (count - 1)
    sizes = mask.sum(0)
    counts = sizes.clamp(min=1)
    rewards = rewards - rewards.sum(0) / counts  # masked rewards are 0
    return (rewards - (rewards * mask).sum(0) / counts) / (sizes - 1).clamp(min=1)


def best_of_weights(rewards: Tensor, mask: Tensor | None, k: int) -> Tensor:
    """Return the weights `[n, *groups]` for the target `BestOf(k)`. The rewards are not checked."""
    if k == 1:
        return _leave_one_out(rewards, mask)
    # Sorting along the last axis is several times faster than along the first.
    rows = rewards.movedim(0, -1)
    if mask is not None:
        rows = torch.where(mask.movedim(0, -1), rows, torch.inf)
    ordered, ranks = rows.contiguous().sort(-1)
    rises = ordered.diff(dim=-1) * _shares(rewards, mask, k)
    if mask is not None:
        rises = torch.where(ordered[..., 1:].isfinite(), rises, 0.0)
    found = pad(rises.cumsum(-1), (1, 0))
    return found.scatter(-1, ranks, found).movedim(-1, 0)


def _shares(rewards: Tensor, mask: Tensor | None, k: int) -> Tensor:
    """Return the ratios C(t, k - 1) / C(s, k) for t = 1, ..., n - 1, where s is the group's size.

    C is the binomial coefficient. The result is `[n - 1]`. With a mask, groups have different
    sizes, and the result is `[*groups, n - 1]`.
    """
    n = len(rewards)
    ways = [math.comb(t, k - 1) for t in range(1, n)]
    if mask is None:
        return rewards.new_tensor([one / math.comb(n, k) for one in ways])
    # Binomial coefficients overflow, so logarithms are used. The relative error is about 1e-15.
    log_ways = [math.log(one) if one else -math.inf for one in ways]
    log_totals = [math.log(max(1, math.comb(size, k))) for size in range(n + 1)]
    numerator, denominator = (
        torch.tensor(logs, dtype=torch.float64, device=rewards.device)
        for logs in (log_ways, log_totals)
    )
    return (numerator - denominator[mask.sum(0)].unsqueeze(-1)).exp().to(rewards.dtype)


def _bound(log_weights: Tensor, mask: Tensor | None) -> Tensor:
    """Return VIMCO's weights `[n, *groups]` for the score part of the bound.

    The weight of a sample is the bound, minus the same bound with this sample's log-weight replaced
    by the mean log-weight of the other samples.
    """
    n = len(log_weights)
    present = torch.ones_like(log_weights, dtype=torch.bool) if mask is None else mask
    counts = present.sum(0)
    hidden = log_weights.masked_fill(~present, -torch.inf)
    # Subtract the largest log-weight. Otherwise, a large common offset would cost digits.
    top = torch.where(counts > 0, hidden.amax(0), 0.0)
    values, hidden = torch.where(present, log_weights - top, 0.0), hidden - top
    own = torch.eye(n, dtype=torch.bool, device=log_weights.device)
    own = own.reshape(n, n, *[1] * (log_weights.ndim - 1))
    guess = torch.where(own, 0.0, values).sum(1) / (counts - 1).clamp(min=1)
    without = torch.where(own, guess.unsqueeze(1), hidden).logsumexp(1)
    signal = hidden.logsumexp(0) - without
    # A single sample has no other samples for a baseline. It gets REINFORCE without a baseline.
    return torch.where(counts == 1, log_weights, signal)
