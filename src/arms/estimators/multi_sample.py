r"""The multi-sample bound of Burda et al., and the algebra that its estimators share.

$$ L_K = E\Big[\log \frac1K \sum_{k=1}^K w(b_k)\Big] \le \log p(x), \quad w(b) = p(x, b) / q(b), \quad b_k \sim q $$

Write f_{-k}(b) for the logarithm with slot k replaced by b. The gradient has two parts,

$$ \nabla L_K = E\Big[\sum_k f_{-k}(b_k)\,\nabla \log q(b_k)\Big] + E\Big[\nabla \log \frac1K \sum_k w(b_k)\Big], $$

a sum (no mean) over slots of one-sample score-function gradients, which `combine` estimates, and the direct term
-sum_k w_k/(sum_l w_l) grad log q(b_k), which is autograd's through `value`, since log_weight contains log q. All that
a slot needs of the others is their log-sum-exp, taken over them alone: subtracting w_k from the total would lose
everything where w_k dominates.
Reference: Burda, Grosse & Salakhutdinov, "Importance weighted autoencoders", ICLR 2016.
"""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from arms.estimators.base import Estimator
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


def replace_slots(others: Tensor, candidates: Tensor) -> Tensor:
    """Return f_{-k} at each candidate, `[m, K, *batch]`, up to a constant of each slot: only differences have meaning.

    `others` `[K, K, *batch]` and `candidates` `[m, K, *batch]` are log-weights relative to the slot's top. What the
    others sum up to is taken out of each slot, so that differences far below one keep their digits too.
    """
    rest = others.exp().sum(1).log()
    some = rest != -torch.inf  # NaN too, which must not be lost
    relative = candidates - torch.where(some, rest, 0.0)
    return torch.where(some, nn.functional.softplus(relative, threshold=40), relative)  # e^-40: nothing, in float64 too
