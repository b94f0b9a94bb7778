"""Variance relative to LOORF, bias and cost of estimators for categorical latents.

    python benchmarks/categorical_variance.py
    python benchmarks/categorical_variance.py --markdown
    python benchmarks/categorical_variance.py --derivatives --seed 100 \\
        --output benchmarks/results/categorical_derivatives.json

The variance is summed over all logits, and divided by the variance of LOORF with the same number of evaluations. The
ratio is the geometric mean over several draws of the logits, which are standard normal times a scale. Its standard
error is over replicas, for these logits. The problems have d latents with K categories each:

    toy:     f = sum over latents of (z / (K - 1) - 0.499)^2
    random:  f ~ N(0, 1), independently for each of the K^d joint states
    network: f = v . tanh(gain W z / sqrt(d)), 20 units, z one-hot, all weights standard normal. With gain 1, f is
             smooth; with gain 10, most units are thresholds.

If all states can be enumerated, mean estimates are compared with the gradient. A z-score is close to normal only if its
events are frequent, so categories that were drawn less than 300 times are left out. Bias is
|E g - gradient| / |gradient|. It does not depend on n, because biased estimators are means over independent samples.

Times are CPU times of draw and combine, without the objective. All contenders take turns in every round, and ratios are
taken within a round. --markdown reads the file of results.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import torch
from torch import Generator, Tensor
from trained_models import Known, quotient, rounded, tail_share, variance
from vae_variance import relative_bias

import arms
from arms.checks import exact_gradient
from arms.checks.variance import ENUMERABLE
from arms.checks.verdicts import score_limit
from arms.designs.couplings.copulas import order_pair_distribution, undo_pairs
from arms.estimators import num_samples_of
from arms.estimators.base import TensorObjective

BLACK_BOX = [
    "loorf",
    "arms",
    "arms-stratified",
    "arms-dirichlet",
    "disarm",
    "disarm-stick",
    "unordered-set",
]
BIASED = ["reinmax", "st-gumbel", "gumbel-softmax"]
DERIVATIVES = ["loorf", "midpoint-single", "midpoint", "flips", "reinmax"]
DERIVATIVES_BUDGETS = [6, 10]
SIZES = [(3, 1), (5, 1), (10, 1), (3, 3), (5, 3), (10, 3), (4, 5)]
"""Categories and latents of the small problems."""
SAMPLES = [2, 4, 8, 16]
NETWORK_SAMPLES = [2, 4, 8]
BIASED_SAMPLES = 8
REFERENCES = [("midpoint", 32), ("arms", 64)]
"""Estimators of the reference gradient of a network with too many states; the one with lower variance is used."""
UNITS = 20
ROWS = 16
"""The number of rows of a batch, on which coefficients may be fitted, as in training."""
AT_ONCE = 400
"""The number of replicas per call, which fits into the cache; a multiple of ROWS."""
BASELINE = 4
"""LOORF, the denominator of all ratios, has this many times as many replicas."""
ENOUGH = 300
RESULTS = Path(__file__).parent / "results" / "categorical_variance.json"

Row = dict[str, Any]


class EqualRows(arms.designs.Dirichlet):
    """The Dirichlet copula for a batch of equal rows, which computes the expensive pair distribution once."""

    def undo_categories(self, logits: Tensor, n: int, grad: Tensor) -> Tensor:
        pair = order_pair_distribution(logits[0, 0], n)
        return undo_pairs(logits, pair.expand(*grad.shape, grad.shape[-1]), grad)


@dataclass(frozen=True)
class Problem:
    """A kind of objective, and its size."""

    kind: str
    categories: int
    latents: int
    scale: float = 1.0
    """The scale of the logits."""
    gain: float = 1.0

    @property
    def title(self) -> str:
        extras = [f"logits x {self.scale:g}"] * (self.scale != 1) + [f"gain {self.gain:g}"] * (
            self.gain != 1
        )
        return ", ".join([f"{self.kind} K{self.categories} d{self.latents}", *extras])

    @property
    def states(self) -> int:
        return int(self.categories**self.latents)

    def instance(self, seed: int) -> "Instance":
        """Return logits and an objective."""
        generator = Generator().manual_seed(seed)
        logits = self.scale * torch.randn(self.latents, self.categories, generator=generator)
        if self.kind == "random":
            return Instance(arms.Indices(logits), self._table(generator), generator)
        objective = self._network(generator) if self.kind == "network" else self._toy
        return Instance(arms.OneHot(logits), objective, generator)

    def _toy(self, z: Tensor) -> Tensor:
        place = z @ torch.linspace(0, 1, self.categories)
        return (place - 0.499).square().sum(-1)

    def _table(self, generator: Generator) -> TensorObjective:
        table = torch.randn(self.states, generator=generator)
        powers = self.categories ** torch.arange(self.latents)
        return lambda z: table[(z * powers).sum(-1)]

    def _network(self, generator: Generator) -> TensorObjective:
        inward = torch.randn(self.latents * self.categories, UNITS, generator=generator)
        inward *= self.gain / math.sqrt(self.latents)
        outward = torch.randn(UNITS, generator=generator)
        return lambda z: torch.tanh(z.flatten(-2) @ inward) @ outward


@dataclass(frozen=True, eq=False)
class Instance:
    """One draw of the logits and of the other random parts of a problem."""

    latent: arms.OneHot
    objective: TensorObjective
    generator: Generator

    def draw(self, estimator: arms.Estimator, replicas: int) -> Tensor:
        """Return estimates `[replicas, 1, d K]`."""
        shape = (AT_ONCE // ROWS, ROWS, *self.latent.logits.shape)
        batch = type(self.latent)(self.latent.logits.expand(shape))
        calls = [
            estimator(self.objective, batch, self.generator, validate=False).grad
            for _ in range(replicas // AT_ONCE)
        ]
        return torch.cat(calls).view(replicas, 1, -1)

    def gradient(self) -> Tensor | None:
        """Return the gradient `[1, d K]`, unless there are too many states."""
        if self.latent.count_states() > ENUMERABLE:
            return None
        return exact_gradient(self.objective, self.latent).view(1, -1)


@dataclass
class Tally:
    """Results of an estimator on some instances of a problem."""

    estimator: arms.Estimator
    tails: list[float]
    ratios: list[Known]
    scores: list[Tensor]
    biases: list[Known]


def contender(name: str, n: int) -> arms.Estimator:
    return arms.ARMS(n, EqualRows()) if name == "arms-dirichlet" else arms.as_estimator(name, n)


def contenders(problem: Problem, derivatives: bool) -> Iterator[tuple[str, arms.Estimator]]:
    """Yield the contenders on a problem, including LOORF, whose ratio to itself shows the noise.

    With `derivatives`, yield only LOORF and estimators that differentiate the objective.
    """
    is_network = problem.kind == "network"
    if derivatives:
        for evaluations, name in product(DERIVATIVES_BUDGETS, DERIVATIVES):
            yield name, arms.as_estimator(name, evaluations=evaluations)
        return
    for n, name in product(NETWORK_SAMPLES if is_network else SAMPLES, BLACK_BOX):
        if name != "unordered-set" or (n <= problem.states and not is_network):
            yield name, contender(name, n)
    if is_network:
        yield from (("midpoint", arms.as_estimator("midpoint", n)) for n in NETWORK_SAMPLES)
        # with a single pair, both estimators are the same
        yield from (
            ("midpoint-single", arms.as_estimator("midpoint-single", n))
            for n in NETWORK_SAMPLES
            if n > 2
        )
    if problem.kind != "random":  # a random table is undefined between states
        yield from ((name, arms.as_estimator(name, BIASED_SAMPLES)) for name in BIASED)


def measure(
    problem: Problem, draws: int, replicas: int, first: int = 0, derivatives: bool = False
) -> list[Row]:
    """Return the rows of one problem."""
    tallies: dict[tuple[str, int], Tally] = {}
    for seed in range(first, first + draws):
        instance = problem.instance(seed)
        gradient = instance.gradient()
        reference = references(instance, gradient, replicas) if problem.kind != "random" else None

        @cache
        def baseline(count: int, instance: Instance = instance) -> Known:
            return variance(instance.draw(arms.as_estimator("loorf", count), BASELINE * replicas))

        for name, estimator in contenders(problem, derivatives):
            count = estimator.design.needs.evaluations
            assert count is not None
            estimates = instance.draw(estimator, replicas)
            tally = tallies.setdefault((name, count), Tally(estimator, [], [], [], []))
            tally.tails.append(tail_share(estimates))
            tally.ratios.append(quotient(variance(estimates), baseline(count)))
            if not estimator.unbiased and reference is not None:
                tally.biases.append(relative_bias(estimates[:, 0], reference))
            if estimator.unbiased and gradient is not None:
                tally.scores.append(
                    scores(estimates[:, 0], gradient, instance.latent, num_samples_of(estimator))
                )
    rows = [row(name, tally) for (name, _), tally in tallies.items()]
    if problem.kind != "network":
        rows += [
            {"estimator": "exact", "n": n, "ratio": 0.0} for n in SAMPLES if n >= problem.states
        ]
    return [{"problem": problem.title, "kind": problem.kind} | found for found in rows]


def references(instance: Instance, gradient: Tensor | None, replicas: int) -> Tensor:
    """Return estimates of the reference gradient `[replicas, d K]`, or copies of the exact gradient if it is known."""
    if gradient is not None:
        return gradient.expand(replicas, -1)
    drawn = [instance.draw(arms.as_estimator(name, n), replicas) for name, n in REFERENCES]
    return min(drawn, key=variance)[:, 0]


def scores(estimates: Tensor, gradient: Tensor, latent: arms.OneHot, n: int) -> Tensor:
    """Return the z-score of the mean estimate for every logit whose category was drawn often enough."""
    often = (len(estimates) * n * latent.mean().flatten() >= ENOUGH).expand_as(gradient)
    estimates = estimates.double()
    error = estimates.std(0, keepdim=True) / math.sqrt(len(estimates))
    return ((estimates.mean(0, keepdim=True) - gradient) / error)[often]


def row(name: str, tally: Tally) -> Row:
    ratio = geometric_mean(tally.ratios)
    one = tally.estimator
    found = {
        "estimator": name, "n": num_samples_of(one), "evaluations": one.design.needs.evaluations,
        "derivatives": one.design.needs.derivatives,
        "tail": rounded(sum(tally.tails) / len(tally.tails)), "unbiased": one.unbiased,
        "ratio": rounded(ratio.value), "ratio_error": rounded(ratio.error),
    }  # fmt: skip
    if tally.biases:
        values = torch.tensor([bias.value for bias in tally.biases])
        error = math.hypot(*(bias.error for bias in tally.biases)) / len(values)
        found |= {"bias": rounded(values.mean().item()), "bias_error": rounded(error)}
    together = torch.cat(tally.scores) if tally.scores else torch.empty(0)
    if len(together):
        found |= {"scores": len(together), "largest_score": rounded(together.abs().max().item())}
        found |= {"mean_square_score": rounded(together.square().mean().item())}
    return found


def geometric_mean(ratios: Sequence[Known]) -> Known:
    value = math.exp(sum(math.log(ratio.value) for ratio in ratios) / len(ratios))
    return Known(
        value, value * math.hypot(*(ratio.error / ratio.value for ratio in ratios)) / len(ratios)
    )


def times(names: Sequence[str], shape: Sequence[int], n: int, rounds: int) -> dict[str, float]:
    """Return each estimator's CPU time for draw and combine relative to LOORF, as the median over rounds."""
    generator = Generator().manual_seed(0)
    latent = arms.OneHot(torch.randn(*shape, generator=generator))
    steps = {name: step_of(arms.as_estimator(name, n), latent, generator) for name in names}
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for index in range(rounds + 2):
        seconds = {}
        for name, step in steps.items():
            start = process_time()
            step()
            seconds[name] = process_time() - start
        if index >= 2:  # the first two rounds are a warmup
            for name in names:
                ratios[name].append(seconds[name] / seconds["loorf"])
    return {name: float(f"{median(found):.3g}") for name, found in ratios.items()}


def step_of(
    estimator: arms.Estimator, latent: arms.OneHot, generator: Generator
) -> Callable[[], None]:
    needs = estimator.design.needs
    assert needs.evaluations is not None
    values = torch.randn(needs.evaluations, *latent.batch_shape, generator=generator)
    derivatives = torch.randn(needs.derivatives, *latent.logits.shape, generator=generator)

    def step() -> None:
        estimator.combine(estimator.design.draw(latent, generator), values, derivatives)

    return step


PROBLEMS = [
    *(
        Problem(kind, categories, latents)
        for kind in ("toy", "random")
        for categories, latents in SIZES
    ),
    Problem("random", 10, 3, scale=3.0),
    Problem("network", 10, 3),
    Problem("network", 5, 20),
    Problem("network", 10, 20),
    Problem("network", 10, 60),
    Problem("network", 10, 20, gain=3.0),
    Problem("network", 10, 20, gain=10.0),
]


def shown(ratio: float) -> str:
    return "0" if ratio == 0 else f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.3f}"


def markdown(result: dict[str, Any]) -> str:
    """Return all tables, and the precision of their ratios."""
    rows = result["rows"]
    tables = [
        small_table(rows),
        network_table(rows),
        bias_table(rows),
        score_table(rows),
        time_table(result["times"]),
    ]
    return "\n\n".join("\n".join(lines) for lines in [*tables, errors(rows)])


def small_table(rows: Sequence[Row]) -> list[str]:
    """Return a table with a row for each problem, and ratios for every n in each cell."""
    names = [*BLACK_BOX, "exact"]
    lines = [f"Variance relative to LOORF at n = {' / '.join(map(str, SAMPLES))}", ""]
    lines += [f"| problem | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for problem in dict.fromkeys(row["problem"] for row in rows if row["kind"] != "network"):
        found = {
            (row["estimator"], row["n"]): shown(row["ratio"])
            for row in rows
            if row["problem"] == problem
        }
        cells = [[found.get((name, n), "-") for n in SAMPLES] for name in names]
        texts = ["" if set(cell) == {"-"} else " / ".join(cell) for cell in cells]
        lines.append(f"| {problem} | {' | '.join(texts)} |")
    return lines


def by_problem(rows: Sequence[Row], cell: Callable[[Row], str]) -> list[str]:
    """Return a table with a row for each estimator and its work, and a column for each problem."""
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    lines = [f"| estimator | evaluations | derivatives | {' | '.join(problems)} |"]
    lines.append("|---|" + "--:|" * (2 + len(problems)))
    for name, evaluations in dict.fromkeys((row["estimator"], row["evaluations"]) for row in rows):
        mine = {
            row["problem"]: row
            for row in rows
            if (row["estimator"], row["evaluations"]) == (name, evaluations)
        }
        first = next(iter(mine.values()))
        title = name if first["unbiased"] else f"{name} (biased)"
        cells = [cell(mine[problem]) if problem in mine else "" for problem in problems]
        lines.append(f"| {title} | {evaluations} | {first['derivatives']} | {' | '.join(cells)} |")
    return lines


def network_table(rows: Sequence[Row]) -> list[str]:
    order = [*BLACK_BOX, "midpoint", "midpoint-single", *BIASED]
    networks = [row for row in rows if row["kind"] == "network"]
    networks.sort(key=lambda row: order.index(row["estimator"]))
    return [
        "Networks: variance relative to LOORF with the same number of evaluations",
        "",
        *by_problem(networks, ratio_cell),
    ]


def ratio_cell(row: Row) -> str:
    return shown(row["ratio"])


def bias_table(rows: Sequence[Row]) -> list[str]:
    biased = [row for row in rows if "bias" in row]
    kept = [row for row in biased if row["kind"] == "network" or row["problem"] == "toy K10 d3"]
    lines = ["Biased estimators: bias |E g - gradient| / |gradient|, for any number of samples", ""]
    return lines + by_problem(kept, lambda row: f"{row['bias']:.3f} ± {row['bias_error']:.3f}")


def time_table(found: Sequence[Row]) -> list[str]:
    lines = ["Time of draw and combine, relative to LOORF", ""]
    names = list(found[0]["ratios"])
    lines += [f"| | {' | '.join(names)} |", "|---|" + "--:|" * len(names)]
    for one in found:
        ratios = one["ratios"]
        cells = [
            f"{ratios[name]:,.{ratios[name] < 100:d}f}" if name in ratios else "" for name in names
        ]
        batch, latents, categories = one["shape"]
        lines.append(
            f"| K = {categories:,}, n = {one['n']}, d = {latents}, B = {batch} | {' | '.join(cells)} |"
        )
    return lines


def score_table(rows: Sequence[Row]) -> list[str]:
    """Compare the unbiased estimators with enumeration."""
    lines = ["Mean estimates minus enumerated gradients, in standard errors", ""]
    lines += [
        "| estimator | scores | largest | limit | mean square | |",
        "|---|--:|--:|--:|--:|---|",
    ]
    scored = [row for row in rows if "scores" in row]
    for name in dict.fromkeys(row["estimator"] for row in scored):
        mine = [row for row in scored if row["estimator"] == name]
        count, largest = (
            sum(row["scores"] for row in mine),
            max(row["largest_score"] for row in mine),
        )
        square = sum(row["scores"] * row["mean_square_score"] for row in mine) / count
        limit = score_limit(count)
        verdict = "pass" if largest <= limit else "FAIL"
        lines.append(
            f"| {name} | {count:,} | {largest:.2f} | {limit:.2f} | {square:.2f} | {verdict} |"
        )
    return lines


def errors(rows: Sequence[Row]) -> list[str]:
    """Summarize the standard errors of the ratios."""
    lines = []
    for title, kinds in (("Small problems", ("toy", "random")), ("Networks", ("network",))):
        found = sorted(
            row["ratio_error"] / row["ratio"]
            for row in rows
            if row["ratio"] > 0 and row["kind"] in kinds
        )
        middle, last = found[len(found) // 2], found[-1]
        lines.append(
            f"{title}: half of the ratios' standard errors are below {middle:.1%}, all below {last:.1%}."
        )
    return lines


def write(result: dict[str, Any], path: Path) -> None:
    """Write results, one row per line."""
    head = json.dumps({name: value for name, value in result.items() if name != "rows"}, indent=1)
    rows = ",\n  ".join(json.dumps(row) for row in result["rows"])
    path.write_text(f'{head[:-2]},\n "rows": [\n  {rows}\n ]\n}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--draws", type=int, default=6, help="number of draws of the logits, on small problems"
    )
    parser.add_argument("--replicas", type=int, default=4000, help="of each estimate there")
    parser.add_argument("--network-draws", type=int, default=4)
    parser.add_argument("--network-replicas", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=30, help="of the times")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument(
        "--only-times",
        action="store_true",
        help="measure the times again, and keep all other results",
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print the tables of the existing results"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the first draw of a problem")
    parser.add_argument(
        "--derivatives",
        action="store_true",
        help="only networks, and estimators that differentiate them",
    )
    options = parser.parse_args()
    if options.markdown:
        print(markdown(json.loads(options.output.read_text())))
        return
    for count in (options.replicas, options.network_replicas):
        if count < AT_ONCE or count % AT_ONCE:
            parser.error(f"replicas must be a multiple of {AT_ONCE}, got {count}")
    torch.set_num_threads(1)
    result: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]), "torch": torch.__version__,
        "draws": options.draws, "replicas": options.replicas, "network_draws": options.network_draws,
        "network_replicas": options.network_replicas, "rounds": options.rounds, "times": [], "rows": [],
    }  # fmt: skip
    timed: tuple[tuple[list[str], tuple[int, ...]], ...] = (
        ([*BLACK_BOX, "midpoint", *BIASED], (50, 20, 10)),
        (["loorf", "arms", "arms-stratified"], (4, 4, 10_000)),
    )
    for names, shape in () if options.derivatives else timed:
        result["times"].append(
            {"shape": shape, "n": 8, "ratios": times(names, shape, 8, options.rounds)}
        )
        print(result["times"][-1], flush=True)
    if options.only_times:
        known = json.loads(options.output.read_text())
        write(
            {**known, "times": result["times"], "command of the times": result["command"]},
            options.output,
        )
        return
    for problem in PROBLEMS:
        is_network = problem.kind == "network"
        if options.derivatives and not is_network:
            continue
        draws = options.network_draws if is_network else options.draws
        replicas = options.network_replicas if is_network else options.replicas
        start = process_time()
        with torch.no_grad():
            result["rows"] += measure(problem, draws, replicas, options.seed, options.derivatives)
        print(f"{problem.title}: {process_time() - start:.0f} s", flush=True)
        write(result, options.output)


if __name__ == "__main__":
    main()
