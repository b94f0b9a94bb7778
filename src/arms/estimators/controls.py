"""The coefficient of a control variate, fitted from the other rows of the batch, and sums that leave one out."""

from typing import Literal

import torch
from torch import Tensor

from arms.arguments import at_least_float32
from arms.latents import Latent

PSEUDO_ROWS = 4
"""How many rows the prior counts for: with few of them, the ratio of two sums is noisier than a guess."""
SHORT = 128
"""The longest axis along which sums of others are a matrix product."""


def fitted(latent: Latent, estimate: Tensor, control: Tensor, prior: float) -> Tensor:
    r"""Return estimate - alpha control, with an alpha for each row that the other rows have chosen.

    $$ \alpha_x = \frac{\sum_{y \ne x} N_y + L\,\alpha_0\,\bar M}{\sum_{y \ne x} M_y + L\,\bar M}, \qquad
       N = \langle \text{estimate}, \text{control} \rangle, \quad M = \langle \text{control}, \text{control} \rangle $$

    with sums over the event axes in N and M, and the mean of M over the other rows. For a control of mean zero that is
    the coefficient of least variance, estimated, and drawn towards alpha_0 as by L more rows.

    Exactly unbiased if the control has mean zero: rows of a batch are independent draws and an objective acts row by
    row, so that alpha_x, made of the others, is independent of what it multiplies. Rows are those of the last batch
    axis; entries of earlier axes, replicas say, do not see each other.

    Args:
        latent: Whose axes are meant.
        estimate: `[*batch, *event]`.
        control: `[*batch, *event]`, of mean zero.
        prior: alpha_0; alpha itself where there is no other row, or where the control is zero in all of them.
    """
    estimate, control = at_least_float32(estimate), at_least_float32(control)
    rows = latent.batch_shape[-1] if latent.batch_shape else 1
    if rows == 1:
        return estimate - prior * control
    along, square = latent.sum_event(estimate * control), latent.sum_event(control.square())
    finite = along.isfinite() & square.isfinite()  # a row that is lost must not take the others with it
    along, square = (sum_of_others(torch.where(finite, of_row, 0.0), -1) for of_row in (along, square))
    pseudo = PSEUDO_ROWS * square / (rows - 1)
    total = square + pseudo
    alpha = torch.where(total > 0, (along + prior * pseudo) / torch.where(total > 0, total, 1.0), prior)
    return estimate - latent.with_event_axes(alpha) * control


def sum_of_others(tensor: Tensor, dim: Literal[0, -1]) -> Tensor:
    """Return for each entry along the first or the last axis the sum of all the others.

    No entry is ever subtracted from a total: its rounding error would stay behind, and where the others are much
    smaller, the result would depend on the entry itself.

    >>> sum_of_others(torch.tensor([1.0, 2e-8, 2e-8]), 0)
    tensor([4.0000e-08, 1.0000e+00, 1.0000e+00])
    """
    length = tensor.shape[dim]
    if length <= SHORT:  # a product with a zero diagonal, which is faster than cumulative sums
        others = 1 - torch.eye(length, dtype=tensor.dtype, device=tensor.device)
        return tensor @ others if dim == -1 else (others @ tensor.reshape(length, -1)).view_as(tensor)
    edge = torch.zeros_like(tensor.narrow(dim, 0, 1))
    before = torch.cat([edge, tensor.narrow(dim, 0, length - 1).cumsum(dim)], dim)
    after = torch.cat([edge, tensor.narrow(dim, 1, length - 1).flip(dim).cumsum(dim)], dim).flip(dim)
    return before + after
