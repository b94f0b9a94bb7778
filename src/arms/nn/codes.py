"""Discrete codes of tokens, for tokenizers and discrete autoencoders."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, one_hot

from arms.arguments import as_count
from arms.estimators import Estimator
from arms.latents import Bits, OneHot
from arms.nn.checks import as_indices, check_estimator, with_rows
from arms.sites import sample


class Codes(nn.Module):
    """A discrete code for each token: several bits, or one category of a codebook.

    In evaluation mode, each token gets its most likely code.

    Args:
        dim: The length of a token's input vector, which is also the length of its code vector.
        bits: The number of bits per token, at most 62. Pass either `bits` or `categories`.
        categories: The number of vectors in the codebook.
        estimator: A biased estimator, such as "reinmax", to train without a block of
            `arms.sampling`.

    >>> codes = Codes(32, bits=8).eval()
    >>> vectors, indices, loss = codes(torch.randn(5, 49, 32))
    >>> vectors.shape, indices.shape, loss.shape
    (torch.Size([5, 49, 32]), torch.Size([5, 49]), torch.Size([5]))
    """

    def __init__(
        self,
        dim: int,
        bits: int | None = None,
        categories: int | None = None,
        estimator: str | Estimator | None = None,
    ) -> None:
        super().__init__()
        if (bits is None) == (categories is None):
            got = f"bits={bits} and categories={categories}"
            raise ValueError(f"Codes needs exactly one of bits and categories, got {got}")
        if bits is not None and as_count(bits, 1, "bits") > 62:
            raise ValueError(f"bits must be at most 62, got {bits}: use several Codes modules")
        size = as_count(categories, 2, "categories") if bits is None else bits
        self.bits, self.estimator = bits, estimator
        check_estimator(estimator, (Bits if bits else OneHot)(torch.zeros(1, 1, size)))
        self.to_logits, self.codebook = nn.Linear(dim, size), nn.Linear(size, dim, bias=bool(bits))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return code vectors `[rows, ..., dim]`, code indices `[rows, ...]` and a loss `[rows]`.

        The loss is KL(q | uniform) in nats, summed over the tokens of a row, where q is the
        distribution of a token's code. If you add this loss to your own loss with a small weight,
        all codes remain in use.

        Args:
            x: Tokens `[rows, ..., dim]`. In a block of `arms.sampling`, if x has B rows and was not
                repeated, the vectors and the indices have n * B rows, and the loss has B rows.
        """
        logits = self.to_logits(with_rows(x, self.to_logits.in_features))
        if self.bits is not None:
            code = sample(logits, self.estimator) if self.training else (logits > 0).to(x.dtype)
            places = torch.arange(self.bits, device=x.device)
            indices = ((code.detach() > 0.5).long() << places).sum(-1)
            both = torch.stack([logits, -logits])
            entropy = -(torch.sigmoid(both) * logsigmoid(both)).sum((0, -1))
            vectors, most = self.codebook(2 * code - 1), self.bits * math.log(2)
        else:
            code = one_hot(logits.argmax(-1), logits.shape[-1]).to(x.dtype)
            code = sample(OneHot(logits), self.estimator) if self.training else code
            indices, vectors, most = code.argmax(-1), self.codebook(code), math.log(code.shape[-1])
            log_p = logits.log_softmax(-1)
            entropy = -(log_p.exp() * log_p).sum(-1)
        return vectors, indices, (most - entropy).unsqueeze(-1).flatten(1).sum(-1)

    def vectors(self, indices: Tensor) -> Tensor:
        """Return the code vectors `[..., dim]` for indices `[...]`."""
        indices = as_indices(indices, 2**self.bits if self.bits else self.codebook.in_features)
        if self.bits is None:
            return self.codebook.weight.T[indices]
        bits = indices.unsqueeze(-1) >> torch.arange(self.bits, device=indices.device) & 1
        return torch.as_tensor(self.codebook(2 * bits.to(self.codebook.weight.dtype) - 1))
