"""Checks that several modules use."""

import torch
from torch import Tensor

from arms.arguments import true_or_unreadable
from arms.estimators import Estimator
from arms.latents import Latent
from arms.sites import drop_in


def check_estimator(estimator: str | Estimator | None, latent: Latent) -> None:
    """Raise unless `estimator` is None, or a biased estimator that can draw `latent`."""
    if estimator is not None:
        drop_in(estimator, latent)


def with_rows(x: Tensor, dim: int) -> Tensor:
    """Return `x`. Raise unless its shape is `[rows, ..., dim]`."""
    if x.ndim < 2 or x.shape[-1] != dim:
        hint = ": call .unsqueeze(0) if it is a single row" if x.ndim == 1 else ""
        raise ValueError(f"x must have shape [rows, ..., {dim}], got {list(x.shape)}{hint}")
    return x


def as_indices(indices: Tensor, size: int) -> Tensor:
    """Return `indices` as int64. Raise unless they are integers from 0 to `size` - 1."""
    whole = not (indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool)
    found = indices.long() if whole else indices
    if not whole or not true_or_unreadable(((found >= 0) & (found < size)).all()):
        raise ValueError(
            f"indices must be integers from 0 to {size - 1}, got {indices.flatten()[:8].tolist()}"
        )
    return found
