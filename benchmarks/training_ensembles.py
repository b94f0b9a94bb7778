"""Code that training benchmarks share: arguments, a file of finished rows, and the training of an ensemble.

An ensemble contains as many runs as can share the replica axis. The output file is written after every ensemble, and
finished runs are not repeated.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import torch
from torch import Tensor

from arms.bench.config import TrainConfig
from arms.bench.data import Dataset
from arms.bench.evaluation import evaluate
from arms.bench.runs.ensemble import ensemble_trainer, group_for_ensembles
from arms.bench.training.engine import advance_to, free_memory
from arms.bench.training.trainer import Trainer, model_of, of_run

Row: TypeAlias = dict[str, Any]
BOUND = 100
"""K of the recorded bounds."""


def parser_of(description: str | None, phases: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser with the arguments that all of these benchmarks share."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("phase", choices=phases)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", default=["linear", "nonlinear"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="medium")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="start no ensemble after this time"
    )
    return parser


class Results:
    """The output file, with rows of finished runs, and their command and machine.

    Args:
        args: The arguments from the parser above.
        key: The fields of a configuration that identify its row.
    """

    def __init__(self, args: argparse.Namespace, key: Sequence[str]) -> None:
        self.path, self.key = args.output, key
        self.content: dict[str, Any] = (
            json.loads(self.path.read_text()) if self.path.exists() else {"rows": []}
        )
        self.content |= {"command": " ".join(["python", *sys.argv]), "torch": torch.__version__}
        self.content |= {"precision": args.precision, "commit": os.environ.get("ARMS_COMMIT", "")}
        if args.device.startswith("cuda"):
            self.content["device"] = torch.cuda.get_device_name()
        self._until = perf_counter() + args.seconds

    def missing(self, configs: Iterator[TrainConfig] | Sequence[TrainConfig]) -> list[TrainConfig]:
        """Return the configurations that have no row yet."""
        done = {tuple(_hashable(row[name]) for name in self.key) for row in self.content["rows"]}
        return [
            one for one in configs if tuple(field_of(one, name) for name in self.key) not in done
        ]

    def ensembles(
        self, configs: Sequence[TrainConfig], title: str, described: Callable[[TrainConfig], str]
    ) -> Iterator[list[TrainConfig]]:
        """Yield ensembles of configurations until the time limit, and print started and remaining runs."""
        for together in group_for_ensembles(configs):
            names = f"{title}: {', '.join(dict.fromkeys(map(described, together)))}"
            if perf_counter() > self._until:
                print(f"left: {names}", flush=True)
                continue
            print(names, flush=True)
            yield together

    def add(self, rows: Sequence[Row], replacing: Sequence[str] = ()) -> None:
        """Write rows to the file, and replace rows with the same values of the fields `replacing`."""
        if replacing:
            replaced = {tuple(row[name] for name in replacing) for row in rows}
            kept = [
                row
                for row in self.content["rows"]
                if tuple(row[name] for name in replacing) not in replaced
            ]
            self.content["rows"] = kept
        self.content["rows"] += rows
        self.path.write_text(json.dumps(self.content))


def field_of(config: TrainConfig, name: str) -> Any:
    """Return a field of a configuration for a row. The label of an estimator shows if it is unfolded."""
    return config.label if name == "estimator" else getattr(config, name)


def _hashable(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value  # JSON converts tuples to lists


def train_ensemble(
    configs: Sequence[TrainConfig],
    datasets: Sequence[Dataset],
    device: str,
    looks: int,
    key: Sequence[str],
    look_at: Callable[[Trainer, Tensor, Sequence[Row]], None],
) -> list[Row]:
    """Train runs as one ensemble, and return a row for each, with the time per step without evaluations.

    Args:
        configs: The configurations of one ensemble.
        datasets: The data set of each run.
        device: The device for training.
        looks: The number of calls of `look_at`, at equal intervals.
        key: The fields of a configuration that its row contains.
        look_at: A function that adds results to the rows, called with the trainer and the ELBO of all replicas since
            the previous call.
    """
    start, seconds, steps = perf_counter(), 0.0, configs[0].steps
    trainer = ensemble_trainer(configs, datasets, device)
    asked = trainer.estimator.design.needs
    rows: list[Row] = [
        {name: field_of(config, name) for name in key}
        | {"evaluations": asked.evaluations or 0, "derivatives": asked.derivatives, "curve": []}
        for config in configs
    ]
    every, begin = steps // looks, perf_counter()
    for step, is_look in advance_to(trainer, every * looks, every):
        if not is_look:
            continue
        elbo = trainer.take_elbo()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        seconds += (
            perf_counter() - begin if step > every else 0.0
        )  # the first block includes compilation
        torch.set_float32_matmul_precision("high")
        look_at(trainer, elbo, rows)
        torch.set_float32_matmul_precision("highest")
        begin = perf_counter()
    for row in rows:
        row["us per step of the pack"] = round(1e6 * seconds / (steps - steps // looks), 1)
        row["replicas of the pack"] = len(configs) * configs[0].replicas
    per_step = rows[0]["us per step of the pack"]
    print(
        f"  {len(rows)} runs, {per_step} us a step, all {perf_counter() - start:.0f} s", flush=True
    )
    del trainer
    free_memory()
    return rows


def note_bounds(
    trainer: Trainer,
    configs: Sequence[TrainConfig],
    data: Mapping[str, Dataset],
    rows: Sequence[Row],
    elbo: Tensor,
    splits: Sequence[str],
) -> None:
    """Add bounds and statistics of the codes at this step to the curve of every run."""
    state, names = trainer.state(), list(dict.fromkeys(config.dataset for config in configs))
    found: dict[str, list[float]] = {"train": elbo.tolist()}
    for split in splits:
        found[split] = []
        for index, name in enumerate(names):  # all data sets have the same number of runs
            weights = model_of(of_run(state, index, len(names)))
            average = weights["pixel_mean"]
            wide = replace(configs[0], replicas=len(average))
            model = wide.build_model(average, data[name].levels, str(average.device), blank=True)
            model.load_state_dict(weights)
            found[split] += evaluate(model, data[name], split, [BOUND], seed=0)[BOUND]
    found |= {key: of.tolist() for key, of in trainer.code_statistics().items()}
    replicas = configs[0].replicas
    for index, row in enumerate(rows):
        part = slice(index * replicas, (index + 1) * replicas)
        row["curve"].append(
            {"step": trainer.steps_done}
            | {key: rounded(every[part]) for key, every in found.items()}
        )


def rounded(values: Sequence[float]) -> list[float | None]:
    return [round(value, 3) if math.isfinite(value) else None for value in values]
