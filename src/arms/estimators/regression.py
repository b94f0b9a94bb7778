"""Coefficients of control variates. Each row's coefficients are fitted on the other rows."""

from typing import Literal

import torch
from torch import Tensor

from arms.arguments import at_least_float32
from arms.latents import Latent

PSEUDO_ROWS = 4  # the prior counts as this many rows, because a fit on few rows is noisy
NEGLIGIBLE = 1e-6  # a control with a smaller share of the estimate's square may be rounding error
SHORT = 128  # the longest axis on which `sum_of_others` uses a matrix product


def subtract_fitted_control(
    latent: Latent, estimate: Tensor, control: Tensor, prior: float
) -> Tensor:
    r"""Subtract a control variate from an estimate, and return the difference.

    The result is `estimate` - alpha `control`, `[*batch, *event]`. Each row has its own
    coefficient alpha, which is fitted on the other rows:

    $$ \alpha_x = \frac{\sum_{y \ne x} N_y + L\,\alpha_0\,\bar M}
                     {\sum_{y \ne x} M_y + L\,\bar M}, \qquad
       N = \langle \text{estimate}, \text{control} \rangle, \quad
       M = \langle \text{control}, \text{control} \rangle $$

    N and M are sums over the event axes, and M-bar is the mean of M over the other rows. With
    L = 0, alpha_x would estimate the coefficient that gives the least variance. With L > 0, alpha_x
    is shrunk towards alpha_0, the argument `prior`, which counts as L rows. Here L is
    `PSEUDO_ROWS`. Rows with a negligible control are ignored. Rows are the entries of the last
    batch axis. They are independent, and alpha_x does not depend on row x, so the result is
    unbiased if the control has mean zero.
    """
    estimate, control = at_least_float32(estimate), at_least_float32(control)
    batch = latent.batch_shape
    rows = batch[-1] if batch else 1
    if rows == 1:
        return estimate - prior * control
    along, square = latent.sum_event(estimate * control), latent.sum_event(control.square())
    fits = square > NEGLIGIBLE * latent.sum_event(estimate.square())
    fits &= along.isfinite() & square.isfinite()  # NaN in one row must not affect the others
    along = sum_of_others(torch.where(fits, along, 0.0), -1)
    square = sum_of_others(torch.where(fits, square, 0.0), -1)
    pseudo = PSEUDO_ROWS * square / (rows - 1)
    total = square + pseudo
    fitted = (along + prior * pseudo) / torch.where(total > 0, total, 1.0)
    alpha = torch.where(total > 0, fitted, prior)
    return estimate - latent.with_event_axes(alpha) * control


def fit_two_controls(
    latent: Latent, estimate: Tensor, first: Tensor, second: Tensor
) -> tuple[Tensor, Tensor]:
    """Return two coefficients per row: of the control `first`, and of the control `second`.

    Each row's coefficients x and y are fitted on the other rows. They minimize the squared norm of
    `estimate` - x `first` - y `second`, summed over the other rows and an artificial row. The
    artificial row has controls of average size and estimate 0, so it shrinks the coefficients. It
    counts as half a row, or as 4 / d^2 rows if this is more, where d is the number of logits per
    row. Rows with few logits contain little information. The weight of a row is the square root of
    its estimate's norm, because few rows cause most of the variance if the tails are heavy. Rows
    with estimate 0 therefore have weight 0. If all other rows have the estimate 0, x is 0, and y is
    nearly 1. Both results have the shape `[*batch]`, followed by one axis of length one per event
    axis.
    """
    batch = latent.batch_shape or (1,)
    products = products_of_controls(latent, estimate, first, second).view(*batch, 6)
    products = sum_of_others(products.nan_to_num_(0.0, 0.0, 0.0), -2)
    return coefficients_of_controls(latent, products)


def products_of_controls(latent: Latent, estimate: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return six inner products per row, `[*batch, 6]`, which `fit_two_controls` needs.

    The first three are the products of `first` with `first`, `second` and `estimate`. The last
    three are the products of `second` with the same three tensors. Each product is multiplied by
    the weight of its row. Products with a control that is negligible in a row are 0 in that row.
    """
    axes = len(latent.batch_shape)
    every = torch.stack([first, second, estimate], axes).flatten(axes + 1)
    products = every @ every.mT  # [*batch, 3, 3]
    squares = products.flatten(-2)[..., ::4]  # `diagonal` of a product fails to compile for GPUs
    counts = (squares > NEGLIGIBLE * squares[..., 2:]).to(products.dtype)
    products = products * counts.unsqueeze(-1) * counts.unsqueeze(-2)
    size = products[..., 2, 2, None].pow(0.25)
    return products[..., :2, :].flatten(-2) * size


def coefficients_of_controls(latent: Latent, products: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two coefficients that `fit_two_controls` returns.

    `products` `[*batch, 6]` contains, for each row, the sum of the results of
    `products_of_controls` over the other rows. This tensor is modified in place.
    """
    rows = latent.batch_shape[-1] if latent.batch_shape else 1
    pseudo = max(0.5, 4 / max(1, latent.event_shape.numel()) ** 2) / max(1, rows - 1)
    # This number is so small that it matters only if all other rows have the estimate 0.
    products.narrow(-1, 4, 2).add_(torch.finfo(products.dtype).tiny)
    sizes = products[..., ::4].view(*latent.batch_shape, 2) * (1 + pseudo)
    products = products.view(*latent.batch_shape, 2, 3)
    # Divide by the size of each control, so that the determinant is never small. 0/0 becomes 0.
    scaled = (products / sizes.unsqueeze(-1)).nan_to_num_(0.0, 0.0, 0.0)
    _, shared, one, back, _, other = scaled.flatten(-2).unbind(-1)
    rest = 1 - shared * back
    first = torch.addcmul(one, shared, other, value=-1).div_(rest)
    second = torch.addcmul(other, back, one, value=-1).div_(rest)
    return latent.with_event_axes(first), latent.with_event_axes(second)


def sum_of_others(tensor: Tensor, dim: Literal[0, -2, -1]) -> Tensor:
    """Return, for each entry along an axis, the sum of all other entries.

    The sum is not computed as the total minus the entry, because this would contain the rounding
    error of the total.

    >>> sum_of_others(torch.tensor([1.0, 2e-8, 2e-8]), 0)
    tensor([4.0000e-08, 1.0000e+00, 1.0000e+00])
    """
    length = tensor.shape[dim]
    if length <= SHORT:  # a matrix with zero diagonal is faster here than cumulative sums
        others = 1 - torch.eye(length, dtype=tensor.dtype, device=tensor.device)
        if dim == -1:
            return tensor @ others
        if dim == -2:
            return others @ tensor
        return (others @ tensor.reshape(length, -1)).view_as(tensor)
    edge = torch.zeros_like(tensor.narrow(dim, 0, 1))
    before = torch.cat([edge, tensor.narrow(dim, 0, length - 1).cumsum(dim)], dim)
    after = torch.cat([edge, tensor.narrow(dim, 1, length - 1).flip(dim).cumsum(dim)], dim)
    return before + after.flip(dim)
