"""Groups of runs that may be compared (same data set, network, budget, steps, decoder rule), and their rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from arms.bench.config import OBSERVATION, TrainConfig
from arms.bench.report.collect import RunData
from arms.estimators import ALL_ESTIMATORS, BIASED_ESTIMATORS, as_estimator


class Setting(NamedTuple):
    """The fields of a configuration that all rows of one comparison have in common."""

    dataset: str
    network: str
    num_samples: int
    steps: int
    decoder_samples: str
    structure: str = ""
    """Of a model of the user's own: two models of one name may differ."""
    categories: int = 2
    """Of each latent."""
    latents: int = 0
    """How many latents of more than two categories; bits may be compared in one table, whatever their number."""
    layers: tuple[int, ...] = ()
    likelihood: str = "bernoulli"

    @property
    def parts(self) -> list[str]:
        """Each field in words, nothing where it does not apply: settings of any kind have as many."""
        decoder = {"all": "decoder on all samples", "extra": "decoder on one extra sample"}
        rule = decoder.get(self.decoder_samples, self.decoder_samples)
        network = f"{self.network} (structure {self.structure})" if self.structure else self.network
        latents = f"{self.latents}x{self.categories} categories" if self.categories > 2 else ""
        kind = "latents" if self.categories > 2 else "bits"
        layers = (
            f"{len(self.layers)} layers of {', '.join(map(str, self.layers))} {kind}"
            if self.layers
            else ""
        )
        return [
            self.dataset,
            network,
            latents,
            layers,
            f"{self.likelihood} pixels" if self.likelihood != "bernoulli" else "",
            f"n = {self.num_samples}",
            f"{self.steps:,} steps",
            rule,
        ]

    @property
    def title(self) -> str:
        """All fields in words."""
        return ", ".join(filter(None, self.parts))


POOLED_FIELDS = {"seed", "replicas"}
"""Runs that differ in nothing else are one row."""


@dataclass(frozen=True)
class Row:
    """All runs that differ only in their seeds; their replicas are pooled."""

    label: str
    estimator: str
    runs: Sequence[RunData]

    @property
    def biased(self) -> bool:
        """Whether its estimator is biased, so that it is marked and never the best."""
        return self.estimator in BIASED_ESTIMATORS

    @property
    def finished(self) -> list[RunData]:
        """The runs that have final bounds."""
        return [run for run in self.runs if run.bounds is not None]


@dataclass(frozen=True)
class Group:
    """One comparison: its rows, in the order of the registry of estimators, biased ones last."""

    setting: Setting
    rows: Sequence[Row]

    @property
    def notes(self) -> list[str]:
        """The warnings of the data sets of these runs, each once."""
        return list(dict.fromkeys(run.note for row in self.rows for run in row.runs if run.note))


def group_runs(runs: Iterable[RunData]) -> list[Group]:
    """Sort runs into comparisons."""
    by_setting: dict[Setting, list[RunData]] = {}
    for run in runs:
        by_setting.setdefault(setting_of(run.config), []).append(run)
    return [Group(setting, _rows(by_setting[setting])) for setting in sorted(by_setting)]


def name_structures(groups: Sequence[Group]) -> list[Group]:
    """Return the groups with structures in their titles only where models of one name differ in theirs."""
    structures: dict[str, set[str]] = {}
    for group in groups:
        structures.setdefault(group.setting.network, set()).add(group.setting.structure)
    return [
        replace(group, setting=group.setting._replace(structure=""))
        if len(structures[group.setting.network]) == 1
        else group
        for group in groups
    ]


def setting_of(config: TrainConfig) -> Setting:
    """Return the setting that a run shares with those it may be compared with."""
    return Setting(
        config.dataset,
        config.network,
        config.num_samples,
        config.steps,
        config.decoder_samples,
        config.structure,
        config.categories,
        config.latents if config.categories > 2 else 0,
        config.layers,
        config.likelihood,
    )


def _rows(runs: Sequence[RunData]) -> list[Row]:
    by_difference: dict[tuple[tuple[str, str], ...], list[RunData]] = {}
    for run in runs:
        by_difference.setdefault(_differences(run.config), []).append(run)
    shared = set.intersection(*(set(key) for key in by_difference))
    rows = [
        Row(_label(dict(key), dict(shared)), of_row[0].config.label, of_row)
        for key, of_row in by_difference.items()
    ]
    order = {name: place for place, name in enumerate(ALL_ESTIMATORS)}
    return sorted(
        rows, key=lambda row: (order.get(row.runs[0].config.estimator, len(order)), row.label)
    )


def _differences(config: TrainConfig) -> tuple[tuple[str, str], ...]:
    omitted = {*Setting._fields, *OBSERVATION, *POOLED_FIELDS, "folded"} - {"latents"}
    found = asdict(config) | {"estimator": config.label}
    return tuple((name, str(value)) for name, value in found.items() if name not in omitted)


def _label(own: Mapping[str, str], shared: Mapping[str, str]) -> str:
    """Return the estimator, followed by every field in which the row differs from others."""
    extras = [
        f"{name} {value}"
        for name, value in own.items()
        if name not in shared and name != "estimator"
    ]
    name = marked(own["estimator"])
    return f"{name} ({', '.join(extras)})" if extras else name


def work(estimator: str, num_samples: int) -> list[str]:
    """Return what an estimator asks of the decoder beyond n evaluations, in words: nothing, for most.

    >>> work("loorf", 4), work("midpoint", 4)
    ([], ['5 evaluations', '5 derivatives'])
    """
    if estimator not in ALL_ESTIMATORS:
        return []
    needs = as_estimator(estimator, num_samples).design.needs
    if needs.evaluations is None or (needs.evaluations, needs.derivatives) == (num_samples, 0):
        return []
    return [f"{needs.evaluations} evaluations", f"{needs.derivatives} derivatives"]


def marked(estimator: str) -> str:
    """Return the name of an estimator as it stands in tables, legends and captions: with a mark if it is biased.

    >>> marked("arms"), marked("reinmax")
    ('arms', 'reinmax (biased)')
    """
    return f"{estimator} (biased)" if estimator in BIASED_ESTIMATORS else estimator
