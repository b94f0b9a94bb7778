r"""The contract of a coupling: n exchangeable draws of a latent, as negatively correlated as the law allows.

An estimator needs two things of a coupling: a draw, and what undoes its dependence. For bits that is the factor

$$ \frac{1}{1-\rho} = \frac{q(1-q)}{P_{10}}, \quad P_{10} = P(b_i = 1, b_j = 0), \quad q = \min(p, 1-p). $$

Everything is computed at q <= 1/2 and the bits are flipped where p > 1/2: the law is symmetric in p <-> 1-p,
and no logit, however large, cancels or overflows.
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
        raise ValueError(f"{coupling!r} couples {kinds} latents, got {type(latent).__name__}: use arms.Independent()")
    samples = coupling.sample(latent, n, generator)
    expected = (n, *latent.logits.shape)
    if samples.shape != expected:
        raise ValueError(f"{coupling!r} must return samples of shape {list(expected)}, got {list(samples.shape)}")
    return samples


def flip(samples: Tensor, logits: Tensor) -> Tensor:
    """Turn samples of min(p, 1-p), overwritten, into samples of p, in the dtype of the logits."""
    return samples.sub_(indicator(logits.detach())).abs_().to(logits.dtype)


def flip_counts(law: Tensor, logits: Tensor) -> Tensor:
    """Turn the law of the number of ones of min(p, 1-p) into that of p."""
    return torch.where(logits.detach() > 0, law.flip(0), law)
