r"""The multi-sample bound of Burda et al., and the algebra that its estimators share.

$$ L_K = E\Big[\log \frac1K \sum_{k=1}^K w(b_k)\Big] \le \log p(x), \quad w(b) = p(x, b) / q(b), \quad b_k \sim q $$

Write f_{-k}(b) for the logarithm with slot k replaced by b. The gradient has two parts,

$$ \nabla L_K = E\Big[\sum_k f_{-k}(b_k)\,\nabla \log q(b_k)\Big] + E\Big[\nabla \log \frac1K \sum_k w(b_k)\Big], $$

a sum (no mean) over slots of one-sample score-function gradients, which `combine` estimates, and the direct term
-sum_k w_k/(sum_l w_l) grad log q(b_k), which is autograd's through `value`, since log_weight contains log q. All that
a slot needs of the others is their log-sum-exp, taken over them alone: subtracting w_k from the total would lose
everything where w_k dominates.

The direct term is a score-function gradient of every slot too, so that both parts are one:

$$ \nabla L_K = E\Big[\sum_k h_{-k}(b_k)\,\nabla \log q(b_k)\Big], \qquad
   h_{-k}(b) = f_{-k}(b) - \frac{w(b)}{\sum_{l \ne k} w_l + w(b)} $$

A slot estimator of h_{-k} in place of f_{-k} is *folded*: it estimates the whole, and where it tries samples other than
the bound's own, the direct term's noise, which is not theirs, does not come on top. What autograd adds through `value`
all the same is taken off beforehand: `combine` returns the whole minus that, so that one contract serves every bound.
Reference: Burda, Grosse & Salakhutdinov, "Importance weighted autoencoders", ICLR 2016; folding: this project
(docs/bound.md).
"""

from abc import abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from arms.arguments import at_least_float32
from arms.estimators.base import Draw, Estimator
from arms.latents import Latent
from arms.targets import MultiSampleBound, Target


@dataclass(frozen=True)
class MultiSample(Estimator):
    """An estimator of the gradient of the K-sample bound; its objective is the log-weight, log p(x, b) - log q(b)."""

    @property
    @abstractmethod
    def bound_samples(self) -> int:
        """K: the bound is over the first K of the `num_samples` samples, which are independent."""

    @property
    def target(self) -> Target:
        return MultiSampleBound(self.bound_samples)


@dataclass(frozen=True)
class SlotEstimator(MultiSample):
    """Slot by slot an estimator of one-sample functions: of h_{-k}, or of f_{-k} where the direct term stays apart.

    Args:
        folded: Whether the direct term is folded into the slots; without, it is the form of the papers.
    """

    folded: bool = field(default=True, kw_only=True)

    @abstractmethod
    def combine_slots(self, draw: Draw, values: Tensor, slopes: Tensor | None) -> Tensor:
        """Return the sum over slots of the estimates for their functions, `replace_slots(..., folded)`."""

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        values = at_least_float32(values)
        found = self.combine_slots(draw, values, slopes)
        if not self.folded:
            return found
        bound = self.bound_samples
        return found - direct_term(draw.latent, draw.points[:bound], values[:bound].softmax(0))


def direct_term(latent: Latent, samples: Tensor, shares: Tensor) -> Tensor:
    """Return the direct term `[*batch, *event]`, -sum_k share_k grad log q(b_k).

    Args:
        latent: What was drawn.
        samples: `[K, *batch, *event]`.
        shares: `[K, *batch]`, the bound's derivative with respect to each log-weight: w_k / sum_l w_l.
    """
    return -(latent.with_event_axes(shares) * latent.score(samples)).sum(0)


def others_of_each(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return what each slot sees of the others: the largest, `[K, *batch]`, and all relative to it, `[K, K, *batch]`.

    A slot does not see itself: -inf. Kept apart, neither loses digits to the other. Where there are no others, or none
    that is possible, the largest is 0.

    >>> others_of_each(torch.tensor([10_000.0, 1.0, 0.0]))[0]
    tensor([1.0000e+00, 1.0000e+04, 1.0000e+04])
    """
    table = torch.where(diagonal_mask(values), -torch.inf, values.unsqueeze(0))
    top = table.amax(1)
    top = torch.where(top > -torch.inf, top, 0.0)
    return top, table - top.unsqueeze(1)


def diagonal_mask(values: Tensor) -> Tensor:
    """Return the diagonal `[K, K, 1, ...]` of the table of all slots against all samples."""
    count = len(values)
    return torch.eye(count, dtype=torch.bool, device=values.device).view(count, count, *[1] * (values.ndim - 1))


def replace_slots(others: Tensor, candidates: Tensor, folded: bool = False) -> Tensor:
    """Return f_{-k}, or h_{-k} if `folded`, at each candidate, `[m, K, *batch]`, up to a constant of each slot.

    Only differences have meaning. `others` `[K, K, *batch]` and `candidates` `[m, K, *batch]` are log-weights relative
    to the slot's top. What the others sum up to is taken out of each slot, so that differences far below one keep
    their digits too.
    """
    some, relative = _relative(others, candidates)
    bounds = nn.functional.softplus(relative, threshold=40)  # e^-40: nothing, in float64 too
    if folded:
        bounds = bounds - torch.sigmoid(relative)
    return torch.where(some, bounds, relative)  # alone in the bound, a sample's share is 1 whatever it is: a constant


def slot_shares(others: Tensor, candidates: Tensor) -> Tensor:
    """Return the share of each candidate in the bound with it in slot k, w(b) / (sum_{l != k} w_l + w(b))."""
    some, relative = _relative(others, candidates)
    return torch.where(some, torch.sigmoid(relative), torch.ones_like(relative))


def _relative(others: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """Return in which slots there are others at all, and the candidates relative to what these sum up to."""
    rest = others.exp().sum(1).log()
    some = rest != -torch.inf  # NaN too, which must not be lost
    return some, candidates - torch.where(some, rest, 0.0)
