"""Variance of the whole gradient of the multi-sample bound, score and direct term, at a discrete VAE's logits.

    ARMS_DATA_DIR=... python benchmarks/bound_variance.py
    python benchmarks/bound_variance.py --markdown

Every model is trained on dynamic MNIST for 2,000 and 20,000 steps by VIMCO with 4 samples, unless its run is there
already. Then 16 training images are binarised once and kept, so that nothing varies but the latents. The variance is
summed over the 200 logits, averaged over the images, and divided by that of VIMCO with K = n, the budget;
every other estimator has the most samples that make no more. `score` is the same of the score part alone, which is what
publications compare, where an estimator has one. K differs: `vimco, twice` is the mean of two VIMCO estimates with
K = n/2. --markdown reads the file of results.
"""

import argparse
import json
import math
import sys
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from torch import Generator, Tensor

import arms
from arms.bench.config import TrainConfig, run_name
from arms.bench.data import binarize
from arms.bench.models import BinaryVAE
from arms.bench.models.networks import Network
from arms.bench.runs.memory import keep_freed_memory
from arms.bench.runs.pipeline import load_model, train
from arms.checks.variance import largest_within
from arms.estimators.multi_sample import MultiSample, SlotEstimator, direct_term
from arms.estimators.pipeline import Options, draw_points, evaluate, gradient

TWICE = "vimco, twice"
NAMES = [
    "vimco", TWICE, "disarm-ms-paper", "disarm-ms", "loorf-ms-paper", "loorf-ms", "arms-ms-d-paper", "arms-ms-d",
    "arms-ms-s-paper", "arms-ms-s", "midpoint-ms", "midpoint-ms-tried",
]  # fmt: skip
BUDGETS = [4, 10]
STEPS = [2_000, 20_000]
IMAGES = 16
AT_ONCE = 20
"""Draws in one call, so that it fits into the cache."""
RESULTS = Path(__file__).parent / "results" / "bound_variance.json"

Row = dict[str, Any]


class Known(NamedTuple):
    """A number and its standard error."""

    value: float
    error: float


class Problem:
    """Log-weights of fixed images as a function of the latents, and draws of the bound's gradient."""

    def __init__(self, model: BinaryVAE, images: Tensor, seed: int) -> None:
        self.model, self.images = model.requires_grad_(False), images
        self.logits = model.encode(images)
        self.latent = arms.Bernoulli(self.logits.expand(AT_ONCE, -1, -1))
        self.generator = Generator().manual_seed(seed)

    def log_weight(self, points: Tensor) -> Tensor:
        """Return log w `[m, draws, images]` at points `[m, draws, images, latents]`."""
        flat = points.flatten(0, 1).unsqueeze(1)  # the model's replica axis has length one
        return self.model.log_weights(flat, self.images, self.logits).view(points.shape[:-1])

    def draw(self, estimator: MultiSample, draws: int) -> tuple[Tensor, Tensor]:
        """Return the whole estimates and their score parts, `[draws, images, latents]` each."""
        whole, score = [], []
        with torch.no_grad():
            for _ in range(draws // AT_ONCE):
                drawn = draw_points(estimator, self.latent, self.generator)
                found = evaluate(self.log_weight, drawn, Options(checks="cheap"))
                bound = estimator.bound_samples
                direct = direct_term(self.latent, drawn.points[:bound], found.values[:bound].softmax(0))
                score.append(gradient(drawn, found))
                whole.append(score[-1] + direct)
        return torch.cat(whole), torch.cat(score)


def variance(estimates: Tensor) -> Known:
    """Return the variance of one estimate, summed over latents and averaged over images."""
    draws = len(estimates)
    squares = (estimates - estimates.mean(0)).double().square().sum(-1).mean(-1) * draws / (draws - 1)
    return Known(squares.mean().item(), squares.std().item() / math.sqrt(draws))


def contender(name: str, budget: int) -> MultiSample:
    """Return the estimator of that name with the most samples that the budget allows."""
    found = arms.VIMCO(budget // 2) if name == TWICE else largest_within(name, budget)
    assert isinstance(found, MultiSample)
    return found


def measure(problem: Problem, draws: int) -> list[Row]:
    """Return the rows of one model."""
    rows = []
    for budget in BUDGETS:
        unit: tuple[Known, Known] | None = None
        for name in NAMES:
            estimator = contender(name, budget)
            share = 0.5 if name == TWICE else 1.0
            whole, score = (
                Known(share * one.value, share * one.error) for one in map(variance, problem.draw(estimator, draws))
            )
            unit = unit or (whole, score)
            has_score = not (isinstance(estimator, SlotEstimator) and estimator.folded)
            rows.append(
                {
                    "n": budget, "estimator": name, "evaluations": int((estimator.evaluations or 0) / share),
                    "derivatives": estimator.derivatives, "bound_samples": estimator.bound_samples,
                    "ratio": rounded(whole.value / unit[0].value), "ratio_error": rounded(error(whole, unit[0])),
                    "score": rounded(score.value / unit[1].value) if has_score else None,
                }
            )  # fmt: skip
    return rows


def error(one: Known, unit: Known) -> float:
    """Return the standard error of a ratio to first order."""
    if one is unit:
        return 0.0
    return one.value / unit.value * math.hypot(one.error / one.value, unit.error / unit.value)


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


def shown(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.3f}"


def markdown(result: dict[str, Any]) -> str:
    """Return a table for each budget: the whole's ratios, the score part's in brackets."""
    models = [(model["network"], model["steps"]) for model in result["models"]]
    heads = [f"{network}, {steps:,} steps" for network, steps in models]
    lines = []
    for budget in BUDGETS:
        lines += [f"n = {budget}: variance / VIMCO's with K = {budget} (score part alone)", ""]
        lines += [f"| estimator | evaluations | K | {' | '.join(heads)} |", "|---|" + "--:|" * (2 + len(heads))]
        for name in NAMES:
            mine = {
                (row["network"], row["steps"]): row
                for row in result["rows"]
                if (row["estimator"], row["n"]) == (name, budget)
            }
            first = next(iter(mine.values()))
            cells = [
                shown(mine[model]["ratio"]) + (f" ({shown(mine[model]['score'])})" if mine[model]["score"] else "")
                for model in models
            ]
            lines.append(f"| {name} | {first['evaluations']} | {first['bound_samples']} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/bound-variance"), help="folder of the trained models")
    parser.add_argument("--draws", type=int, default=1000, help=f"a multiple of {AT_ONCE}")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--markdown", action="store_true", help="print the tables of the results that are there")
    options = parser.parse_args()
    if options.markdown:
        print(markdown(json.loads(options.output.read_text())))
        return
    if options.draws < 2 * AT_ONCE or options.draws % AT_ONCE:
        parser.error(f"--draws must be a multiple of {AT_ONCE}, and at least two of it, got {options.draws}")
    keep_freed_memory()
    result: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]), "torch": torch.__version__, "images": IMAGES,
        "draws": options.draws, "models": [], "rows": [],
    }  # fmt: skip
    for network, steps in product(get_args(Network), STEPS):
        config = TrainConfig(
            "dynamic-mnist", network=network, estimator="vimco", num_samples=4, steps=steps, learning_rate=1e-3
        )
        run = train(config, options.runs / run_name(config), device="cpu")
        model, dataset = load_model(run, "cpu")
        images = binarize(dataset.train[:IMAGES], dataset.levels, Generator().manual_seed(config.seed)).unsqueeze(0)
        result["models"].append({"network": network, "steps": steps, "run": run_name(config)})
        print(network, steps, flush=True)
        for row in measure(Problem(model, images, seed=steps), options.draws):
            result["rows"].append({"network": network, "steps": steps} | row)
            print(f"  {row['n']:>2} {row['estimator']:<18}{row['ratio']:8.3f} ± {row['ratio_error']:.3f}", flush=True)
        rows = ",\n  ".join(json.dumps(row) for row in result["rows"])  # a row a line
        head = json.dumps({name: value for name, value in result.items() if name != "rows"}, indent=1)
        options.output.write_text(f'{head[:-2]},\n "rows": [\n  {rows}\n ]\n}}\n')


if __name__ == "__main__":
    main()
