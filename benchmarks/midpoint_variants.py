"""Variants of the midpoint estimator on trained VAEs, and its variance as a function of the number of latents.

    ARMS_DATA_DIR=... python benchmarks/midpoint_variants.py
    python benchmarks/midpoint_variants.py --markdown

All numbers are variances relative to LOORF with the same number of evaluations.

VAEs: models, images and variance are the same as in vae_variance.py. The control C of a pair is the
derivative at the midpoint, the mean derivative at the ends of the other pairs with this midpoint, or a
mixture of both. With an oracle, C is the mean derivative at 24 more exchanges of the pair, counted as
one evaluation. `fitted` uses the coefficients with the least variance on the evaluated draws. Variants
with the same coupling share their draws, also for different numbers of pairs. Variants for the own
part share draws if the numbers of midpoints and pairs are equal. Differences between such variants are
more precise than their standard errors.

Latents: random smooth functions with interactions of every order, at logits of standard deviation 1.5. Coefficients are
fitted on batches of 16 rows, which have the same logits. --markdown reads the file of results.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import softplus
from trained_models import (
    IMAGES,
    NETWORKS,
    Known,
    configured,
    quotient,
    rounded,
    trained,
    variance,
    write,
)
from vae_variance import GROUPS, Problem, shown

import arms
from arms.bench.config import run_name
from arms.bench.training.engine import keep_freed_memory
from arms.designs import BitCoupling, Coupling, Midpoints, Systematic
from arms.designs.midpoints import mean_of_siblings, mean_per_midpoint, repeat_per_pair
from arms.estimators.base import Objective
from arms.estimators.derivative.midpoint import combine_pairs
from arms.latents.base import ExchangeablePairs, HasMean

STEPS = [2_000, 20_000]
MOST_PAIRS = 3
ORIENTATIONS = 24
"""The number of random exchanges of a pair over which the oracle averages derivatives."""
WEIGHTS = [0.35, 0.5, 0.65]
"""Weight of the other pairs' derivatives in the mixture; the library uses 0.5."""
MIDPOINTS_AND_PAIRS = [(1, 1), (2, 1), (5, 1), (1, 2), (2, 2), (3, 2), (1, 3)]
"""Numbers of midpoints, and of pairs per midpoint, for the control variates of the own part."""
LATENTS = [3, 6, 12, 25, 50, 100, 200]
SIZES = [1.0, 2.0]
"""The degree of nonlinearity of the random functions."""
HIDDEN, OBJECTIVES, BATCH = 20, 8, 16
RESULTS = Path(__file__).parent / "results" / "midpoint_variants.json"

Row = dict[str, Any]
Parts = dict[str, Tensor]
"""`plain`, an unbiased estimate, and control variates of mean zero, each `[draws, images, latents]`."""


@dataclass(frozen=True)
class Alike(BitCoupling):
    """Pairs with correlation rho >= 0: the second sample copies a bit of the first with probability rho."""

    rho: float

    def sample_bits(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        assert n == 2
        first, fresh = arms.Bits(logits).sample(2, generator)
        kept = torch.rand(first.shape, generator=generator) < self.rho
        return torch.stack([first, torch.where(kept, first, fresh)])

    def debias(self, logits: Tensor, n: int) -> Tensor:
        return torch.full_like(logits, 1 / (1 - self.rho))


COUPLINGS: dict[str, Coupling | None] = {
    "independent": None,
    "correlation 0.3": Alike(0.3),
    "antithetic": Systematic(),
}


class Variant(NamedTuple):
    """A combination of parts, with its name."""

    name: str
    evaluations: int
    coefficients: dict[str, float | None]
    """The coefficients of the control variates; None for fitted coefficients."""


def values_and_derivatives(objective: Objective, points: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        points = points.detach().requires_grad_()
        values = objective(points)
        assert isinstance(values, Tensor)
        (derivatives,) = torch.autograd.grad(values.sum(), points)
    return values.detach(), derivatives


def gathered(draw: Callable[[], Iterator[tuple[int, Parts]]], draws: int) -> dict[int, Parts]:
    """Return the parts of many calls, of `GROUPS` draws each."""
    calls = [dict(draw()) for _ in range(draws // GROUPS)]
    return {
        key: {name: torch.cat([call[key][name] for call in calls]) for name in calls[0][key]}
        for key in calls[0]
    }


def parts_of_one_midpoint(
    problem: Problem, coupling: Coupling | None
) -> Iterator[tuple[int, Parts]]:
    """Yield 1, 2, ... pairs of one midpoint, with the term that each C subtracts from the plain estimate."""
    latent = arms.as_latent(problem.logits.expand(GROUPS, -1, -1))
    total = MOST_PAIRS + ORIENTATIONS
    assert isinstance(latent, ExchangeablePairs)
    design = Midpoints(2 * total, pairs=total, coupling=coupling)
    points = design.draw(latent, problem.generator).points
    firsts, seconds = points[:total], points[total:-1]
    values, derivatives = values_and_derivatives(problem.objective, points)
    of_pairs = (derivatives[:total] + derivatives[total:-1]) / 2
    known = of_pairs[MOST_PAIRS:].mean(0, keepdim=True)
    for pairs in range(1, MOST_PAIRS + 1):
        step = firsts[:pairs] - seconds[:pairs]
        ends = torch.cat([values[:pairs], values[total : total + pairs]])
        controls = {
            "middle": repeat_per_pair(derivatives[-1:], pairs),
            "oracle": repeat_per_pair(known, pairs),
        }
        if pairs > 1:
            controls["others"] = mean_of_siblings(of_pairs[:pairs], 1)
        found = {
            name: combine_pairs(latent, step, ends, control) for name, control in controls.items()
        }
        plain = combine_pairs(latent, step, ends, torch.zeros_like(step))
        parts = {"plain": plain} | {name: plain - estimate for name, estimate in found.items()}
        # With this definition, plain - own is the own part.
        parts["own"] = plain - known[0] * step[0].square() / 2
        yield pairs, {name: design.correct(latent, part) for name, part in parts.items()}


def variants_of_one_midpoint(pairs: int) -> Iterator[Variant]:
    ends = 2 * pairs
    yield Variant("no derivative", ends, {})
    yield Variant("midpoint", ends + 1, {"middle": 1.0})
    yield Variant("midpoint, fitted", ends + 1, {"middle": None})
    if pairs > 1:
        yield Variant("other pairs", ends, {"others": 1.0})
        yield Variant("other pairs, fitted", ends, {"others": None})
        for weight in WEIGHTS:
            yield Variant(f"mixture {weight}", ends + 1, {"middle": 1 - weight, "others": weight})
        yield Variant("mixture, fitted", ends + 1, {"middle": None, "others": None})
    yield Variant("oracle", ends + 1, {"oracle": 1.0})
    yield Variant("own part alone", ends + 1, {"own": 1.0})


def parts_of_own(problem: Problem, midpoints: int, pairs: int) -> Iterator[tuple[int, Parts]]:
    """Yield an estimate without control variates for the own part, and with several of them."""
    latent = arms.as_latent(problem.logits.expand(GROUPS, -1, -1))
    count = midpoints * pairs
    without, within = (arms.Midpoint(2 * count, pairs=pairs, own_bits=own) for own in (False, True))
    assert isinstance(latent, HasMean)
    draw = without.design.draw(latent, problem.generator)
    values, derivatives = values_and_derivatives(problem.objective, draw.points)
    asked = derivatives[-without.design.needs.derivatives :]
    plain = without.combine(draw, values, asked)
    square = (draw.points[:midpoints] - draw.points[count : count + midpoints]).square() / 2
    _, at_mean = values_and_derivatives(problem.objective, problem.logits.sigmoid().unsqueeze(0))
    parts = {
        "plain": plain,
        "mean": (at_mean * square).mean(0) - latent.covariance_matvec(at_mean[0]),
    }
    if midpoints > 1:
        control = derivatives[-midpoints:]
        if pairs > 1:
            ends = (derivatives[:count] + derivatives[count : 2 * count]) / 2
            siblings = mean_of_siblings(ends, midpoints)
            control = torch.lerp(repeat_per_pair(control, count), siblings, 0.5)
        own = mean_per_midpoint(control, midpoints)
        elsewhere = (own.sum(0) - own) / (midpoints - 1)
        parts["elsewhere"] = (elsewhere * square - latent.covariance_matvec(elsewhere)).mean(0)
        parts["library"] = plain - within.combine(draw, values, asked)
    yield pairs, parts


def variants_of_own(midpoints: int, pairs: int) -> Iterator[Variant]:
    evaluations = midpoints * (2 * pairs + 1)
    yield Variant("own part left", evaluations, {})
    for coefficient in (0.5, 1.0, None):
        how = "fitted" if coefficient is None else str(coefficient)
        yield Variant(
            f"own part by the derivative at the mean, {how}", evaluations + 1, {"mean": coefficient}
        )
    if midpoints > 1:
        yield Variant(
            "own part by other midpoints, as in the library", evaluations, {"library": 1.0}
        )
        yield Variant("own part by other midpoints, fitted", evaluations, {"elsewhere": None})


def fitted(parts: Parts, names: Sequence[str]) -> list[float]:
    """Return the coefficients of control variates with the least variance."""
    estimate, *controls = (
        (parts[name] - parts[name].mean(0)).double() for name in ("plain", *names)
    )
    matrix = torch.tensor([[(one * other).sum() for other in controls] for one in controls])
    vector = torch.tensor([(one * estimate).sum() for one in controls])
    solution: list[float] = torch.linalg.solve(matrix, vector).tolist()
    return solution


def measure(problem: Problem, draws: int, reference_draws: int) -> Iterator[Row]:
    """Yield the rows of one model."""

    @cache
    def baseline(evaluations: int) -> Known:
        return variance(problem.draw(arms.as_estimator("loorf", evaluations), reference_draws))

    def row(variant: Variant, parts: Parts) -> Row:
        names = list(variant.coefficients)
        free = None in variant.coefficients.values()
        found = (
            fitted(parts, names)
            if free
            else [value or 0.0 for value in variant.coefficients.values()]
        )
        estimates = parts["plain"].clone()
        for name, coefficient in zip(names, found, strict=True):
            estimates -= coefficient * parts[name]
        ratio = quotient(variance(estimates), baseline(variant.evaluations))
        facts = {"variant": variant.name, "evaluations": variant.evaluations, "ratio": ratio}
        return facts | ({"coefficients": found} if free else {})

    for name, coupling in COUPLINGS.items():
        for pairs, parts in gathered(
            partial(parts_of_one_midpoint, problem, coupling), draws
        ).items():
            for variant in variants_of_one_midpoint(pairs):
                yield {"coupling": name, "midpoints": 1, "pairs": pairs} | row(variant, parts)
    for midpoints, pairs in MIDPOINTS_AND_PAIRS:
        parts = gathered(partial(parts_of_own, problem, midpoints, pairs), draws)[pairs]
        for variant in variants_of_own(midpoints, pairs):
            yield {"coupling": "independent", "midpoints": midpoints, "pairs": pairs} | row(
                variant, parts
            )


def smooth(latents: int, size: float, generator: Generator) -> Objective:
    """Return a smooth function of bits with all orders of interaction, which is also defined between 0 and 1."""
    size = size / math.sqrt(latents)
    inward, bias, outward = (
        torch.randn(shape, generator=generator) for shape in ((latents, HIDDEN), HIDDEN, HIDDEN)
    )

    def objective(b: Tensor) -> Tensor:
        bent = softplus(size * (1.5 * b @ inward + bias)) ** 1.5
        return bent @ (2 * outward) + torch.sin(3 * size * b.sum(-1))

    return objective


def contenders() -> Iterator[tuple[str, arms.Estimator]]:
    """Yield the estimators for growing numbers of latents: about 6 evaluations, then 10 to 12."""
    for budget, n in ((6, 4), (12, 8)):
        yield "arms", arms.as_estimator("arms", budget)
        yield "arms-taylor", arms.as_estimator("arms-taylor", evaluations=budget)
        yield "midpoint-single", arms.as_estimator("midpoint-single", n)
        yield "midpoint-single without own bits", arms.Midpoint(n, pairs=1, own_bits=False)
        yield "midpoint", arms.as_estimator("midpoint", n)
        if n > 4:  # the control of own bits needs a second midpoint
            yield "midpoint without own bits", arms.Midpoint(n, own_bits=False)


def measure_latents(latents: int, size: float, draws: int) -> Iterator[Row]:
    """Yield the mean ratios over random objectives for one number of latents."""
    ratios: dict[tuple[str, int], list[Known]] = {}
    for seed in range(OBJECTIVES):
        generator = Generator().manual_seed(seed)
        logits = (1.5 * torch.randn(latents, generator=generator)).expand(
            draws // BATCH, BATCH, latents
        )
        variance_of = cache(
            partial(drawn_variance, smooth(latents, size, generator), logits, generator)
        )
        for name, estimator in contenders():
            count = estimator.design.needs.evaluations
            assert count is not None
            ratio = quotient(variance_of(estimator), variance_of(arms.as_estimator("loorf", count)))
            ratios.setdefault((name, count), []).append(ratio)
    for (name, count), known in ratios.items():
        mean = sum(one.value for one in known) / len(known)
        error = math.hypot(*(one.error for one in known)) / len(known)
        yield {"size": size, "estimator": name, "evaluations": count, "ratio": Known(mean, error)}


def drawn_variance(
    objective: Objective, logits: Tensor, generator: Generator, estimator: arms.Estimator
) -> Known:
    """Return the variance of an estimate `[draws / rows, rows, latents]`, whose rows have equal logits."""
    grad = estimator(objective, logits, generator, validate=False).grad
    return variance(grad.flatten(0, 1).unsqueeze(1))


def title(network: str, steps: int) -> str:
    return f"{network[0].upper()}{steps // 1000}k"


def markdown(result: dict[str, Any]) -> str:
    """Return both tables."""
    heads = [title(model["network"], model["steps"]) for model in result["models"]]
    lines = ["Trained VAEs: variance relative to LOORF with the same number of evaluations", ""]
    lines += [
        f"| variant | evaluations | {' | '.join(heads)} |",
        "|---|" + "--:|" * (1 + len(heads)),
    ]
    for row in result["vae"]:
        where = [f"{row['pairs']} pair{'s' * (row['pairs'] > 1)}"]
        where += [f"{row['midpoints']} midpoints"] * (row["midpoints"] > 1)
        where += [row["coupling"]] * (row["coupling"] != "independent")
        cells = [shown(ratio) for ratio in row["ratio"]]
        if "coefficients" in row:
            found = [
                ", ".join(f"{value:.2f}" for value in values) for values in row["coefficients"]
            ]
            cells = [f"{cell} ({values})" for cell, values in zip(cells, found, strict=True)]
        lines.append(
            f"| {', '.join(where)}: {row['variant']} | {row['evaluations']} | {' | '.join(cells)} |"
        )
    names = list(
        dict.fromkeys(f"{row['estimator']} ({row['evaluations']})" for row in result["latents"])
    )
    lines += [
        "",
        "Smooth random functions: variance relative to LOORF with the same number of evaluations (in brackets)",
        "",
    ]
    lines += [f"| size | latents | {' | '.join(names)} |", "|--:|--:|" + "--:|" * len(names)]
    for size in SIZES:
        columns = [row["ratio"] for row in result["latents"] if row["size"] == size]
        for latents, *ratios in zip(LATENTS, *columns, strict=True):
            lines.append(f"| {size:g} | {latents} | {' | '.join(map(shown, ratios))} |")
    return "\n".join(lines)


class Table:
    """Group rows by variant, with a list of ratios for all models, or for all numbers of latents."""

    def __init__(self) -> None:
        self.rows: dict[tuple[Any, ...], Row] = {}

    def add(self, found: Row) -> None:
        facts = {
            name: value for name, value in found.items() if name not in ("ratio", "coefficients")
        }
        row = self.rows.setdefault(tuple(facts.values()), facts | {"ratio": [], "ratio_error": []})
        row["ratio"].append(rounded(found["ratio"].value))
        row["ratio_error"].append(float(f"{found['ratio'].error:.2g}"))
        if "coefficients" in found:
            row.setdefault("coefficients", []).append(
                [float(f"{value:.3g}") for value in found["coefficients"]]
            )
        print(
            " ",
            *facts.values(),
            f"{found['ratio'].value:.4f} ± {found['ratio'].error:.4f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/variance"), help="folder of the trained models"
    )
    parser.add_argument("--draws", type=int, default=400, help="on the VAEs")
    parser.add_argument(
        "--reference-draws", type=int, default=800, help="of LOORF's variance there"
    )
    parser.add_argument("--smooth-draws", type=int, default=3200, help="of each random function")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument(
        "--markdown", action="store_true", help="print the tables of the existing results"
    )
    options = parser.parse_args()
    if options.markdown:
        print(markdown(json.loads(options.output.read_text())))
        return
    for count, factor in (
        (options.draws, GROUPS),
        (options.reference_draws, GROUPS),
        (options.smooth_draws, BATCH),
    ):
        if count < 2 * factor or count % factor:
            parser.error(
                f"draws must be a multiple of {factor}, and at least {2 * factor}, got {count}"
            )
    keep_freed_memory()
    models: list[dict[str, Any]] = [
        {"network": name, "steps": steps} for name, steps in product(NETWORKS, STEPS)
    ]
    result: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]), "torch": torch.__version__, "images": IMAGES,
        "draws": options.draws, "reference_draws": options.reference_draws, "smooth_draws": options.smooth_draws,
        "objectives": OBJECTIVES, "models": models, "numbers_of_latents": LATENTS,
    }  # fmt: skip
    of_latents, of_vaes = Table(), Table()
    for size, latents in product(SIZES, LATENTS):
        print(f"size {size:g}, {latents} latents", flush=True)
        for row in measure_latents(latents, size, options.smooth_draws):
            of_latents.add(row)
    for model in models:
        config = configured(model["network"], model["steps"], "arms")
        vae, images = trained(config, options.runs)
        model["run"] = run_name(config)
        print(title(model["network"], model["steps"]), flush=True)
        for row in measure(
            Problem(vae, images, seed=model["steps"]), options.draws, options.reference_draws
        ):
            of_vaes.add(row)
    result |= {"vae": list(of_vaes.rows.values()), "latents": list(of_latents.rows.values())}
    write(result, options.output, ("vae", "latents"))


if __name__ == "__main__":
    main()
