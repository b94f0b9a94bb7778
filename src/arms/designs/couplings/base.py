r"""The contract of a coupling: n exchangeable samples, as negatively correlated as possible.

An estimator needs two things: samples, and what undoes their dependence. For bits, it is the factor

$$ \frac{1}{1-\rho} = \frac{q(1-q)}{P_{10}}, \quad P_{10} = P(b_i = 1, b_j = 0), \quad
   q = \min(p, 1-p). $$

Everything is computed at q <= 1/2, and the bits are flipped where p > 1/2. The distribution is
symmetric in p <-> 1-p, so no logit, however large, cancels or overflows.

For categories it is a matrix. With Q_ab = P(z_i = a, z_j = b), the leave-one-out sum r of
exchangeable samples has expectation (diag p - Q) F, where the gradient is (diag p - p p') F and
F_a = E[f | z = a]. So

$$ g = p \circ (I - T + 1 p')^{-1} (r / p), \quad T_{ab} = Q_{ab} / p_a, $$

is unbiased if the pairs connect all categories. With two of them the matrix is 1/(1 - rho).
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.random import indicator


class Coupling:
    """n exchangeable samples of every variable: a `BitCoupling`, a `CategoryCoupling`, or both."""

    even_samples: ClassVar[bool] = False  # whether the number of samples must be even


class BitCoupling(Coupling, ABC):
    """A coupling of bits, undone by one factor per latent."""

    @abstractmethod
    def sample_bits(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        """Draw n coupled samples `[n, *batch, d]` in the dtype of the logits, detached."""

    def debias(self, logits: Tensor, n: int) -> Tensor:
        """Return 1/(1 - rho) for every latent, finite at every logit."""
        raise NotImplementedError(f"{type(self).__name__} must define debias or undo_bits")

    def count_distribution(self, logits: Tensor, n: int) -> Tensor | None:
        """Return P(b_1 + ... + b_n = s) `[n + 1, *logits.shape]` in float64, None if unknown."""
        return None

    def correlation(self, logits: Tensor, n: int) -> Tensor:
        """Return rho, the common correlation of two of the n samples."""
        return 1 - 1 / self.debias(logits, n)

    def undo_bits(self, logits: Tensor, n: int, grad: Tensor) -> Tensor:
        """Turn the leave-one-out estimate over coupled bits into an unbiased gradient."""
        debias = self.debias(at_least_float32(logits), n)
        wanted, got = list(logits.shape), list(debias.shape)
        if got != wanted:
            raise ValueError(f"debias of {self!r} must return shape {wanted}, got {got}")
        return grad * debias


class CategoryCoupling(Coupling, ABC):
    """A coupling of choices among K categories."""

    @abstractmethod
    def sample_categories(
        self, logits: Tensor, n: int, generator: Generator | None = None
    ) -> Tensor:
        """Draw n coupled one-hot samples `[n, *batch, d, K]` in the dtype of the logits."""

    @abstractmethod
    def undo_categories(self, logits: Tensor, n: int, grad: Tensor) -> Tensor:
        """Turn the leave-one-out estimate `[*batch, d, K]` into an unbiased gradient."""

    def category_probabilities(self, probs: list[float], n: int) -> list[float] | None:
        """Return P of every n-tuple of categories, the last changing fastest; None if unknown."""
        return None


def undo_pairs(logits: Tensor, pair_distribution: Tensor, r: Tensor) -> Tensor:
    """Return p (I - T + 1 p')^-1 (r / p) for the distribution of a pair `[*batch, d, K, K]`."""
    # With sqrt(p) on either side, the matrix is close to the identity, however small p is.
    side = torch.softmax(logits.detach().to(pair_distribution.dtype), -1).sqrt()
    sides = side.unsqueeze(-1) * side.unsqueeze(-2)
    possible = sides > 0
    ratio = torch.where(possible, pair_distribution / torch.where(possible, sides, 1.0), 0.0)
    matrix = torch.eye(r.shape[-1], dtype=side.dtype, device=side.device) - ratio + sides
    right = torch.where(side > 0, r.to(side.dtype) / torch.where(side > 0, side, 1.0), 0.0)
    found: Tensor = torch.linalg.solve(matrix, right)
    return (side * found).to(r.dtype)


def flip(samples: Tensor, logits: Tensor) -> Tensor:
    """Turn samples of min(p, 1-p), overwritten, into samples of p, in the dtype of the logits."""
    return samples.sub_(indicator(logits.detach())).abs_().to(logits.dtype)


def flip_counts(counts: Tensor, logits: Tensor) -> Tensor:
    """Turn the distribution of the number of ones of min(p, 1-p) into that of p."""
    return torch.where(logits.detach() > 0, counts.flip(0), counts)
