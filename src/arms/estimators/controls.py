"""The coefficient of a control variate, fitted from other rows of the batch."""

import torch
from torch import Tensor

from arms.arguments import at_least_float32
from arms.latents import Latent

PSEUDO_ROWS = 4
"""How many rows the prior counts for: with few of them, the ratio of two sums is noisier than a guess."""


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
    along, square = (_over_others(torch.where(finite, of_row, 0.0)) for of_row in (along, square))
    pseudo = PSEUDO_ROWS * square / (rows - 1)
    total = square + pseudo
    alpha = torch.where(total > 0, (along + prior * pseudo) / torch.where(total > 0, total, 1.0), prior)
    return estimate - latent.with_event_axes(alpha) * control


def _over_others(of_rows: Tensor) -> Tensor:
    """Return for each row the sum over the others, along the last axis."""
    return of_rows.sum(-1, keepdim=True) - of_rows
