"""Exact variances of `arms.weights(rewards, BestOf(k))` and of published pass@k estimators.

    python benchmarks/best_of_variance.py
    python benchmarks/best_of_variance.py --markdown

There are n = 16 samples, and each is right with probability p. The number of right samples is binomial.
Each estimator gives one weight to all right samples and another weight to all wrong samples, so
expectations are sums over this number. Two variances are computed. `success` is the variance of
sum_i w_i (r_i - p), the gradient with respect to the logit of p. `other` is E sum_i w_i^2, which
multiplies the variance of a score that is independent of success, as for most parameters of a large policy.

The published estimators are from Walder & Karkhanis, "Pass@K policy optimization" (2025). The first has
no baseline. The baseline of the second, which equals ours, is the average best of (k-1)-subsets of the
other samples. The third uses k-subsets of the other samples, which centers the weights and needs k < n.
--markdown reads the result file.
"""

import argparse
import json
from math import comb
from pathlib import Path

import torch

import arms

N, RATES, ORDERS = 16, (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5), range(2, 9)
PUBLISHED = ("no baseline", "(k-1)-subsets", "k-subsets")
RESULTS = Path(__file__).parent / "results" / "best_of_variance.json"

Weights = tuple[float, float]


def ours(k: int, right: int) -> Weights:
    """Return the weights of right and of wrong samples, computed by the library."""
    rewards = (torch.arange(N) < right).double()
    found = arms.weights(rewards, arms.BestOf(k)).tolist()
    return found[0], found[-1]  # arbitrary if there are no such samples


def published(name: str, k: int, right: int) -> Weights:
    """Return the weights by the paper's formulas."""

    def any_right(among: int, others_right: int, size: int) -> float:
        return 1 - comb(max(0, among - others_right), size) / comb(among, size)

    found = []
    for own, others in ((1.0, max(0, right - 1)), (0.0, min(right, N - 1))):
        best = max(own, any_right(N - 1, others, k - 1))
        baseline = {"no baseline": 0, "(k-1)-subsets": k - 1, "k-subsets": k}[name]
        found.append(k / N * (best - (any_right(N - 1, others, baseline) if baseline else 0.0)))
    return found[0], found[1]


def moments(weigh: dict[int, Weights], p: float) -> tuple[float, float, float]:
    """Return the mean and the variance along success, and the mean sum of squared weights."""
    mean = square = other = 0.0
    for right, (high, low) in weigh.items():
        chance = comb(N, right) * p**right * (1 - p) ** (N - right)
        along = right * high * (1 - p) - (N - right) * low * p
        mean += chance * along
        square += chance * along**2
        other += chance * (right * high**2 + (N - right) * low**2)
    return mean, square - mean**2, other


def measure() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for p in RATES:
        for k in ORDERS:
            own = {right: ours(k, right) for right in range(N + 1)}
            mean, success, other = moments(own, p)
            exact = (
                k * p * (1 - p) ** k
            )  # the derivative of 1 - (1 - p)^k with respect to the logit
            assert abs(mean - exact) < 1e-12
            row: dict[str, object] = {"p": p, "k": k, "success": success, "other": other}
            for name in PUBLISHED:
                theirs = {right: published(name, k, right) for right in range(N + 1)}
                found = moments(theirs, p)
                assert abs(found[0] - exact) < 1e-12
                row[name] = {
                    "success": round(success / found[1], 6),
                    "other": round(other / found[2], 6),
                }
            rows.append(row)
    return rows


def markdown() -> str:
    """Return the range of ratios over all k, for each p."""
    rows = json.loads(RESULTS.read_text())["rows"]
    columns = [f"{name}, {part}" for name in PUBLISHED for part in ("success", "other")]
    lines = [f"| p | {' | '.join(columns)} |", "|---" + "|--:" * len(columns) + "|"]
    for p in RATES:
        cells = []
        for name in PUBLISHED:
            for part in ("success", "other"):
                ratios = [row[name][part] for row in rows if row["p"] == p]
                low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
                cells.append(low if low == high else f"{low} to {high}")
        lines.append(f"| {p:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", action="store_true")
    if parser.parse_args().markdown:
        print(markdown())
    else:
        lines = ",\n  ".join(map(json.dumps, measure()))
        head = f'"command": "python benchmarks/best_of_variance.py",\n "samples": {N}'
        RESULTS.write_text(f'{{\n {head},\n "rows": [\n  {lines}\n ]\n}}\n')
