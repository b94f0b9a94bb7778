"""Variance of estimators by repeated draws, on the user's own objective: which estimator should I use?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Generator, Tensor

from arms.arguments import as_count
from arms.checks.oracle import exact_gradient
from arms.checks.verdicts import score_limit
from arms.estimators import DEFAULT_NUM_SAMPLES, ESTIMATORS, Estimator, Objective, as_estimator
from arms.latents import Logits, as_latent

ENUMERABLE = 10
ENOUGH = 100
"""The flips of a latent, and the repeats, below which a bias score is far from normal: 30 gave |z| of 8."""
COMPARED = tuple(
    name
    for name, factory in ESTIMATORS.items()
    if not (one := factory(DEFAULT_NUM_SAMPLES)).target.direct and one.slopes == "none" and one.evaluations is not None
)
"""Those that need nothing of the objective but its values."""


@dataclass(frozen=True)
class VarianceRow:
    """One estimator's line of the table."""

    estimator: str
    num_samples: int
    variance: float
    """Mean over all latents of the variance of one estimate."""
    bias_score: float
    """Largest |z| of the mean estimate against the reference; NaN where no latent could be scored."""
    milliseconds: float
    """Time of one estimate, objective included."""


@dataclass(frozen=True)
class VarianceTable:
    """Estimators compared on one objective; `print` it."""

    rows: tuple[VarianceRow, ...]
    reference: str
    """What the bias scores are held against."""
    score_limit: float
    """The |z| that unbiased estimators exceed once in a million tables if scores are normal: see `variance`."""
    left_out: int = 0
    """How many latents have no part in the bias scores, having flipped too rarely or been drawn too few times."""

    def __str__(self) -> str:
        lowest = min(row.variance for row in self.rows)
        lines = [f"{'estimator':<14} {'n':>5} {'variance':>12} {'x lowest':>9} {'bias |z|':>9} {'ms':>9}"]
        for row in self.rows:
            ratio = row.variance / lowest if lowest > 0 else 1.0 if row.variance == 0 else float("inf")
            score = "-" if math.isnan(row.bias_score) else f"{row.bias_score:.2f}"
            lines.append(
                f"{row.estimator:<14} {row.num_samples:>5} {row.variance:>12.5g} {ratio:>9.3f} "
                f"{score:>9} {row.milliseconds:>9.3f}"
            )
        against = f"bias |z|: the largest over all latents, against {self.reference}"
        lines.append(f"{against}; suspicious beyond {self.score_limit:.2f}")
        if self.left_out:
            lines.append(f"latents left out of it: {self.left_out} (too few flips or repeats)")
        return "\n".join(lines)


def variance(
    objective: Objective,
    logits: Logits,
    num_samples: int = 8,
    estimators: Sequence[str | Estimator] | None = None,
    repeats: int = 1000,
    generator: Generator | None = None,
) -> VarianceTable:
    """Compare estimators on an objective at fixed logits: variance of one estimate, bias score, time.

    All estimators that take a black box and this budget are compared unless some are named. The bias score is the
    largest |z| over all latents of the mean estimate, against enumeration up to ten latents, and beyond that against
    other draws of leave-one-out REINFORCE. A score is close to normal only if what it averages happened often, so
    latents that flip less than a hundred times in all draws, and all of them below a hundred repeats, are left out.
    An objective that hangs on a rare combination of latents can still raise the score of an unbiased estimator.

    >>> table = variance(lambda b: b.prod(-1), torch.zeros(2), 4, ["loorf", "arms-s"], repeats=200)
    >>> [row.estimator for row in table.rows]
    ['loorf', 'arms-s']
    """
    repeats = as_count(repeats, 2, "repeats")
    num_samples = as_count(num_samples, 1, "num_samples")
    if estimators is None:
        estimators = [name for name in COMPARED if accepts(name, num_samples)]
    if not estimators:
        raise ValueError("estimators must name at least one estimator, got none")
    phi = as_latent(logits).logits.detach()
    chosen = [
        (_name(entry), as_estimator(entry, None if isinstance(entry, Estimator) else num_samples))
        for entry in estimators
    ]
    for name, one in chosen:
        if one.target.direct:
            raise ValueError(f"variance compares gradients of the expectation; {name} estimates the {one.target}'s")
    fewest = min(num_samples, *(one.num_samples for _, one in chosen))
    scored = (repeats * fewest * torch.sigmoid(-phi.double().abs())).clamp(max=repeats) >= ENOUGH
    with torch.no_grad():
        truth, truth_error, reference = _reference(objective, phi, scored, num_samples, repeats, generator)
        rows = []
        for name, one in chosen:
            start = perf_counter()
            mean, spread = _moments(one, objective, phi, repeats, generator)
            elapsed = (perf_counter() - start) / repeats
            error = (spread / repeats + truth_error).sqrt().clamp(min=1e-6 * truth.abs().max().clamp(min=1e-30))
            scores = ((mean - truth).abs() / error)[scored]
            score = scores.max().item() if len(scores) else float("nan")
            rows.append(VarianceRow(name, one.num_samples, spread.mean().item(), score, 1e3 * elapsed))
    count = int(scored.sum())
    return VarianceTable(tuple(rows), reference, score_limit(max(1, count * len(rows))), phi.numel() - count)


def accepts(name: str, num_samples: int) -> bool:
    """Whether the estimator of that name can use so many samples: pairs need an even number, baselines two."""
    try:
        as_estimator(name, num_samples)
    except ValueError:
        return False
    return True


def _name(entry: str | Estimator) -> str:
    return entry if isinstance(entry, str) else type(entry).__name__


def _reference(
    objective: Objective, phi: Tensor, scored: Tensor, n: int, repeats: int, generator: Generator | None
) -> tuple[Tensor, Tensor, str]:
    if phi.shape[-1] <= ENUMERABLE:
        truth = exact_gradient(objective, phi).double()
        # Flips that the draws may never have seen move the truth of the other latents too: it is that uncertain.
        certain = torch.where(scored, phi, torch.where(phi > 0, torch.inf, -torch.inf).to(phi))
        return truth, (truth - exact_gradient(objective, certain).double()).square(), "enumeration"
    mean, spread = _moments(as_estimator("loorf", max(2, n)), objective, phi, repeats, generator)
    return mean, spread / repeats, "other draws of loorf"


def _moments(
    estimator: Estimator, objective: Objective, phi: Tensor, repeats: int, generator: Generator | None
) -> tuple[Tensor, Tensor]:
    """Mean and variance over repeated draws, by Welford's recurrence: nothing is kept but two arrays."""
    mean = torch.zeros_like(phi, dtype=torch.float64)
    squares = torch.zeros_like(mean)
    for count in range(1, repeats + 1):
        grad = estimator(objective, phi, generator).grad.double()
        delta = grad - mean
        mean += delta / count
        squares += delta * (grad - mean)
    return mean, squares / (repeats - 1)
