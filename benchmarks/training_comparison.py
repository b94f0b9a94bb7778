"""Effect of gradient variance on the bound: train with several estimators on a GPU, each at its best learning rate.

    python benchmarks/training_comparison.py layers --output benchmarks/results/layer_training.json
    python benchmarks/training_comparison.py bound --output benchmarks/results/bound_training.json
    python benchmarks/training_comparison.py show --output benchmarks/results/layer_training.json

`layers` trains VAEs with two layers of 200 bits on the ELBO, with at most eight evaluations of the model per image and
step: chains with loorf, arms and midpoint (n = 6, seven evaluations) in the first layer. The gradient variance of every
layer is measured at the same models, given the images. The gradient is with respect to the biases of the layer's
logits, and its variance is summed over biases and averaged over images. The committed rows of DisARM with separate
samples for each layer were measured with an earlier version, which had that scheme.
`bound` trains VAEs of one layer on the multi-sample bound with n = 4 and n = 10: VIMCO, estimators as in the papers,
folded estimators, and midpoint-ms with as many samples as the budget allows (n = 2: K = 1, the ELBO; n = 6: K = 3).

Both use dynamic MNIST, five seeds, 100,000 steps, and cosine schedules with several rates. Runs that make the same
evaluations of the model share the replica axis. The output file is written after every ensemble, and finished runs are
not repeated. No ensemble starts after --seconds. For each estimator, `show` prints the rate with the best validation
bound, and its test bound.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import mean, stdev

from torch import Tensor
from training_ensembles import Results, Row, parser_of, rounded, train_ensemble

from arms.bench.config import TrainConfig
from arms.bench.data import Dataset, load, observe
from arms.bench.evaluation import evaluate
from arms.bench.models import DiscreteVAE, seeded_generator
from arms.bench.runs.ensemble import share_of_model
from arms.bench.training.layers import estimate_chains
from arms.bench.training.trainer import Trainer
from arms.estimators import as_estimator

LAYERED = {"loorf": 8, "arms": 8, "midpoint": 6}
"""Estimators of chains, with n for at most eight evaluations."""
BOUNDS: dict[int, dict[str, int]] = {
    budget: {
        **dict.fromkeys(
            [
                "vimco",
                "disarm-ms",
                "disarm-ms-paper",
                "arms-ms-dirichlet",
                "arms-ms-d-paper",
                "arms-ms",
                "arms-ms-s-paper",
            ],
            budget,
        ),
        "midpoint-ms": 2 * (budget // 3),
    }
    for budget in (4, 10)
}
LOOKS = 10
BOUND = 100
IMAGES, DRAWS = 16, 400
REPORT = "arms"
"""Estimators whose trained models are used to measure variances."""
KEY = ("network", "estimator", "num_samples", "layers", "learning_rate", "steps", "replicas")


def configurations(args: argparse.Namespace, network: str) -> Iterator[tuple[TrainConfig, int]]:
    """Yield every run of one network, with its budget of evaluations."""
    usual = TrainConfig(
        dataset=args.dataset,
        network=network,
        steps=args.steps,
        replicas=args.replicas,
        schedule="cosine",
        precision=args.precision,
    )
    for rate in args.rates:
        if args.phase == "layers":
            for name, count in LAYERED.items():
                one = replace(usual, estimator=name, num_samples=count, learning_rate=rate)
                yield replace(one, layers=tuple(args.layers)), 8
        else:
            for budget, of_name in BOUNDS.items():
                for name, count in of_name.items():
                    yield (
                        replace(usual, estimator=name, num_samples=count, learning_rate=rate),
                        budget,
                    )


def run_ensemble(configs: Sequence[TrainConfig], dataset: Dataset, device: str) -> list[Row]:
    """Train runs as one ensemble, evaluate test bounds during training, and all bounds at the end."""

    def look_at(trainer: Trainer, elbo: Tensor, rows: Sequence[Row]) -> None:
        last = trainer.steps_done == LOOKS * (configs[0].steps // LOOKS)
        for index, (config, row) in enumerate(zip(configs, rows, strict=True)):
            model = share_of_model(trainer, config, index, len(configs))
            counts = [1, 4, 5, 10, BOUND] if last else [BOUND]
            test = evaluate(model, dataset, "test", counts, seed=0, images=None if last else 2000)
            seen = rounded(elbo.chunk(len(configs))[index].tolist())
            row["curve"].append(
                {"step": trainer.steps_done, "elbo": seen, "test": rounded(test[BOUND])}
            )
            if last:
                row["test"] = {count: rounded(bounds) for count, bounds in test.items()}
                row["valid"] = rounded(evaluate(model, dataset, "valid", [BOUND], seed=0)[BOUND])
                if len(model.layers) > 1 and config.estimator == REPORT:
                    row["variance"] = layer_variances(model, dataset, config)

    return train_ensemble(configs, [dataset] * len(configs), device, LOOKS, KEY, look_at)


def layer_variances(
    model: DiscreteVAE, dataset: Dataset, config: TrainConfig
) -> dict[str, list[float]]:
    """Return the gradient variance of every layer at one model per estimator, averaged over replicas and images."""
    device = str(model.prior.device)
    generator = seeded_generator(config.seed, "layer variances", device=device)
    images = observe(dataset.train[:IMAGES].to(device), dataset.levels, generator)
    x = images.expand(model.replicas, -1, -1)
    found = {}
    for name, count in LAYERED.items():
        estimator = as_estimator(name, count)
        sums: list[Tensor] = []
        squares: list[Tensor] = []
        for _ in range(DRAWS):
            grads = estimate_chains(model, estimator, x, generator).grads
            # Sum over chains, which gives the gradient of the layer's biases for one image.
            flat = [(grad.sum(0) if grad.ndim > x.ndim else grad).double() for grad in grads]
            sums = [a + b for a, b in zip(sums, flat, strict=True)] if sums else flat
            squares = (
                [a + b.square() for a, b in zip(squares, flat, strict=True)]
                if squares
                else [f.square() for f in flat]
            )
        found[f"{name}, chains"] = [
            float(f"{((b - a * a / DRAWS) / (DRAWS - 1)).sum(-1).mean().item():.5g}")
            for a, b in zip(sums, squares, strict=True)
        ]
    return found


def train(args: argparse.Namespace) -> None:
    dataset, results = load(args.dataset), Results(args, KEY)
    for network in args.networks:
        wanted = dict(configurations(args, network))
        for together in results.ensembles(results.missing(list(wanted)), network, described):
            rows = run_ensemble(together, dataset, args.device)
            results.add(
                [row | {"budget": wanted[one]} for row, one in zip(rows, together, strict=True)]
            )


def described(config: TrainConfig) -> str:
    return f"{config.label} n = {config.num_samples} rate {config.learning_rate:g}"


def best_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the run with the best validation bound for every estimator."""
    found: dict[object, Row] = {}
    for row in rows:
        key = (row["network"], row["budget"], row["estimator"], row.get("layer_samples"))
        if None not in row["valid"] and (
            key not in found or mean(row["valid"]) > mean(found[key]["valid"])
        ):
            found[key] = row
    return list(found.values())


def show(args: argparse.Namespace) -> None:
    """Print a table for each network and budget, best first, and the variances for several layers."""
    result = json.loads(args.output.read_text())
    best = best_rows(result["rows"])
    for network, budget in dict.fromkeys((row["network"], row["budget"]) for row in best):
        print(f"\n{network}, at most {budget} evaluations\n")
        print("| estimator | evaluations | derivatives | rate | test bound, K = 1 | K = 100 |")
        print("|---|--:|--:|--:|--:|--:|")
        mine = [row for row in best if (row["network"], row["budget"]) == (network, budget)]
        for row in sorted(mine, key=lambda row: -mean(row["test"][str(BOUND)])):
            cells = [
                f"{mean(row['test'][k]):.2f} ± {stdev(row['test'][k]):.2f}"
                for k in ("1", str(BOUND))
            ]
            scheme = [row.get("layer_samples", "chains")] if row["layers"] else []
            name = ", ".join(
                [row["estimator"], *([row["remark"]] if "remark" in row else []), *scheme]
            )
            work = f"{row['evaluations']} | {row['derivatives']} | {row['learning_rate']:g}"
            print(f"| {name} | {work} | {' | '.join(cells)} |")
    for row in best:
        if "variance" in row:
            unit = row["variance"]["loorf, chains"]
            print(
                f"\nVariance relative to chains of loorf, {row['network']} models trained with {row['estimator']}\n"
            )
            print(
                "| estimator | "
                + " | ".join(f"layer {layer + 1}" for layer in range(len(unit)))
                + " |"
            )
            print("|---|" + "--:|" * len(unit))
            for name, found in row["variance"].items():
                print(
                    f"| {name} | "
                    + " | ".join(f"{a / b:.3f}" for a, b in zip(found, unit, strict=True))
                    + " |"
                )


def main() -> None:
    parser = parser_of(__doc__, ["layers", "bound", "show"])
    parser.add_argument("--dataset", default="dynamic-mnist")
    parser.add_argument("--layers", nargs="+", type=int, default=[200, 200])
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-3, 3e-3])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--replicas", type=int, default=5)
    args = parser.parse_args()
    (show if args.phase == "show" else train)(args)


if __name__ == "__main__":
    main()
