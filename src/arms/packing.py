"""Several runs as one wider ensemble: what differs between them is only which estimator serves which replicas.

A GPU that five replicas keep half idle trains twenty-five for little more. Runs that share everything but the estimator
can therefore go through the model together, each with its own run directory, which an ordinary `train` can go on with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.data import Dataset, load
from arms.engine import Drive, Engine
from arms.estimators import ARM, Draw, Estimator
from arms.estimators import estimator as as_estimator
from arms.pipeline import Watcher, block_of, choose_device, final_bounds, report_record
from arms.runs import Record, Run
from arms.training import TrainConfig, Trainer


@dataclass(frozen=True)
class Packed(Estimator):
    """Estimators side by side on the replica axis, the first of the batch: each serves `replicas` of them."""

    members: tuple[Estimator, ...] = ()
    replicas: int = 1

    formula: ClassVar[str] = "each member's own"
    reference: ClassVar[str] = "the members'"

    def draw(self, logits: Tensor, generator: Generator | None = None) -> Draw:
        parts = logits.split(self.replicas)
        draws = [member.draw(part, generator) for member, part in zip(self.members, parts, strict=True)]
        return Draw(self, logits, torch.cat([draw.samples for draw in draws], 1))

    def combine(self, draw: Draw, values: Tensor) -> Tensor:
        parts = zip(
            self.members,
            draw.logits.split(self.replicas),
            draw.samples.split(self.replicas, 1),
            values.split(self.replicas, 1),
            strict=True,
        )
        return torch.cat([member.combine(Draw(member, phi, b), f) for member, phi, b, f in parts])


def train_packed(
    config: TrainConfig,
    estimators: Sequence[str],
    directories: Sequence[Path],
    *,
    device: str = "auto",
    data_dir: Path | str | None = None,
    dataset: Dataset | None = None,
    drive: Drive = "auto",
    watch: Watcher | None = None,
) -> list[Run]:
    """Train `config` once for each estimator, all at once, into one run directory each; finished ones are not redone.

    The estimators must be of the expectation, without parameters or noise of their own to remember.
    """
    configs = [replace(config, estimator=name) for name in estimators]
    packed = _pack(configs)
    runs = [Run.create(path, one) for path, one in zip(directories, configs, strict=True)]
    if all(run.result() is not None for run in runs):
        return runs
    device = choose_device(device)
    dataset = dataset or load(config.dataset, data_dir)
    trainer = Trainer(replace(config, replicas=config.replicas * len(configs)), dataset, device)
    trainer.estimator = packed
    for run in runs:
        run.forget_after(0)
    engine, start = Engine(trainer, drive, block_of(config)), perf_counter()
    while trainer.steps_done < config.steps:
        engine.replay()
        if trainer.steps_done % config.report_every == 0 or trainer.steps_done == config.steps:
            record = report_record(trainer, dataset)
            for index, run in enumerate(runs):
                run.report(_share_of_lists(record, index, config.replicas))
            if watch:
                watch(record)
    result, state = final_bounds(trainer.model, dataset, config), trainer.state()
    for index, run in enumerate(runs):
        run.save(_share_of_state(state, index, len(runs)))
        bounds = {split: _share_of_lists(found, index, config.replicas) for split, found in result["bounds"].items()}
        run.describe(device, perf_counter() - start)
        run.finish({**result, "bounds": bounds})
    return runs


def _pack(configs: Sequence[TrainConfig]) -> Packed:
    members = tuple(as_estimator(one.estimator, one.num_samples) for one in configs)
    for member in members:
        if member.objective != "expectation" or member.relaxes or isinstance(member, ARM):
            raise ValueError(f"{member} cannot be packed: choose among loorf, disarm, arts, arms-d, arms-n, arms-s")
    return Packed(configs[0].num_samples, members, configs[0].replicas)


def _share_of_lists(record: Mapping[str, object], index: int, replicas: int) -> Record:
    part = slice(index * replicas, (index + 1) * replicas)
    return {name: value[part] if isinstance(value, list) else value for name, value in record.items()}


def _share_of_state(tensors: Mapping[str, Tensor], index: int, runs: int) -> dict[str, Tensor]:
    def share(name: str, tensor: Tensor) -> Tensor:
        shared = name in ("model.pixel_mean", "generator", "counts") or tensor.ndim == 0
        return tensor if shared else tensor.chunk(runs)[index]

    return {name: share(name, tensor) for name, tensor in tensors.items()}
