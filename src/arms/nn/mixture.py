"""Mixtures of experts. Each expert is evaluated only on the rows that chose this expert."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def mixture(mask: Tensor, x: Tensor, experts: Sequence[nn.Module], k: int) -> Tensor:
    """Return, for each row, the mean output of the k experts that `mask` chooses in this row.

    `Router.mix` explains the arguments.
    """
    axes, given = mask.shape[:-1], x.shape[: mask.ndim - 1]
    copies = max(1, axes[0] // max(1, given[0])) if axes and given else 1
    repeated = (copies * given[0], *given[1:]) if given else ()
    if not axes or axes != repeated or len(experts) != mask.shape[-1]:
        got = f"a mask {list(mask.shape)}, x {list(x.shape)} and {len(experts)} experts"
        raise ValueError(
            "mix needs a mask [rows, ..., experts] and x [rows, ..., *shape] with the same "
            f"leading axes, got {got}: pass the mask that the router returned for x, and one "
            "module for each expert"
        )
    x = (x if copies == 1 else torch.cat([x] * copies)).flatten(0, len(axes) - 1)
    mask = mask.flatten(0, -2)
    out: Tensor | None = None
    for weight, expert in zip(mask.unbind(-1), experts, strict=True):
        # The gradient with respect to the mask needs the outputs of all experts.
        rows = (torch.ones_like(weight) if mask.requires_grad else weight).nonzero().squeeze(-1)
        found = expert(x[rows])
        scale = (weight[rows] / k).view(-1, *[1] * (found.ndim - 1)).to(found.dtype)
        out = found.new_zeros(len(mask), *found.shape[1:]) if out is None else out
        out = out.index_add(0, rows, found * scale)
    assert out is not None
    return torch.unflatten(out, 0, axes)
