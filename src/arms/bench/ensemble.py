"""Several runs as one wider ensemble: what differs is which estimator serves which replicas, and on which images.

A GPU that five replicas keep half idle trains seventy-five for little more. Runs that share everything but estimator
and data set can therefore go through one trainer side by side. Here is what that takes: which runs may share an
ensemble, the estimator of all of them, and how states, records and models are taken apart into those of each run, and
put together again.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.bench.config import TrainConfig
from arms.bench.data import Dataset
from arms.bench.metrics import Record
from arms.bench.models import BinaryVAE, blank_vae, build_vae, seeded_generator
from arms.bench.training.state import step_of
from arms.bench.training.trainer import Trainer, for_run
from arms.estimators import ESTIMATORS, Draw, Estimator, MultiSample
from arms.estimators import estimator as as_estimator

MAY_DIFFER = ("estimator", "dataset")
"""Fields in which runs of one ensemble may differ."""
SHARED = {"generator", "counts"}
"""Tensors of a state that have no replica axis; numbers, such as Adam's step, have none either."""


@dataclass(frozen=True)
class Packed(Estimator):
    """Estimators side by side on the replica axis, the first of the batch, each for as many as its width says."""

    members: tuple[Estimator, ...] = ()
    widths: tuple[int, ...] = ()

    formula: ClassVar[str] = "each member's own"
    reference: ClassVar[str] = "the members'"

    def draw(self, logits: Tensor, generator: Generator | None = None) -> Draw:
        parts = logits.split(self.widths)
        draws = [member.draw(part, generator) for member, part in zip(self.members, parts, strict=True)]
        if any(draw.noise is not None for draw in draws):
            raise ValueError(
                "an estimator that needs the noise behind its samples cannot share an ensemble: train it separately"
            )
        return Draw(self, logits, torch.cat([draw.samples for draw in draws], 1))

    def combine(self, draw: Draw, values: Tensor) -> Tensor:
        parts = zip(
            self.members,
            draw.logits.split(self.widths),
            draw.samples.split(self.widths, 1),
            values.split(self.widths, 1),
            strict=True,
        )
        return torch.cat([member.combine(Draw(member, phi, b), f) for member, phi, b, f in parts])


@dataclass(frozen=True)
class PackedBounds(Packed, MultiSample):
    """The same for estimators of the multi-sample bound, all of one K."""

    @property
    def bound_samples(self) -> int:
        return bound_of(self.members[0])


def packable(estimator: Estimator) -> bool:
    """Whether an estimator can share the replica axis with others: no parameters, no memory but its samples."""
    return not (estimator.relaxes or estimator.alone)


def bound_of(estimator: Estimator) -> int:
    """Return what runs of one ensemble must share: the K of their bound, 0 for the expectation."""
    return estimator.bound_samples if isinstance(estimator, MultiSample) else 0


def names_of(configs: Sequence[TrainConfig]) -> list[str]:
    """Return what tells runs of one ensemble apart."""
    of_one = len({config.dataset for config in configs}) == 1
    return [config.estimator if of_one else f"{config.estimator} on {config.dataset}" for config in configs]


def ensemble_key(config: TrainConfig) -> tuple[object, ...]:
    """Return what runs of one ensemble have in common: those with equal keys may share one, and no others.

    This is the one place that decides it: whatever groups runs, or refuses to, compares these keys. An estimator that
    cannot share the replica axis with another is part of the key; it can still serve several data sets.
    """
    own = as_estimator(config.estimator, config.num_samples)
    shared = [value for name, value in asdict(config).items() if name not in MAY_DIFFER]
    return (*shared, bound_of(own), None if packable(own) else config.estimator)


def group_for_ensembles(configs: Sequence[TrainConfig]) -> list[list[TrainConfig]]:
    """Sort runs into those that can be trained as one ensemble; within one, runs of one estimator are neighbours.

    Their data sets must have images of the same size and number of levels, which is seen once they are loaded.

    >>> runs = [TrainConfig(estimator=name) for name in ("loorf", "relax", "arms-s", "vimco")]
    >>> [[config.estimator for config in together] for together in group_for_ensembles(runs)]
    [['loorf', 'arms-s'], ['relax'], ['vimco']]
    """
    found: dict[object, list[TrainConfig]] = {}
    order = [config.estimator for config in configs]
    for config in sorted(configs, key=lambda config: order.index(config.estimator)):
        found.setdefault(ensemble_key(config), []).append(config)
    return list(found.values())


def check_same_config(configs: Sequence[TrainConfig]) -> None:
    """Raise, with the reason, if runs cannot share an ensemble."""
    if len({ensemble_key(config) for config in configs}) > 1:
        raise ValueError(_why_not_together(configs))
    names = names_of(configs)
    if len(set(names)) < len(names):
        raise ValueError(
            f"runs trained together must differ in estimator or data set, got {', '.join(names)}: name each once; "
            "more seeds are `replicas`"
        )


def stack(configs: Sequence[TrainConfig]) -> Estimator:
    """Return the estimators of all configurations as one; neighbours with the same estimator draw from it at once."""
    check_same_config(configs)
    groups = [(name, len(list(same))) for name, same in groupby(config.estimator for config in configs)]
    members = tuple(as_estimator(name, configs[0].num_samples) for name, _ in groups)
    if len(members) == 1:
        return members[0]
    kind = PackedBounds if bound_of(members[0]) else Packed
    return kind(configs[0].num_samples, members, tuple(count * configs[0].replicas for _, count in groups))


def ensemble_trainer(
    configs: Sequence[TrainConfig], datasets: Sequence[Dataset], device: str, model: BinaryVAE | None = None
) -> Trainer:
    """Return the trainer of an ensemble; each run has the data set and the weights that it would have alone."""
    config = configs[0]
    if len(configs) == 1:
        return Trainer(config, datasets[0], device, model)
    wide = replace(config, replicas=config.replicas * len(configs))
    alone = {
        dataset: build_vae(config.network, config.latents, dataset.pixel_mean(), config.replicas, config.seed)
        for dataset in dict.fromkeys(datasets)
    }
    together = _filled(wide, _joined([alone[dataset].state_dict() for dataset in datasets]))
    trainer = Trainer(wide, datasets, device, together, stack(configs))
    # What an estimator learns starts as it would alone, too: each run gets a copy of its own.
    own = for_run(config, config.latents, trainer.data.images.shape[1], device)
    with torch.no_grad():
        for of_all, of_one in zip(trainer.learnt, own.parameters(), strict=True):
            of_all.copy_(torch.cat([of_one] * len(configs)))
    return trainer


def share_of_record(record: Record, index: int, replicas: int) -> Record:
    """Return a run's own part of a record: its replicas of every list."""
    part = slice(index * replicas, (index + 1) * replicas)
    return {name: value[part] if isinstance(value, list) else value for name, value in record.items()}


def share_of_state(tensors: Mapping[str, Tensor], index: int, runs: int) -> dict[str, Tensor]:
    """Return a run's own part of a state, from which it could also be resumed alone."""
    return {name: t if _is_shared(name, t) else t.chunk(runs)[index] for name, t in tensors.items()}


def share_of_model(trainer: Trainer, config: TrainConfig, index: int, runs: int) -> BinaryVAE:
    """Return a run's own model, a copy where it is one of several: its bounds then depend on no other run."""
    model = trainer.model
    if runs == 1:
        return model
    return _filled(config, share_of_state(model.state_dict(), index, runs))


def only_replicas(tensors: Mapping[str, Tensor], kept: Sequence[int]) -> dict[str, Tensor]:
    """Return the part of a state that belongs to some replicas."""
    return {name: t if _is_shared(name, t) else t[list(kept)] for name, t in tensors.items()}


def joined_state(states: Sequence[Mapping[str, Tensor]], seed: int, device: str) -> dict[str, Tensor]:
    """Return the states of several runs, all at one step, as one.

    Runs that were not trained together so far have each used other noise: they resume with noise that none has seen.
    """
    whole = _joined(states)
    if len({len(state["generator"]) for state in states}) > 1:  # a generator's state is longer on a CPU than on a GPU
        raise ValueError("these runs were begun on different kinds of devices: resume each where it was begun")
    if not all(torch.equal(state["generator"], whole["generator"]) for state in states):
        own = seeded_generator(seed, f"train from {step_of(whole)}", device=device)
        whole["generator"] = own.get_state()
    return whole


def group_by_step(resumable: Sequence[set[int]]) -> list[tuple[int, list[int]]]:
    """Sort runs, given the steps that each can resume from, into those that resume together: step, and their indices.

    A crash between two saves leaves runs of one ensemble a save apart: the step that most of them share is taken first,
    and of several such steps the newest.

    >>> group_by_step([{120, 110}, {110, 100}, {500, 490}])
    [(110, [0, 1]), (500, [2])]
    """
    rest = dict(enumerate(resumable))
    groups = []
    while rest:
        counts = Counter(step for steps in rest.values() for step in steps)
        shared = max(counts, key=lambda step: (counts[step], step))
        groups.append((shared, [index for index, steps in rest.items() if shared in steps]))
        rest = {index: steps for index, steps in rest.items() if shared not in steps}
    return groups


def finite_replicas(tensors: Mapping[str, Tensor], replicas: int) -> list[bool]:
    """Return of every replica whether all its numbers in a model's state are finite."""
    own = [t for name, t in tensors.items() if not _is_shared(name, t) and (replicas == 1 or len(t) == replicas)]
    finite: list[bool] = torch.stack([t.reshape(replicas, -1).isfinite().all(1) for t in own]).all(0).tolist()
    return finite


def _filled(config: TrainConfig, weights: Mapping[str, Tensor]) -> BinaryVAE:
    """Return a model with a copy of these weights, where they are."""
    mean = weights["pixel_mean"]
    model = blank_vae(config.network, config.latents, mean, config.replicas).to(mean.device)
    model.load_state_dict(weights)
    return model


def _joined(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {
        name: first if _is_shared(name, first) else torch.cat([state[name] for state in states])
        for name, first in states[0].items()
    }


def _why_not_together(configs: Sequence[TrainConfig]) -> str:
    """Return why the keys of these runs are not all equal."""
    first = asdict(configs[0])
    for config in configs:
        if other := [name for name, value in asdict(config).items() if name not in MAY_DIFFER and value != first[name]]:
            return (
                f"runs trained together may differ in {' and '.join(MAY_DIFFER)} only, got {first[other[0]]!r} and "
                f"{getattr(config, other[0])!r} for {other[0]}: train them separately"
            )
    estimators = {config.estimator: as_estimator(config.estimator, config.num_samples) for config in configs}
    if alone := [name for name, one in estimators.items() if not packable(one)]:
        fitting = ", ".join(name for name, make in ESTIMATORS.items() if packable(make(4)))
        return (
            f"{alone[0]} cannot share an ensemble with other estimators: train it separately, or choose among {fitting}"
        )
    what = ", ".join(f"{name} {_objective(one)}" for name, one in estimators.items())
    return f"runs trained together must have the same objective, got {what}: train them separately"


def _objective(estimator: Estimator) -> str:
    return f"(bound of K = {bound_of(estimator)})" if bound_of(estimator) else "(expectation)"


def _is_shared(name: str, tensor: Tensor) -> bool:
    return name in SHARED or tensor.ndim == 0
