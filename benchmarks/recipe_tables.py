"""Print the tables of the recipe search and of the comparison, and draw the comparison's curves.

    python benchmarks/recipe_tables.py search
    python benchmarks/recipe_tables.py comparison
    python benchmarks/recipe_tables.py comparison --figure docs/figures/recipe_comparison.png

The result files are those that benchmarks/recipe.py writes.
"""

import argparse
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeAlias

from recipe import DATASETS, OF_BOUND, OF_ELBO, SHARED, target_of
from training_ensembles import BOUND

from arms.bench.report.groups import labeled_if_biased
from arms.estimators import BIASED_ESTIMATORS

Row: TypeAlias = dict[str, Any]
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TITLES = {"dynamic-mnist": "MNIST", "fashion-mnist": "Fashion", "omniglot": "Omniglot"}
SHORT = {"linear": 30_000, "nonlinear": 10_000}
LONG = 100_000


def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a Markdown table."""
    line = ["---"] + ["--:"] * (len(columns) - 1)
    print("\n".join(f"| {' | '.join(cells)} |" for cells in [columns, line, *rows]))


def final(row: Row, name: str = "test") -> list[float]:
    """Return a value of every seed at the end of training."""
    return [-math.inf if value is None else value for value in row["curve"][-1][name]]


def number(value: float, form: str = ".2f") -> str:
    """Return a number with a typographic minus."""
    return format(value, form).replace("-", "\N{MINUS SIGN}")


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation."""
    return f"{number(fmean(values))} ± {stdev(values):.2f}"


def difference(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the difference of two means and its standard error."""
    error = math.hypot(*(stdev(one) / math.sqrt(len(one)) for one in (ours, theirs)))
    return f"{number(fmean(ours) - fmean(theirs), '+.2f')} ± {error:.2f}"


def print_search() -> None:
    """Print the validation bound of every pair, and the chosen pairs."""
    rows = result("recipe_search")["rows"]
    for network, steps in sorted({(row["network"], row["steps"]) for row in rows}):
        for name in dict.fromkeys(row["estimator"] for row in rows):
            found = {
                (row["encoder_scale"], row["learning_rate"]): fmean(final(row, "valid"))
                for row in rows
                if (row["network"], row["steps"], row["estimator"]) == (network, steps, name)
            }
            if not found:
                continue
            best = max(found, key=lambda pair: found[pair])
            scales, rates = (sorted({pair[index] for pair in found}) for index in (0, 1))
            print(f"\n{labeled_if_biased(name)}, {network}, {steps:,} steps\n")
            table(
                ["factor", *(f"rate {rate:g}" for rate in rates)],
                [[f"{scale:g}", *_cells(found, scale, rates, best)] for scale in scales],
            )


def _cells(
    found: dict[tuple[float, float], float],
    scale: float,
    rates: Sequence[float],
    best: tuple[float, float],
) -> Iterator[str]:
    for rate in rates:
        value = found.get((scale, rate))
        text = "" if value is None else number(value)
        yield f"**{text}**" if (scale, rate) == best else text


class Comparison:
    """The rows of the comparison, by case."""

    def __init__(self) -> None:
        self.rows: list[Row] = result("recipe_comparison")["rows"]
        self.recipe: dict[str, dict[str, float]] = result("recipe")["recipe"]
        self.times: list[Row] = result("recipe_time")["rows"]

    def of(self, network: str, steps: int, whose: str) -> dict[tuple[str, int], dict[str, Row]]:
        """Return rows by estimator, n and data set.

        Args:
            network: The network of the model.
            steps: The number of training steps.
            whose: The recipe: each estimator's "own", or the "shared" one.
        """
        found: dict[tuple[str, int], dict[str, Row]] = {}
        for row in self.rows:
            if (row["network"], row["steps"]) != (network, steps):
                continue
            name = row["estimator"]
            target = target_of(name)
            wanted = name if whose == "own" else SHARED[target]
            pair = self.recipe[f"{target} {network} {steps} {wanted}"]
            if all(row[key] == pair[key] for key in ("encoder_scale", "learning_rate")):
                found.setdefault((name, row["num_samples"]), {})[row["dataset"]] = row
        return found

    def time(self, network: str, name: str, n: int) -> float:
        """Return the microseconds of a step relative to LOORF, or NaN if it was not measured."""
        us: dict[tuple[str, int], float] = {
            (row["estimator"], row["num_samples"]): row["us per step"]
            for row in self.times
            if row["network"] == network
        }
        return us.get((name, n), math.nan) / us["loorf", OF_ELBO["loorf"]]


def print_bounds(comparison: Comparison, network: str, steps: int, whose: str) -> None:
    """Print a row for each estimator: its cost, its recipe and its bound on every data set."""
    found = comparison.of(network, steps, whose)
    rows = []
    for (name, n), of_data in sorted(found.items(), key=_order):
        one = next(iter(of_data.values()))
        time = comparison.time(network, name, n)
        cost = f"{one['evaluations']} + {one['derivatives']}"
        rows.append(
            [
                labeled_if_biased(name),
                "ELBO" if target_of(name) == "elbo" else f"bound, K = {n}",
                cost,
                "" if math.isnan(time) else f"{time:.2f}",
                f"{one['encoder_scale']:g}, {one['learning_rate']:g}",
                *(spread(final(of_data[data])) for data in DATASETS),
            ]
        )
    columns = ["estimator", "trained on", "work", "time", "factor, rate"]
    table([*columns, *(TITLES[data] for data in DATASETS)], rows)


def _order(item: tuple[tuple[str, int], dict[str, Row]]) -> tuple[bool, float]:
    (name, _), of_data = item
    return target_of(name) == "bound", -fmean(final(of_data[DATASETS[0]]))


def print_leads(comparison: Comparison) -> None:
    """Print the difference of flips or flips-ms from the best others, each with its own recipe."""
    rows = []
    for network, steps in SHORT.items():
        found = comparison.of(network, steps, "own")
        for data in DATASETS:
            bounds = {key: final(of_data[data]) for key, of_data in found.items()}
            cells = [f"{TITLES[data]}, {network}"]
            for biased in (False, True):
                others = [
                    key
                    for key in bounds
                    if target_of(key[0]) == "elbo"
                    and key[0] != "flips"
                    and (key[0] in BIASED_ESTIMATORS) == biased
                ]
                best = max(others, key=lambda key: fmean(bounds[key]))
                ours = bounds["flips", OF_ELBO["flips"]]
                cells.append(f"{difference(ours, bounds[best])} (`{best[0]}`)")
            rows.append(cells)
    found = comparison.of("linear", SHORT["linear"], "own")
    for data in DATASETS:
        on_bound = {n: final(row[data]) for (name, n), row in found.items() if name == "vimco"}
        k = max(on_bound, key=lambda n: fmean(on_bound[n]))
        ours = final(found["flips-ms", OF_BOUND["flips-ms"]][data])
        lead = f"{difference(ours, on_bound[k])} (`vimco`, K = {k})"
        rows.append([f"{TITLES[data]}, linear, bound with K = 4", lead, ""])
    table(["data set, network", "best other unbiased estimator", "best biased estimator"], rows)


def print_times(comparison: Comparison) -> None:
    """Print the time of a training step relative to LOORF."""
    names = ["loorf", *(name for name in OF_ELBO if name != "loorf")]
    rows = [
        [net, *(f"{comparison.time(net, name, OF_ELBO[name]):.2f}" for name in names)]
        for net in SHORT
    ]
    table(["network", *map(labeled_if_biased, names)], rows)


def print_leads_at_equal_time(comparison: Comparison) -> None:
    """Print the smallest difference of flips from finished others after the same training time."""
    rows = []
    for network, steps in SHORT.items():
        found = comparison.of(network, steps, "own")
        ours = found.pop(("flips", OF_ELBO["flips"]))
        pace = comparison.time(network, "flips", OF_ELBO["flips"])
        for data in DATASETS:
            cells = [f"{TITLES[data]}, {network}"]
            for biased in (False, True):
                leads = []
                for key, of_data in found.items():
                    if target_of(key[0]) == "elbo" and (key[0] in BIASED_ESTIMATORS) == biased:
                        end = steps * comparison.time(network, *key) / pace
                        now, theirs = at_step(ours[data], end), final(of_data[data])
                        lead = fmean(now) - fmean(theirs)
                        leads.append((lead, f"{difference(now, theirs)} (`{key[0]}`)"))
                cells.append(min(leads)[1])
            rows.append(cells)
    table(["data set, network", "smallest lead, unbiased", "smallest lead, biased"], rows)


def at_step(row: Row, step: float) -> list[float]:
    """Return the test bound of every seed at a step, interpolated between two evaluations."""
    for before, after in pairwise(row["curve"]):
        if before["step"] <= step <= after["step"]:
            share = (step - before["step"]) / (after["step"] - before["step"])
            pairs = zip(before["test"], after["test"], strict=True)
            return [(1 - share) * one + share * other for one, other in pairs]
    raise ValueError(f"expected a step between the evaluations of a run, got {step:g}")


def print_long_runs(comparison: Comparison) -> None:
    """Print the runs of 100,000 steps, and the best archived run with the paper's recipe."""
    rows = []
    for network in SHORT:
        for (name, n), of_data in sorted(comparison.of(network, LONG, "own").items()):
            for data in DATASETS:
                label, theirs = best_archived(data, network, target_of(name), n)
                ours = final(of_data[data])
                rows.append(
                    [
                        f"{TITLES[data]}, {network}",
                        f"`{name}`",
                        spread(ours),
                        f"{spread(theirs)} (`{label}`)",
                        difference(ours, theirs),
                    ]
                )
    table(["data set, network", "estimator", "10^5 steps", "10^6 steps", "difference"], rows)


def print_codes(comparison: Comparison) -> None:
    """Print statistics of the codes of MNIST early in training and at the end."""
    keys = ("active_latents", "code_entropy", "logit_spread")
    rows = []
    for network, steps in SHORT.items():
        for whose in ("own", "shared"):
            found = comparison.of(network, steps, whose)
            for (name, _), of_data in sorted(found.items(), key=_order):
                row = of_data[DATASETS[0]]
                if target_of(name) == "bound" or (whose == "shared" and name == SHARED["elbo"]):
                    continue
                recipe = f"{row['encoder_scale']:g}, {row['learning_rate']:g}"
                curve = [row["curve"][0], row["curve"][-1]]
                looks = [[number(fmean(look[key]), ".1f") for look in curve] for key in keys]
                cells = [labeled_if_biased(name), network, recipe, *map(" → ".join, looks)]
                rows.append([*cells, number(fmean(final(row)))])
    columns = ["estimator", "network", "factor, rate", "active latents", "entropy", "logit spread"]
    table([*columns, "MNIST"], rows)


def best_archived(data: str, network: str, target: str, k: int) -> tuple[str, list[float]]:
    """Return the run of a million steps on the same objective with the best test bound."""
    found: dict[str, list[float]] = {}
    for run in json.loads((ROOT / "results" / f"{data}-{network}.json").read_text())["runs"]:
        name, n = run["config"]["estimator"], run["config"]["num_samples"]
        on_bound = name == "vimco" or "-ms" in name
        of_k = n if name == "vimco" else n // 2 if not run["config"]["folded"] else n
        if on_bound == (target == "bound") and (not on_bound or of_k == k):
            found[f"{name}, n = {n}"] = run["result"]["bounds"]["test"][str(BOUND)]
    return max(found.items(), key=lambda one: fmean(one[1]))


def draw(comparison: Comparison, path: Path) -> None:
    """Draw the test bound by training step and by time, each estimator with its own recipe."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    from arms.bench.report.figures import DASHES, style_of

    figure, axes = plt.subplots(4, 3, figsize=(11, 12), layout="constrained")
    for upper, (network, steps) in enumerate(SHORT.items()):
        found = comparison.of(network, steps, "own")
        for column, data in enumerate(DATASETS):
            by_step, by_time = axes[2 * upper][column], axes[2 * upper + 1][column]
            best = -math.inf
            for (name, n), of_data in sorted(found.items()):
                if target_of(name) == "bound":
                    continue
                style = style_of(name)
                drawn = {"color": style.color, "linestyle": DASHES[style.dash], "lw": 1.3}
                curve = of_data[data]["curve"]
                bounds = [fmean(one["test"]) for one in curve]
                errors = [stdev(one["test"]) / math.sqrt(len(one["test"])) for one in curve]
                best = max(best, bounds[-1])
                at = [one["step"] for one in curve]
                time = comparison.time(network, name, n)
                for axis, x in ((by_step, at), (by_time, [step * time for step in at])):
                    axis.errorbar(x, bounds, errors, label=labeled_if_biased(name), **drawn)
            for axis in (by_step, by_time):
                axis.set(ylim=(best - 12, best + 1), title=f"{TITLES[data]}, {network}")
            by_step.set_xlabel("training steps")
            by_time.set_xlabel("time (in training steps of loorf)")
    for row in axes:
        row[0].set_ylabel(f"test bound (nats, K = {BOUND})\nhigher is better")
    axes[0][-1].legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["search", "comparison"])
    parser.add_argument("--figure", type=Path, help="draw the curves into this file instead")
    args = parser.parse_args()
    if args.what == "search":
        print_search()
        return
    comparison = Comparison()
    if args.figure:
        draw(comparison, args.figure)
        return
    print("## Lead of flips\n\nDifference in nats and its standard error.\n")
    print_leads(comparison)
    print(
        "\n## Time of a training step\n\nOne CPU thread, five seeds at once, relative to loorf.\n"
    )
    print_times(comparison)
    print(
        "\n## Lead of flips at equal time\n\n"
        "The others are at the end of their training. Flips is stopped after the same time, before the\n"
        "cosine schedule has lowered its rate to zero.\n"
    )
    print_leads_at_equal_time(comparison)
    for network, steps in SHORT.items():
        for whose, title in (("own", "its own recipe"), ("shared", "the recipe of flips")):
            print(f"\n## {network.capitalize()}, {steps:,} steps, {title}\n")
            print_bounds(comparison, network, steps, whose)
    print(f"\n## {LONG:,} steps\n")
    print_long_runs(comparison)
    print("\n## Codes\n\nAfter a tenth of the steps → at the end, mean of five seeds.\n")
    print_codes(comparison)


if __name__ == "__main__":
    main()
