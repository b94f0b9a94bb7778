r"""The contract of a coupling: n exchangeable draws of a latent, as negatively correlated as the law allows.

An estimator needs two things of a coupling: a draw, and what undoes its dependence. For bits that is the factor

$$ \frac{1}{1-\rho} = \frac{q(1-q)}{P_{10}}, \quad P_{10} = P(b_i = 1, b_j = 0), \quad q = \min(p, 1-p). $$

Everything is computed at q <= 1/2 and the bits are flipped where p > 1/2: the law is symmetric in p <-> 1-p,
and no logit, however large, cancels or overflows.

For categories it is a matrix. With Q_ab = P(z_i = a, z_j = b), the leave-one-out sum r of exchangeable samples has
expectation (diag p - Q) F where the gradient is (diag p - p p') F, F_a = E[f | z = a]. So

$$ g = p \circ (I - T + 1 p')^{-1} (r / p), \quad T_{ab} = Q_{ab} / p_a, $$

is unbiased whenever the pairs connect all categories; no Q_ab need be positive. Independent samples have Q = p p' and
g = r; two categories have one number for the matrix, 1/(1 - rho).
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.latents import Bernoulli, Latent
from arms.noise import indicator


class Coupling(ABC):
    """n mutually dependent, exchangeable samples of a latent; its variables stay independent of each other."""

    latents: ClassVar[tuple[type[Latent], ...]] = (Bernoulli,)
    """Which latents it can draw."""
    even_samples: ClassVar[bool] = False
    """Whether it draws an even number of samples only."""
    reference: ClassVar[str] = ""
    """Where the coupling was first published."""

    @abstractmethod
    def sample(self, latent: Latent, n: int, generator: Generator | None = None) -> Tensor:
        """Draw n coupled samples.

        Args:
            latent: What is drawn.
            n: How many samples.
            generator: Source of all randomness; the global one unless given.

        Returns:
            `[n, *batch, *event]` in the dtype of the logits, detached.
        """

    @abstractmethod
    def undo(self, latent: Latent, n: int, r: Tensor) -> Tensor:
        """Turn LOORF's own sum over coupled samples into an unbiased gradient.

        Args:
            latent: What was drawn.
            n: How many samples were drawn.
            r: `[*batch, *event]`, the leave-one-out estimate as if the samples were independent.

        Returns:
            The gradient with respect to the logits, the shape of `r`.
        """


class BinaryCoupling(Coupling):
    """A coupling of bits, undone by one factor per latent."""

    @abstractmethod
    def debias(self, logits: Tensor, n: int) -> Tensor:
        """Return 1/(1 - rho) for every latent, finite at every logit."""

    def undo(self, latent: Latent, n: int, r: Tensor) -> Tensor:
        debias = self.debias(at_least_float32(latent.logits), n)
        if debias.shape != latent.logits.shape:
            raise ValueError(
                f"{self!r} must return a debias factor for every latent, shape {list(latent.logits.shape)}, "
                f"got {list(debias.shape)}"
            )
        return r * debias

    def correlation(self, logits: Tensor, n: int) -> Tensor:
        """Return rho, the common correlation of two of the n samples."""
        return 1 - 1 / self.debias(logits, n)

    def count_law(self, logits: Tensor, n: int) -> Tensor | None:
        """Return P(b_1 + ... + b_n = s) as `[n + 1, *logits.shape]` in float64, or None if no form is known."""
        return None


def check_coupling_object(coupling: object) -> None:
    """Raise if this cannot be a coupling."""
    if not all(callable(getattr(coupling, name, None)) for name in ("sample", "undo")):
        raise ValueError(
            f"coupling must be an object with methods sample and undo, got {coupling!r}: for example arms.Systematic()"
        )


def coupled_samples(coupling: Coupling, latent: Latent, n: int, generator: Generator | None) -> Tensor:
    """Draw n samples of a coupling that may be the user's own, and check them."""
    if not isinstance(latent, coupling.latents):
        kinds = " or ".join(kind.__name__ for kind in coupling.latents)
        raise ValueError(f"{coupling!r} couples {kinds} latents, got {type(latent).__name__}: use arms.Systematic()")
    samples = coupling.sample(latent, n, generator)
    expected = (n, *latent.logits.shape)
    if samples.shape != expected:
        raise ValueError(f"{coupling!r} must return samples of shape {list(expected)}, got {list(samples.shape)}")
    return samples


def undo_pairs(latent: Latent, pair_law: Tensor, r: Tensor) -> Tensor:
    """Return p (I - T + 1 p')^-1 (r / p) for the law of a pair `[*batch, d, K, K]`, by one solve per latent.

    In the symmetric form, with sqrt(p) on either side: the matrix is then close to the identity, however small p is.
    """
    side = torch.softmax(latent.logits.detach().to(pair_law.dtype), -1).sqrt()
    sides = side.unsqueeze(-1) * side.unsqueeze(-2)
    possible = sides > 0
    ratio = torch.where(possible, pair_law / torch.where(possible, sides, 1.0), 0.0)
    matrix = torch.eye(r.shape[-1], dtype=side.dtype, device=side.device) - ratio + sides
    right = torch.where(side > 0, r.to(side.dtype) / torch.where(side > 0, side, 1.0), 0.0)
    found: Tensor = torch.linalg.solve(matrix, right)
    return (side * found).to(r.dtype)


def flip(samples: Tensor, logits: Tensor) -> Tensor:
    """Turn samples of min(p, 1-p), overwritten, into samples of p, in the dtype of the logits."""
    return samples.sub_(indicator(logits.detach())).abs_().to(logits.dtype)


def flip_counts(law: Tensor, logits: Tensor) -> Tensor:
    """Turn the law of the number of ones of min(p, 1-p) into that of p."""
    return torch.where(logits.detach() > 0, law.flip(0), law)
