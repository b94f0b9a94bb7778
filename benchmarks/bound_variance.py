"""Variance of the gradient of the multi-sample bound, score part plus direct term, at a discrete VAE's logits.

    ARMS_DATA_DIR=... python benchmarks/bound_variance.py
    python benchmarks/bound_variance.py --markdown
    python benchmarks/bound_variance.py --seed 1 --estimators vimco "flips-ms, K flips" --output ...

Models are trained on dynamic MNIST for 2,000 and 20,000 steps by VIMCO with 4 samples, unless their runs exist.
Then 16 training images are binarised once, so that only the latents vary. The variance is summed over the 200
logits, averaged over the images, and divided by the variance of VIMCO with K = n, the budget. Every other
estimator has as many samples as the budget allows. `score` is the ratio for the score part alone, which
publications compare; some estimators have none. K differs between estimators. `vimco, twice` is the mean of two
VIMCO estimates with K = n/2. `flips-ms` has K = n and makes more evaluations, so its variance is multiplied by
(K + m) / K to compare it at equal evaluations. `tail` is the share of the largest hundredth of the draws in the
variance. The seed determines the models and the images. --markdown reads the file of results.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from trained_models import (
    IMAGES,
    NETWORKS,
    Known,
    LogWeights,
    configured,
    quotient,
    rounded,
    tail_share,
    trained,
    variance,
    write,
)

import arms
from arms.bench.config import run_name
from arms.bench.training.engine import keep_freed_memory
from arms.estimate import draw_points, gradient
from arms.estimators.bound.slots import direct_term
from arms.objective import Options, evaluate

TWICE = "vimco, twice"
FLIPS = {"flips-ms, K flips": 1, "flips-ms, K/2 flips": 2}
"""Names of flips with K = n, with the number of samples per flip."""
UNFOLDED = " (unfolded)"
NAMES = [
    "vimco", TWICE, "disarm-ms (unfolded)", "disarm-ms", "loorf-ms (unfolded)", "loorf-ms",
    "arms-ms-dirichlet (unfolded)", "arms-ms-dirichlet", "arms-ms (unfolded)", "arms-ms",
    "midpoint-ms", "midpoint-ms-shared",
]  # fmt: skip
BUDGETS = [4, 10]
STEPS = [2_000, 20_000]
AT_ONCE = 20
"""The number of draws per call, which fits into the cache."""
RESULTS = Path(__file__).parent / "results" / "bound_variance.json"

Row = dict[str, Any]


class Problem(LogWeights):
    """Log-weights of fixed images as a function of the latents, and draws of the bound's gradient."""

    def draw(self, estimator: arms.Estimator, draws: int) -> tuple[Tensor, Tensor]:
        """Return the estimates and their score parts, `[draws, images, latents]` each."""
        whole, score = [], []
        options = Options(checks="cheap", log_weights=True)
        latent = arms.Bits(self.logits.expand(AT_ONCE, -1, -1))
        with torch.no_grad():
            for _ in range(draws // AT_ONCE):
                drawn = draw_points(estimator, latent, self.generator)
                found = evaluate(estimator, self.objective, drawn, options)
                bound = estimator.target.size
                direct = direct_term(latent, drawn.points[:bound], found.values[:bound].softmax(0))
                whole.append(gradient(estimator, drawn, found, options))
                score.append(whole[-1] - direct)
        return torch.cat(whole), torch.cat(score)


def contender(name: str, budget: int) -> arms.Estimator:
    """Return the estimator with this name and the most samples that the budget allows."""
    if name == TWICE:
        return arms.VIMCO(budget // 2)
    if name in FLIPS:
        return arms.FlipsOnBound(budget, budget // FLIPS[name])
    options = {"folded": False} if name.endswith(UNFOLDED) else {}
    return arms.as_estimator(name.removesuffix(UNFOLDED), evaluations=budget, **options)


def has_score(name: str) -> bool:
    """Whether an estimator has a separate score part."""
    return name in ("vimco", TWICE) or name.endswith(UNFOLDED)


def measure(problem: Problem, draws: int, names: Sequence[str]) -> list[Row]:
    """Return the rows of one model."""
    rows = []
    for budget in BUDGETS:
        unit: tuple[Known, Known] | None = None
        for name in names:
            estimator = contender(name, budget)
            share = 0.5 if name == TWICE else 1.0
            if name in FLIPS:
                share = 1 + 1 / FLIPS[name]
            drawn = problem.draw(estimator, draws)
            whole, score = (
                Known(share * one.value, share * one.error) for one in map(variance, drawn)
            )
            unit = unit or (whole, score)
            ratio = Known(1.0, 0.0) if whole is unit[0] else quotient(whole, unit[0])
            needs = estimator.design.needs
            rows.append(
                {
                    "n": budget, "estimator": name, "evaluations": int((needs.evaluations or 0) / min(share, 1.0)),
                    "derivatives": needs.derivatives, "bound_samples": estimator.target.size,
                    "ratio": rounded(ratio.value), "ratio_error": rounded(ratio.error),
                    "tail": rounded(tail_share(drawn[0])),
                    "score": rounded(score.value / unit[1].value) if has_score(name) else None,
                }
            )  # fmt: skip
    return rows


def shown(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.3f}"


def markdown(result: dict[str, Any]) -> str:
    """Return a table of ratios for each budget, with the score part in brackets."""
    models = [(model["network"], model["steps"]) for model in result["models"]]
    heads = [f"{network}, {steps:,} steps" for network, steps in models]
    lines = []
    for budget in BUDGETS:
        lines += [
            f"n = {budget}: variance relative to VIMCO with K = {budget} (score part alone)",
            "",
        ]
        lines += [
            f"| estimator | evaluations | K | {' | '.join(heads)} |",
            "|---|" + "--:|" * (2 + len(heads)),
        ]
        for name in NAMES:
            mine = {
                (row["network"], row["steps"]): row
                for row in result["rows"]
                if (row["estimator"], row["n"]) == (name, budget)
            }
            first = next(iter(mine.values()))
            cells = [
                shown(mine[model]["ratio"])
                + (f" ({shown(mine[model]['score'])})" if mine[model]["score"] else "")
                for model in models
            ]
            lines.append(
                f"| {name} | {first['evaluations']} | {first['bound_samples']} | {' | '.join(cells)} |"
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs",
        type=Path,
        default=Path("runs/bound-variance"),
        help="folder of the trained models",
    )
    parser.add_argument("--draws", type=int, default=1000, help=f"a multiple of {AT_ONCE}")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument(
        "--markdown", action="store_true", help="print the tables of the existing results"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the models and the images")
    parser.add_argument("--estimators", nargs="+", default=NAMES, help="VIMCO first")
    options = parser.parse_args()
    if options.markdown:
        print(markdown(json.loads(options.output.read_text())))
        return
    if options.draws < 2 * AT_ONCE or options.draws % AT_ONCE:
        parser.error(
            f"--draws must be a multiple of {AT_ONCE}, and at least {2 * AT_ONCE}, got {options.draws}"
        )
    keep_freed_memory()
    result: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]), "torch": torch.__version__, "images": IMAGES,
        "draws": options.draws, "models": [], "rows": [],
    }  # fmt: skip
    for network, steps in product(NETWORKS, STEPS):
        config = configured(network, steps, "vimco", options.seed)
        model, images = trained(config, options.runs)
        result["models"].append({"network": network, "steps": steps, "run": run_name(config)})
        print(network, steps, flush=True)
        for row in measure(
            Problem(model, images, seed=steps + options.seed), options.draws, options.estimators
        ):
            result["rows"].append({"network": network, "steps": steps} | row)
            print(
                f"  {row['n']:>2} {row['estimator']:<29}{row['ratio']:8.3f} ± {row['ratio_error']:.3f}"
                f"  tail {row['tail']:.3f}",
                flush=True,
            )
        write(result, options.output)


if __name__ == "__main__":
    main()
