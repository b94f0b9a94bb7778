"""Verbs that draw and tell: toy."""

import rich
import torch
from rich.table import Table

from arms import toy


def toy_problem(num_samples: tuple[int, ...] = (2, 4, 10), replicas: int = 1000, seed: int = 0) -> None:
    """Measure gradient variances on the paper's toy problem, beside their closed forms.

    Args:
        num_samples: Budgets n, a block of columns each.
        replicas: Monte-Carlo replicas at each of 81 probabilities.
        seed: Seed of the generator.
    """
    generator = torch.Generator().manual_seed(seed)
    for n in num_samples:
        table = Table("estimator", "variance", "closed form", "x loorf", title=f"toy problem, n = {n}, mean over p")
        curves = toy.variance_curves(n, replicas=replicas, generator=generator)
        reference = next(curve for curve in curves if curve.estimator == "loorf").measured.mean()
        for curve in curves:
            exact = "" if curve.exact is None else f"{curve.exact.mean():.4e}"
            mean = curve.measured.mean()
            table.add_row(curve.estimator, f"{mean:.4e}", exact, f"{mean / reference:.3f}")
        rich.print(table)
