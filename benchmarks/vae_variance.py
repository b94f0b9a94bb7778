"""Variance of the gradient at a discrete VAE's logits, given the images, and bias of biased estimators.

    ARMS_DATA_DIR=... python benchmarks/vae_variance.py
    python benchmarks/vae_variance.py --plot docs/figures/midpoint_variance.png
    python benchmarks/vae_variance.py --markdown
    python benchmarks/vae_variance.py --seed 1 --estimators loorf midpoint flips reinmax --output ...

Models are trained on dynamic MNIST for 1, 2,000 and 20,000 steps, all by the same estimator, unless their runs exist.
Then 16 training images are binarised once, so that only the latents vary. The variance is summed over the 200 logits,
averaged over the images, and divided by the variance of LOORF with the same number of evaluations. Bias is
|E g - gradient| / |gradient| over all images and logits. It does not depend on n, because each biased estimator is a
mean over independent samples. `tail` is the share of the largest hundredth of the draws in the variance, which is 0.01
if all draws are equally large. The seed determines the models and the images. --plot and --markdown read the file of
results.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
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
from arms.estimators import num_samples_of

UNBIASED = [
    "loorf", "arm", "disarm", "arms-dirichlet", "arms-gaussian", "arms", "arms-taylor", "double-cv", "rebar",
    "midpoint-single", "midpoint", "cross-paired", "flips",
]  # fmt: skip
BIASED = list(arms.BIASED_ESTIMATORS)
NOTES = {
    "rebar": "untrained: temperature and coefficient as they begin",
    "cross-paired": "needs at least 4 evaluations",
    "relax": "left out: its control variate must be trained for each model",
    "rodeo": "left out: its control variate must be trained for each model",
}
BUDGETS = [3, 6, 15]
STEPS = [1, 2_000, 20_000]
REFERENCE = "midpoint"
"""The unbiased estimator with low variance that provides the reference gradient, with the largest budget."""
GROUPS = 20
"""The number of draws per call, which fits into the cache, and the unit of the jackknife."""
RESULTS = Path(__file__).parent / "results" / "vae_variance.json"

Row = dict[str, Any]


class Problem(LogWeights):
    """The ELBO of fixed images as a function of the latents, and draws of its gradient."""

    def draw(self, estimator: arms.Estimator, draws: int) -> Tensor:
        """Return estimates `[draws, images, latents]`.

        Coefficients are fitted on the other rows of the last batch axis: the images of one draw, as in training.
        """
        at_once = self.logits.expand(GROUPS, -1, -1)
        with torch.no_grad():  # parameters of an estimator then need no second derivatives
            calls = [
                estimator(self.objective, at_once, self.generator, validate=False).grad
                for _ in range(draws // GROUPS)
            ]
        return torch.cat(calls)


def relative_bias(estimates: Tensor, references: Tensor) -> Known:
    """Return |E g - gradient| / |gradient|, with a jackknife over groups of draws.

    The squared norm of a mean is biased upwards by the variance of the mean. Products of means of different groups are
    unbiased, and replace the squared norm in numerator and denominator.
    """
    mine, theirs = (
        draws.unflatten(0, (GROUPS, -1)).mean(1).double().flatten(1)
        for draws in (estimates, references)
    )

    def without(group: int | None) -> float:
        kept = torch.arange(GROUPS) != (-1 if group is None else group)
        return square_norm((mine - theirs)[kept]) / square_norm(theirs[kept])

    square = max(0.0, without(None))
    left_out = torch.tensor([without(group) for group in range(GROUPS)], dtype=torch.float64)
    error = math.sqrt((GROUPS - 1) * left_out.var(correction=0).item())
    # The derivative of the root is useless near zero. The error is the increase of the root by one error of the square.
    return Known(math.sqrt(square), math.sqrt(square + error) - math.sqrt(square))


def square_norm(groups: Tensor) -> float:
    """Return an unbiased estimate of the squared norm of the mean of independent groups `[groups, entries]`."""
    products = groups.sum(0).square().sum() - groups.square().sum()
    return products.item() / (len(groups) * (len(groups) - 1))


def contenders(names: Sequence[str]) -> Iterator[tuple[int, str, arms.Estimator]]:
    """Yield every estimator with the most samples that each budget allows, if any."""
    for budget, name in product(BUDGETS, names):
        try:
            yield budget, name, arms.as_estimator(name, evaluations=budget)
        except ValueError:
            continue


def measure(problem: Problem, draws: int, reference_draws: int, names: Sequence[str]) -> list[Row]:
    """Return the rows of one model."""
    references = problem.draw(
        arms.as_estimator(REFERENCE, evaluations=max(BUDGETS)), reference_draws
    )
    baselines: dict[int, Known] = {}
    tails: dict[int, float] = {}
    biases: dict[str, Known] = {}
    rows = []
    # Start with the largest budget, which gives the most precise bias.
    for budget, name, estimator in sorted(contenders(names), key=lambda contender: -contender[0]):
        count = estimator.design.needs.evaluations
        assert count is not None
        if count not in baselines:
            estimates = problem.draw(arms.as_estimator("loorf", count), reference_draws)
            baselines[count], tails[count] = variance(estimates), tail_share(estimates)
        if name == "loorf":
            ratio, tail = Known(1.0, 0.0), tails[count]
        else:
            estimates = problem.draw(estimator, draws)
            tail = tail_share(estimates)
            ratio = quotient(variance(estimates), baselines[count])
            if not estimator.unbiased and name not in biases:
                biases[name] = relative_bias(estimates, references)
        bias = biases.get(name)
        rows.append(
            {
                "budget": budget, "estimator": name, "n": num_samples_of(estimator), "evaluations": count,
                "derivatives": estimator.design.needs.derivatives, "unbiased": estimator.unbiased,
                "ratio": rounded(ratio.value), "ratio_error": rounded(ratio.error), "tail": rounded(tail),
                "bias": rounded(bias.value) if bias else None, "bias_error": rounded(bias.error) if bias else None,
            }
        )  # fmt: skip
    order = [*UNBIASED, *BIASED]
    return sorted(rows, key=lambda row: (row["budget"], order.index(row["estimator"])))


def shown(ratio: float) -> str:
    return f"{ratio:.3f}" if ratio >= 0.1 else f"{ratio:.4f}"


def table(rows: Sequence[Row], names: Sequence[str], cell: Callable[[Row], str]) -> list[str]:
    """Return a Markdown table with a row for each estimator and a column for each model."""
    models = list(product(NETWORKS, STEPS))
    heads = [
        f"{network[0].upper()}{'0' if steps == 1 else f'{steps // 1000}k'}"
        for network, steps in models
    ]
    lines = [
        f"| estimator | evaluations | derivatives | {' | '.join(heads)} |",
        "|---|" + "--:|" * (2 + len(heads)),
    ]
    for name in names:
        mine = {(row["network"], row["steps"]): row for row in rows if row["estimator"] == name}
        if mine:
            first = next(iter(mine.values()))
            cells = [cell(mine[model]) if model in mine else "" for model in models]
            lines.append(
                f"| {name} | {first['evaluations']} | {first['derivatives']} | {' | '.join(cells)} |"
            )
    return lines


def markdown(result: dict[str, Any]) -> str:
    """Return a table of unbiased estimators for each budget, with the lowest in bold, and tables of biased ones."""
    lines = []
    for budget in BUDGETS:
        rows = [row for row in result["rows"] if row["budget"] == budget and row["unbiased"]]

        def cell(row: Row, rows: Sequence[Row] = rows) -> str:
            peers = [
                other
                for other in rows
                if (other["network"], other["steps"]) == (row["network"], row["steps"])
            ]
            text = shown(row["ratio"])
            return f"**{text}**" if row["ratio"] == min(other["ratio"] for other in peers) else text

        lines += [
            f"At most {budget} evaluations: variance relative to LOORF with the same number of evaluations",
            "",
        ]
        lines += [*table(rows, UNBIASED, cell), ""]
    rows = [row for row in result["rows"] if not row["unbiased"]]
    middle = [row for row in rows if row["budget"] == BUDGETS[1]]
    lines += [
        "Biased estimators: bias |E g - gradient| / |gradient|, for any number of samples",
        "",
    ]
    lines += [
        *table(middle, BIASED, lambda row: f"{row['bias']:.3f} ± {row['bias_error']:.3f}"),
        "",
    ]
    lines += [f"Biased estimators: variance relative to LOORF, at {BUDGETS[1]} evaluations", ""]
    lines += table(middle, BIASED, lambda row: shown(row["ratio"]))
    return "\n".join(lines)


def plot(result: dict[str, Any], names: Sequence[str], path: Path) -> None:
    """Draw the ratios of these estimators at the middle budget and the last models."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    from arms.bench.report.figures import style_of
    from arms.bench.report.groups import labeled_if_biased

    height = 0.9 + 0.21 * len(names)
    figure, axes = pyplot.subplots(1, 2, figsize=(8, height), sharex=True, layout="constrained")
    for axis, network in zip(axes, ("nonlinear", "linear"), strict=True):
        rows = [
            row
            for row in result["rows"]
            if (row["network"], row["steps"], row["budget"]) == (network, STEPS[-1], BUDGETS[1])
            and row["estimator"] in names
        ]
        rows.sort(key=lambda row: -row["ratio"])
        for height, row in enumerate(rows):
            style = style_of(row["estimator"])
            axis.errorbar(
                row["ratio"], height, xerr=2 * row["ratio_error"], color=style.color, marker=style.marker,
                markersize=6, linewidth=1.2,
            )  # fmt: skip
            axis.annotate(
                f"{ratio:.2f}" if (ratio := row["ratio"]) >= 0.1 else f"{ratio:.2g}",
                (ratio, height), (8, 0), textcoords="offset points",
                va="center", fontsize=7, color="#404040",
            )  # fmt: skip
        axis.axvline(1.0, color="#808080", linewidth=0.8, zorder=0)
        axis.set_yticks(
            range(len(rows)),
            [f"{labeled_if_biased(row['estimator'])} ({row['evaluations']})" for row in rows],
            fontsize=8,
        )
        axis.set_xscale("log")
        axis.margins(x=0.12)
        axis.xaxis.set_major_locator(
            FixedLocator([0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50])
        )
        axis.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.grid(axis="x", linewidth=0.4, alpha=0.6)
        axis.set_title(f"{network} VAE after {STEPS[-1]:,} steps", fontsize=9)
        axis.tick_params(axis="x", labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(
        "Gradient variance relative to LOORF (log scale, lower is better); evaluations in parentheses",
        fontsize=9,
    )
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/variance"), help="folder of the trained models"
    )
    parser.add_argument("--draws", type=int, default=800)
    parser.add_argument(
        "--reference-draws",
        type=int,
        default=2000,
        help="draws for the reference gradient, and for LOORF's variance",
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument(
        "--plot", type=Path, metavar="PNG", help="draw the figure of the existing results"
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print the tables of the existing results"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the models and the images")
    parser.add_argument("--estimators", nargs="+", help="default: all; unbiased ones in the figure")
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS, help="of training")
    options = parser.parse_args()
    if options.plot or options.markdown:
        result = json.loads(options.output.read_text())
        if options.plot:
            plot(result, options.estimators or UNBIASED, options.plot)
        if options.markdown:
            print(markdown(result))
        return
    for count in (options.draws, options.reference_draws):
        if count < 2 * GROUPS or count % GROUPS:
            parser.error(
                f"draws must be a multiple of {GROUPS}, and at least {2 * GROUPS}, got {count}"
            )
    keep_freed_memory()
    result = {
        "command": " ".join(["python", *sys.argv]), "torch": torch.__version__, "images": IMAGES,
        "draws": options.draws, "reference_draws": options.reference_draws, "notes": NOTES, "models": [], "rows": [],
    }  # fmt: skip
    for network, steps in product(NETWORKS, options.steps):
        config = configured(network, steps, "arms", options.seed)
        model, images = trained(config, options.runs)
        result["models"].append({"network": network, "steps": steps, "run": run_name(config)})
        print(network, steps, flush=True)
        for row in measure(
            Problem(model, images, seed=steps + options.seed),
            options.draws,
            options.reference_draws,
            options.estimators or [*UNBIASED, *BIASED],
        ):
            result["rows"].append({"network": network, "steps": steps} | row)
            bias = (
                "" if row["bias"] is None else f"  bias {row['bias']:.3f} ± {row['bias_error']:.3f}"
            )
            print(
                f"  {row['budget']:>2} {row['estimator']:<16}{row['ratio']:8.4f} ± {row['ratio_error']:.4f}"
                f"  tail {row['tail']:.3f}{bias}",
                flush=True,
            )
        write(result, options.output)


if __name__ == "__main__":
    main()
