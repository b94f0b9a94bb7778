"""Coefficients of control variates, fitted on the other rows of the batch."""

from typing import Literal

import torch
from torch import Tensor

from arms.arguments import at_least_float32
from arms.latents import Latent

PSEUDO_ROWS = 4  # that the prior counts for: with few rows, a ratio of sums is noisy
SHORT = 128  # the longest axis along which sums of others are computed as a matrix product


def subtract_fitted_control(
    latent: Latent, estimate: Tensor, control: Tensor, prior: float
) -> Tensor:
    r"""Return estimate - alpha control, where the other rows choose each row's alpha.

    $$ \alpha_x = \frac{\sum_{y \ne x} N_y + L\,\alpha_0\,\bar M}
                     {\sum_{y \ne x} M_y + L\,\bar M}, \qquad
       N = \langle \text{estimate}, \text{control} \rangle, \quad
       M = \langle \text{control}, \text{control} \rangle $$

    N and M are sums over the event axes, and M-bar is the mean of M over the other rows. This
    estimates the coefficient with the least variance, shrunk towards alpha_0, the `prior`, as by L
    more rows. The result is unbiased if the control has mean zero, because rows (of the last batch
    axis) are independent, and so is alpha_x of what it multiplies.
    """
    estimate, control = at_least_float32(estimate), at_least_float32(control)
    batch = latent.batch_shape
    rows = batch[-1] if batch else 1
    if rows == 1:
        return estimate - prior * control
    along, square = latent.sum_event(estimate * control), latent.sum_event(control.square())
    finite = along.isfinite() & square.isfinite()  # a row of NaN must not spoil the others
    along = sum_of_others(torch.where(finite, along, 0.0), -1)
    square = sum_of_others(torch.where(finite, square, 0.0), -1)
    pseudo = PSEUDO_ROWS * square / (rows - 1)
    total = square + pseudo
    fitted = (along + prior * pseudo) / torch.where(total > 0, total, 1.0)
    alpha = torch.where(total > 0, fitted, prior)
    return estimate - latent.with_event_axes(alpha) * control


def fit_two_controls(
    latent: Latent, estimate: Tensor, first: Tensor, second: Tensor
) -> tuple[Tensor, Tensor]:
    """Return for each row the coefficients of two controls, fitted together on the other rows.

    They minimize the squared norm of estimate - one first - other second over the other rows and
    `PSEUDO_ROWS` more in which the controls are as large, and explain nothing. They are 0 if there
    are no other rows. Both are `[*batch]` with trailing axes, to multiply controls.
    """
    rows = latent.batch_shape[-1] if latent.batch_shape else 1
    if rows == 1:
        zero = latent.with_event_axes(latent.sum_event(torch.zeros_like(estimate)))
        return zero, zero

    def over_others(one: Tensor, other: Tensor) -> Tensor:
        along = latent.sum_event(one * other)
        return sum_of_others(torch.where(along.isfinite(), along, 0.0), -1)

    ridge = 1 + PSEUDO_ROWS / (rows - 1)
    sizes = [(ridge * over_others(one, one)).sqrt() for one in (first, second)]
    scale = [torch.where(size > 0, 1 / size, 0.0) for size in sizes]
    # In units of each control's size, where the determinant is never small.
    along = [
        over_others(estimate, one) * by for one, by in zip((first, second), scale, strict=True)
    ]
    shared = over_others(first, second) * scale[0] * scale[1]
    determinant = 1 - shared.square()
    one = (along[0] - shared * along[1]) * scale[0] / determinant
    other = (along[1] - shared * along[0]) * scale[1] / determinant
    return latent.with_event_axes(one), latent.with_event_axes(other)


def sum_of_others(tensor: Tensor, dim: Literal[0, -1]) -> Tensor:
    """Return for each entry along the first or the last axis the sum of all the others.

    No entry is ever subtracted from a total: its rounding error would stay behind.

    >>> sum_of_others(torch.tensor([1.0, 2e-8, 2e-8]), 0)
    tensor([4.0000e-08, 1.0000e+00, 1.0000e+00])
    """
    length = tensor.shape[dim]
    if length <= SHORT:  # a product with a zero diagonal, which is faster than cumulative sums
        others = 1 - torch.eye(length, dtype=tensor.dtype, device=tensor.device)
        if dim == -1:
            return tensor @ others
        return (others @ tensor.reshape(length, -1)).view_as(tensor)
    edge = torch.zeros_like(tensor.narrow(dim, 0, 1))
    before = torch.cat([edge, tensor.narrow(dim, 0, length - 1).cumsum(dim)], dim)
    after = torch.cat([edge, tensor.narrow(dim, 1, length - 1).flip(dim).cumsum(dim)], dim)
    return before + after.flip(dim)
