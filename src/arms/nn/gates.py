"""Gates that switch channels or units of a network on or off."""

import torch
from torch import Tensor, nn

from arms.arguments import as_count
from arms.estimators import Estimator
from arms.latents import Bits
from arms.nn.checks import check_estimator
from arms.sites import sample


class Gates(nn.Module):
    """Gates along one axis of the input. A closed gate sets all entries at its index to zero.

    Each gate is open with probability sigmoid(logit). In training, gates are drawn for every row.
    In evaluation mode, the gates with a positive logit are open. Add `price()` to your loss, with a
    small weight, to close gates that are not needed. This is an L0 regularizer.

    Args:
        size: The number of gates, which is the length of the axis.
        dim: The axis of the input that has the gates; 1 for channels.
        initial: The initial logit of every gate; with 2, a gate is open with probability 88 %.
        estimator: A biased estimator, such as "reinmax", to train without a block of
            `arms.sampling`.

    >>> gates = Gates(16)
    >>> with torch.no_grad():
    ...     gates(torch.ones(5, 16, 7, 7)).shape
    torch.Size([5, 16, 7, 7])
    """

    def __init__(
        self,
        size: int,
        dim: int = 1,
        initial: float = 2.0,
        estimator: str | Estimator | None = None,
    ) -> None:
        super().__init__()
        self.dim, self.estimator = as_count(dim, 1, "dim"), estimator
        check_estimator(estimator, Bits(torch.zeros(1, 1)))
        self.logits = nn.Parameter(torch.full((as_count(size, 1, "size"),), float(initial)))

    def forward(self, x: Tensor) -> Tensor:
        """Return x, multiplied by 1 at open gates and by 0 at closed gates.

        In a block of `arms.sampling`, if x has not been repeated, the result has n copies of each
        row.
        """
        size = len(self.logits)
        if x.ndim <= self.dim or x.shape[self.dim] != size:
            wanted = f"Gates({size}, dim={self.dim}) needs an input of length {size} on axis"
            raise ValueError(f"{wanted} {self.dim}, got shape {list(x.shape)}")
        if not self.training:
            return x * self._along(self.is_open().to(x.dtype).unsqueeze(0), x.ndim)
        gates = sample(self.logits.expand(len(x), -1), self.estimator)
        if len(gates) != len(x):
            x = torch.cat([x] * (len(gates) // len(x)))
        return x * self._along(gates.to(x.dtype), x.ndim)

    def price(self) -> Tensor:
        """Return the expected number of open gates. Its gradient is exact, not estimated."""
        return torch.sigmoid(self.logits).sum()

    def is_open(self) -> Tensor:
        """Return a mask `[size]` of the gates that are open in evaluation mode."""
        return self.logits.detach() > 0

    def extra_repr(self) -> str:
        return f"{len(self.logits)}, dim={self.dim}, estimator={self.estimator!r}"

    def _along(self, gates: Tensor, axes: int) -> Tensor:
        """Reshape gates `[rows, size]`, to multiply them with an input that has `axes` axes."""
        return gates.view(len(gates), *[1] * (self.dim - 1), -1, *[1] * (axes - self.dim - 1))
