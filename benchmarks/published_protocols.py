"""RODEO's and ReinMax's protocols: training curves, gradient variances and times per step for each estimator.

    python benchmarks/published_protocols.py reinmax --shapes 8x4 --output reinmax_8x4.json
    python benchmarks/published_protocols.py reinmax --shapes 4x24 --steps 32000 --output reinmax_4x24.json
    python benchmarks/published_protocols.py exact --output exact.json
    python benchmarks/published_protocols.py rodeo --output rodeo.json
    python benchmarks/published_protocols.py time --output time.json
    python benchmarks/published_protocols.py merge --files *.json --output benchmarks/results/published_protocols.json
    python docs/generators

`reinmax` and `rodeo` train each estimator as one ensemble of seeds. With `--together`, estimators that make the same
evaluations of the model share an ensemble. `exact` trains with the exact gradient. Several processes can run at once,
each with its own output file. Finished runs in the file are not repeated. `time` measures a training step of each
estimator alone. Bounds at equal time are read from the curves with these times. `merge` joins files, and adds the
command and machine to every row.
`docs/generators` writes the tables of docs/rodeo.md and docs/reinmax.md.

For every seed, a curve contains the mean training ELBO since the last evaluation, the ELBO and K-sample bounds of the
test set, and the variance of the gradient. As in both papers' code, the variance uses moving averages over steps.
"""

import argparse
import json
import multiprocessing
import multiprocessing.synchronize
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from threading import BrokenBarrierError
from time import perf_counter
from typing import Any, TypeAlias

import torch
from torch import Tensor
from training_ensembles import Results, Row, field_of, parser_of, rounded, train_ensemble

from arms.bench.config import TrainConfig
from arms.bench.data import Dataset, load
from arms.bench.evaluation import evaluate
from arms.bench.presets import apply_preset
from arms.bench.training.engine import Engine, keep_freed_memory
from arms.bench.training.trainer import Trainer, model_of, of_run

Estimators: TypeAlias = Sequence[tuple[Any, ...]]
"""Name, n and temperature; None uses the temperature of the preset or the estimator."""
REINMAX: Estimators = (
    *(("flips", 1), ("flips", 4), ("reinmax", 1)),
    *(("st-gumbel", 1), ("st-gumbel", 1, 1.0)),
)
RODEO: Estimators = (
    *(("loorf", 3), ("arms", 3), ("double-cv", 3), ("rodeo", 3)),
    *(("midpoint", 2), ("flips", 2)),
)
"""Estimators in `RODEO` make three evaluations of the model per image and step."""
LIKELIHOODS = ("bernoulli", "scaled-gaussian")
KEY = (
    *("dataset", "network", "likelihood", "categories", "latents", "estimator", "num_samples"),
    *("temperature", "learning_rate", "steps", "seed", "replicas"),
)
COUNTS = {"gray": (1,), "bernoulli": (1, 3), "scaled-gaussian": (1, 3)}
"""K of the bounds on the test set, by likelihood. RODEO's code reports K = 3 after training with n = 3."""
LAST = 100
"""K of a further bound on the test set, at the end of runs of RODEO's protocol."""
TIMED_STEPS = 2_000
CPU = "one CPU thread"
SHORT = 4_000
"""Shorter trial runs have no warmup."""


def estimators_of(args: argparse.Namespace, known: Estimators) -> Estimators:
    """Return the requested estimators, given as name:n or name:n:temperature, or all."""
    parts = (word.split(":") for word in args.estimators)
    return tuple((name, int(n), *map(float, rest)) for name, n, *rest in parts) or known


def given(args: argparse.Namespace, **fields: Any) -> dict[str, Any]:
    """Return fields of a configuration, with changes from the command line."""
    usual = {"dataset": args.dataset, "replicas": args.replicas, "precision": args.precision}
    return {**usual, **fields, **({"steps": args.steps} if args.steps else {})}


def of_reinmax(args: argparse.Namespace, estimators: Estimators) -> Iterator[TrainConfig]:
    """Yield the configurations of ReinMax's protocol."""
    for shape, estimator in product(args.shapes, estimators):
        categories, latents = map(int, shape.split("x"))
        names = ("estimator", "num_samples", "temperature")
        fields = {
            "categories": categories,
            "latents": latents,
            **dict(zip(names, estimator, strict=False)),
        }
        if args.steps and args.steps < SHORT:
            fields["warmup_steps"] = 0
        yield apply_preset("reinmax", given(args, **fields))


def of_exact(args: argparse.Namespace) -> Iterator[TrainConfig]:
    """Yield the exact gradient of the first shape, by default with 10,000 steps."""
    start = argparse.Namespace(**{**vars(args), "steps": args.steps or 10_000})
    found = next(of_reinmax(start, (("exact", 1),)))
    yield replace(found, precision="highest")  # sums of many terms with both signs lose digits


def of_rodeo(args: argparse.Namespace, estimators: Estimators) -> Iterator[TrainConfig]:
    """Yield the configurations of RODEO's protocol, by default with 20,000 steps."""
    for likelihood, (name, n) in product(args.likelihoods, estimators):
        fields = {"likelihood": likelihood, "estimator": name, "num_samples": n, "steps": 20_000}
        yield apply_preset("rodeo", given(args, **fields))


def wanted(args: argparse.Namespace) -> list[TrainConfig]:
    """Return the configurations of a phase."""
    if args.phase == "exact":
        return list(of_exact(args))
    if args.phase == "rodeo":
        return list(of_rodeo(args, estimators_of(args, RODEO)))
    return list(of_reinmax(args, estimators_of(args, REINMAX)))


def train(args: argparse.Namespace) -> None:
    """Train the runs that are missing in the output file."""
    data, results = load(args.dataset), Results(args, KEY)
    missing = results.missing(wanted(args))
    packs = [missing] if args.together else [[one] for one in missing]
    for pack in packs:
        for together in results.ensembles(pack, args.phase, lambda one: one.label):
            results.add(run_ensemble(together, data, args))


def run_ensemble(
    configs: Sequence[TrainConfig], data: Dataset, args: argparse.Namespace
) -> list[Row]:
    """Train runs that differ in the estimator as one ensemble."""

    def look_at(trainer: Trainer, elbo: Tensor, rows: Sequence[Row]) -> None:
        state, variances = trainer.state(), trainer.gradient_variance().tolist()
        is_last = trainer.steps_done == configs[0].steps // args.looks * args.looks
        print(f"  step {trainer.steps_done:,}: {elbo.mean():.2f}", flush=True)
        for index, (config, row) in enumerate(zip(configs, rows, strict=True)):
            part = slice(index * config.replicas, (index + 1) * config.replicas)
            counts = list(COUNTS[config.likelihood])
            if is_last and config.likelihood != "gray":
                counts.append(LAST)
            bounds = test_bounds(of_run(state, index, len(configs)), config, data, counts, args)
            point = {"step": trainer.steps_done, "train": rounded(elbo.tolist()[part])}
            point |= {f"test K={count}": rounded(bounds[count]) for count in counts}
            row["curve"].append(point | {"variance": variances[part]})

    return train_ensemble(configs, [data] * len(configs), args.device, args.looks, KEY, look_at)


def test_bounds(
    state: dict[str, Tensor],
    config: TrainConfig,
    data: Dataset,
    counts: list[int],
    args: argparse.Namespace,
) -> dict[int, list[float]]:
    """Return K-sample bounds of the test images, by K."""
    weights = model_of(state)
    mean = weights["pixel_mean"]
    model = config.build_model(mean[0, 0], data.levels, str(mean.device), blank=True)
    model.load_state_dict(weights)
    return evaluate(model, data, "test", counts, seed=0, images=args.images)


def merge(args: argparse.Namespace) -> None:
    """Join the rows of several files, and add command, device, precision and PyTorch's version."""
    contents = [json.loads(path.read_text()) for path in args.files]
    commands = dict.fromkeys(made_by(one)["command"] for one in contents)
    joined: dict[str, Any] = {"command": "\n".join(commands)}
    for kind in ("rows", "times"):
        joined[kind] = [row | made_by(one) for one in contents for row in one.get(kind, [])]
    args.output.write_text(json.dumps(joined) + "\n")


def made_by(content: dict[str, Any]) -> Row:
    """Return the command, device and versions of a file, without the output folder."""
    command = re.sub(r"(--output )\S*/", r"\1", content["command"])
    facts = {name: content[name] for name in ("precision", "torch")}
    return {"command": command, "device": content.get("device", CPU), **facts}


def time_steps(args: argparse.Namespace) -> None:
    """Measure the time of a training step of every configuration."""
    configs = list(of_reinmax(args, estimators_of(args, REINMAX)))
    configs += [*of_exact(args), *of_rodeo(args, RODEO)]
    configs = [replace(one, steps=TIMED_STEPS, warmup_steps=0) for one in configs]
    on_cpu = args.device == "cpu"
    seconds = seconds_on_cpu(configs) if on_cpu else seconds_on_gpu(configs, args.device)
    rows = []
    for config, one in zip(configs, seconds, strict=True):
        named = {name: field_of(config, name) for name in KEY if name not in ("steps", "seed")}
        rows.append(named | {"us per step": round(1e6 * one, 1)})
    content = {
        "command": " ".join(["python", *sys.argv]),
        "device": CPU if on_cpu else torch.cuda.get_device_name(),
        "precision": args.precision,
        "torch": torch.__version__,
        "times": rows,
    }
    args.output.write_text(json.dumps(content, indent=1) + "\n")


def seconds_on_cpu(configs: Sequence[TrainConfig]) -> list[float]:
    """Return the least time per step of each, measured in turns, so that clock changes affect all."""
    advances = [blocks_of(config, "cpu", 20) for config in configs]
    for advance in advances:
        advance()
    rounds = [[advance() for advance in advances] for _ in range(5)]
    return [min(times) for times in zip(*rounds, strict=True)]


def seconds_on_gpu(configs: Sequence[TrainConfig], device: str) -> list[float]:
    """Return the least time of a step. Processes compile at the same time, and measure in turns."""
    context = multiprocessing.get_context("spawn")
    ready, turn, times = context.Barrier(len(configs)), context.Lock(), context.SimpleQueue()
    work = [
        context.Process(target=_time_in_turn, args=(index, config, device, ready, turn, times))
        for index, config in enumerate(configs)
    ]
    for process in work:
        process.start()
    for process in work:
        process.join()
    found = {}
    while not times.empty():
        index, seconds = times.get()
        found[index] = seconds
    return [found[index] for index in range(len(configs))]


def blocks_of(config: TrainConfig, device: str, steps: int) -> Callable[[], float]:
    """Return a function that trains for some steps, and returns the seconds of each."""
    engine = Engine(Trainer(config, load(config.dataset), device))

    def advance() -> float:
        begin = perf_counter()
        engine.advance(steps)
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        return (perf_counter() - begin) / steps

    return advance


def _time_in_turn(
    index: int,
    config: TrainConfig,
    device: str,
    ready: "multiprocessing.synchronize.Barrier",
    turn: "multiprocessing.synchronize.Lock",
    times: "multiprocessing.SimpleQueue[tuple[int, float]]",
) -> None:
    try:
        advance = blocks_of(config, device, 500)
        advance()  # compiles
        with suppress(BrokenBarrierError):  # another process has failed, or takes too long
            ready.wait(timeout=120)
        with turn:
            times.put((index, min(advance() for _ in range(3))))
    except BaseException:
        ready.abort()
        raise


def main() -> None:
    phases = {"reinmax": train, "exact": train, "rodeo": train, "time": time_steps, "merge": merge}
    parser = parser_of_phases(list(phases))
    args = parser.parse_args()
    if args.device == "cpu":
        torch.set_num_threads(1)
        keep_freed_memory()
    phases[args.phase](args)


def parser_of_phases(phases: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = parser_of(__doc__, phases)
    parser.set_defaults(precision="high")
    parser.add_argument("--dataset", default="dynamic-mnist")
    parser.add_argument("--shapes", nargs="+", default=["8x4"], help="categories x latents")
    parser.add_argument("--likelihoods", nargs="*", default=list(LIKELIHOODS))
    parser.add_argument(
        "--estimators", nargs="+", default=[], help="for example flips:2 (n = 2) or st-gumbel:1:0.5"
    )
    parser.add_argument("--together", action="store_true", help="estimators share ensembles")
    parser.add_argument("--steps", type=int, help="instead of the protocol's")
    parser.add_argument("--replicas", type=int, default=3, help="seeds")
    parser.add_argument("--looks", type=int, default=48)
    parser.add_argument(
        "--images", type=int, help="number of test images for bounds; all by default"
    )
    parser.add_argument("--files", type=Path, nargs="+", help="what `merge` joins")
    return parser


if __name__ == "__main__":
    main()
