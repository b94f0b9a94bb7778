"""Closed-form gradient variances on the toy problem relative to LOORF, averaged over sigma(phi) from 0.1 to 0.9.

python benchmarks/toy_variance.py --output benchmarks/results/toy_variance.json
"""

import argparse
import json
import sys
from pathlib import Path

import torch

import arms
from arms.bench import toy
from arms.checks import univariate_variance


def ratios(n: int) -> dict[str, float]:
    logits = torch.logit(torch.linspace(0.1, 0.9, toy.GRID_POINTS, dtype=torch.float64))
    variances = {
        name: univariate_variance(arms.as_estimator(name, n), logits, toy.P0**2, (1 - toy.P0) ** 2)
        for name in toy.ESTIMATORS
    }
    means = {
        name: variance.mean().item() for name, variance in variances.items() if variance is not None
    }
    return {name: mean / means["loorf"] for name, mean in means.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    table = {n: ratios(n) for n in toy.BUDGETS}
    for n, row in table.items():
        print(n, {name: round(ratio, 4) for name, ratio in row.items()})
    if options.output:
        command = " ".join(["python", *sys.argv])
        options.output.write_text(
            json.dumps({"command": command, "ratios": table}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
