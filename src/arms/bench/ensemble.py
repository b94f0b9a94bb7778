"""Several runs as one wider ensemble: some replicas have another estimator, or other images.

A GPU that five replicas keep half idle trains seventy-five for little more. Runs that share
everything but estimator, data set and learning rate can therefore go through one trainer together.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import groupby

import torch
from torch import Tensor

from arms.bench.config import TrainConfig
from arms.bench.data import Dataset
from arms.bench.metrics import Record
from arms.bench.models import DiscreteVAE, seeded_generator
from arms.bench.training.optimizer import RATE_FIELDS, LearningRates
from arms.bench.training.trainer import (
    State,
    Trainer,
    joined,
    joined_models,
    model_of,
    of_run,
    prepared_estimator,
)
from arms.estimators import ESTIMATORS, Estimator, Stacked
from arms.estimators.combinators import describe_signature, evaluation_signature

MAY_DIFFER = ("estimator", "folded", "dataset", *RATE_FIELDS)
"""Fields in which runs of one ensemble may differ."""


def names_of(configs: Sequence[TrainConfig]) -> list[str]:
    """Return what tells runs of one ensemble apart."""
    differing = [name for name in MAY_DIFFER if len({getattr(one, name) for one in configs}) > 1]
    names = []
    for config in configs:
        name = f"{config.label} on {config.dataset}" if "dataset" in differing else config.label
        rates = [f"{field} {getattr(config, field)}" for field in RATE_FIELDS if field in differing]
        names.append(", ".join([name, *rates]))
    return names


def ensemble_key(config: TrainConfig) -> tuple[object, ...]:
    """Return what runs of one ensemble have in common: those with equal keys may share one.

    This is the one place that decides it. An estimator that cannot share the replica axis with
    another is part of the key; it can still serve several data sets.
    """
    shared = [value for name, value in asdict(config).items() if name not in MAY_DIFFER]
    return (*shared, evaluation_signature(config.make_estimator()) or config.label)


def group_for_ensembles(configs: Sequence[TrainConfig]) -> list[list[TrainConfig]]:
    """Sort runs into ensembles, in which runs of one estimator are neighbours.

    Their data sets must have images of the same size and number of levels, which is checked once
    they are loaded.

    >>> runs = [TrainConfig(estimator=name) for name in ("loorf", "relax", "arms", "vimco")]
    >>> [[config.estimator for config in together] for together in group_for_ensembles(runs)]
    [['loorf', 'arms'], ['relax'], ['vimco']]
    """
    found: dict[object, list[TrainConfig]] = {}
    order = [config.label for config in configs]
    for config in sorted(configs, key=lambda config: order.index(config.label)):
        found.setdefault(ensemble_key(config), []).append(config)
    return list(found.values())


def check_same_config(configs: Sequence[TrainConfig]) -> None:
    """Raise, with the reason, if runs cannot share an ensemble."""
    if len({ensemble_key(config) for config in configs}) > 1:
        raise ValueError(_why_not_together(configs))
    names = names_of(configs)
    if len(set(names)) < len(names):
        raise ValueError(
            "runs trained together must differ in estimator, data set or learning rate, got "
            f"{', '.join(names)}: name each once; more seeds are `replicas`"
        )


def stack(configs: Sequence[TrainConfig]) -> Estimator:
    """Return the estimators of all runs as one; equal neighbours draw from one at once."""
    check_same_config(configs)
    groups = [list(same) for _, same in groupby(configs, key=lambda config: config.label)]
    members = [same[0].make_estimator() for same in groups]
    if len(members) == 1:
        return members[0]
    return Stacked(members, [len(same) * configs[0].replicas for same in groups])


def ensemble_trainer(
    configs: Sequence[TrainConfig],
    datasets: Sequence[Dataset],
    device: str,
    model: DiscreteVAE | None = None,
) -> Trainer:
    """Return the trainer of an ensemble; each run has the data and weights it would have alone."""
    config = configs[0]
    if len(configs) == 1:
        return Trainer(config, datasets[0], device, model)
    wide = replace(config, replicas=config.replicas * len(configs))
    alone = {
        dataset: config.build_model(dataset.pixel_mean(), dataset.levels)
        for dataset in dict.fromkeys(datasets)
    }
    weights = joined_models([alone[dataset].state_dict() for dataset in datasets])
    together, rates = _filled(wide, weights, datasets[0].levels), LearningRates(configs, device)
    trainer = Trainer(wide, datasets, device, together, stack(configs), rates)
    # What an estimator learns starts as it would alone, too: each run gets a copy of its own.
    own = prepared_estimator(config, together.event_shape, trainer.data.images.shape[1], device)
    with torch.no_grad():
        for of_all, of_one in zip(trainer.estimator_parameters, own.parameters(), strict=True):
            of_all.copy_(torch.cat([of_one] * len(configs)))
    return trainer


def share_of_record(record: Record, index: int, replicas: int) -> Record:
    """Return a run's own part of a record: its replicas of every list."""
    part = slice(index * replicas, (index + 1) * replicas)
    return {key: value[part] if key != "step" else value for key, value in record.items()}


def share_of_model(trainer: Trainer, config: TrainConfig, index: int, runs: int) -> DiscreteVAE:
    """Return a run's own model, a copy where it is one of several."""
    if runs == 1:
        return trainer.model
    return _filled(config, model_of(of_run(trainer.state(), index, runs)), trainer.data.levels)


def joined_state(states: Sequence[State], seed: int, device: str) -> dict[str, Tensor]:
    """Join the states of runs at one step; those not trained together before get fresh noise."""

    def fresh_noise(step: int) -> Tensor:
        return seeded_generator(seed, f"train from {step}", device=device).get_state()

    return joined(states, fresh_noise)


def group_by_step(resumable: Sequence[set[int]]) -> list[tuple[int, list[int]]]:
    """Sort runs, given the steps that each can resume from, into those that resume together.

    The result is the step of each group, and the indices of its runs. A crash between two saves
    leaves runs of one ensemble a save apart: the step that most of them share is taken first, and
    of several such steps the newest.

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


def _filled(config: TrainConfig, weights: State, levels: int) -> DiscreteVAE:
    """Return a model with a copy of these weights, where they are."""
    mean = weights["pixel_mean"]
    model = config.build_model(mean, levels, str(mean.device), blank=True)
    model.load_state_dict(weights)
    return model


def _why_not_together(configs: Sequence[TrainConfig]) -> str:
    """Return why the keys of these runs are not all equal."""
    remedy = "train them separately"
    for name, first in asdict(configs[0]).items():
        values = [getattr(config, name) for config in configs]
        if name not in MAY_DIFFER and (other := [value for value in values if value != first]):
            what = f"runs trained together may differ in {', '.join(MAY_DIFFER)} only"
            return f"{what}, got {first!r} and {other[0]!r} for {name}: {remedy}"
    estimators = {config.label: config.make_estimator() for config in configs}
    if alone := [name for name, one in estimators.items() if evaluation_signature(one) is None]:
        fitting = [name for name, make in ESTIMATORS.items() if evaluation_signature(make(4))]
        what = f"{alone[0]} cannot share an ensemble with other estimators"
        return f"{what}: train it separately, or choose among {', '.join(fitting)}"
    what = ", ".join(f"{name} ({describe_signature(one)})" for name, one in estimators.items())
    return f"runs trained together must ask the same of the model, got {what}: {remedy}"
