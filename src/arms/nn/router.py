"""A router that sends every row or token to k of several experts."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from arms.arguments import as_count
from arms.estimators import Estimator
from arms.latents import Latent, OneHot, Subset
from arms.nn.checks import check_estimator, with_rows
from arms.nn.mixture import mixture
from arms.sites import sample


class Router(nn.Module):
    """Choose one expert by a softmax, or k experts by `arms.Subset`, for each row or token.

    In evaluation mode, the k experts with the largest logits are chosen. The buffer `load` contains
    each expert's share of all choices in the last call. This buffer is not part of the state_dict.

    Args:
        dim: The size of the last axis of x.
        experts: The number of experts.
        k: The number of experts to choose.
        estimator: A biased estimator, such as "reinmax", to train without a block of
            `arms.sampling`. In this case, `mix` evaluates all experts on all rows.

    >>> router = Router(8, experts=4, k=2).eval()
    >>> mask, loss = router(torch.randn(5, 8))
    >>> mask.sum(-1), round(router.load.sum().item(), 3)
    (tensor([2., 2., 2., 2., 2.]), 1.0)
    """

    load: Tensor

    def __init__(
        self, dim: int, experts: int, k: int = 1, estimator: str | Estimator | None = None
    ) -> None:
        super().__init__()
        self.k, self.estimator = as_count(k, 1, "k"), estimator
        if self.k > as_count(experts, 2, "experts"):
            raise ValueError(f"k must be at most {experts}, the number of experts, got {k}")
        check_estimator(estimator, self._latent(torch.zeros(1, 1, experts)))
        self.to_logits = nn.Linear(dim, experts)
        self.register_buffer("load", torch.full((experts,), 1 / experts), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return a k-hot mask of the chosen experts `[rows, ..., experts]`, and a scalar loss.

        The loss balances the load: it is 1 if all experts are used equally.

        Args:
            x: `[rows, ..., dim]`. In a block of `arms.sampling`, if x has B rows and was not
                repeated, the mask has n * B rows.
        """
        logits = self.to_logits(with_rows(x, self.to_logits.in_features))
        size = logits.shape[-1]
        if self.training:
            mask = sample(self._latent(logits), self.estimator)
        else:
            mask = one_hot(logits.topk(self.k, -1).indices, size).sum(-2).to(x.dtype)
        if not mask.numel():
            return mask, 1 + logits.sum()  # no rows: the loss has a graph, the load is unchanged
        self.load = mask.detach().flatten(0, -2).mean(0) / self.k
        share = torch.softmax(logits, -1).flatten(0, -2).mean(0)
        return mask, size * (self.load * share).sum()

    def _latent(self, logits: Tensor) -> Latent:
        return OneHot(logits) if self.k == 1 else Subset(logits, self.k)

    def mix(self, mask: Tensor, x: Tensor, experts: Sequence[nn.Module]) -> Tensor:
        """Return the mean output of the chosen experts, `[rows, ..., *output]`.

        Each expert is evaluated only on the rows that chose it. If the mask requires a gradient,
        all experts are evaluated on all rows.

        Args:
            mask: The mask `[rows, ..., experts]` that `forward` returned for x, or for n copies of
                x.
            x: `[rows, ..., *shape]`, with the same leading axes as the mask.
            experts: One module per expert. Each maps `[m, *shape]` to `[m, *output]`, and all
                experts have the same output shape.
        """
        return mixture(mask, x, experts, self.k)
