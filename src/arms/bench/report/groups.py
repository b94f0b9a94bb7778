"""Groups of comparable runs. Each group has one row per estimator."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from arms.bench.config import OBSERVATION, TrainConfig
from arms.bench.report.collect import RunData
from arms.designs import Needs
from arms.estimators import ALL_ESTIMATORS, BIASED_ESTIMATORS, as_estimator

POOLED_FIELDS = {"seed", "replicas"}  # runs that differ only in these fields are in the same row
DECODER_RULES = {"all": "decoder on all samples", "extra": "decoder on one extra sample"}


class Setting(NamedTuple):
    """The fields of a configuration that all runs of a comparison have in common."""

    dataset: str
    network: str
    num_samples: int
    steps: int
    decoder_samples: str
    structure: str = ""  # distinguishes user models of the same name
    categories: int = 2
    latents: int = 0  # 0 for bits, because their number may differ within a table
    layers: tuple[int, ...] = ()
    likelihood: str = "bernoulli"
    inputs: str = "centered"
    kl: str = "sampled"

    @property
    def parts(self) -> list[str]:
        """The setting in words, one text per field, in a fixed order.

        The text is "" for a field that need not be mentioned.
        """
        structure = f" (structure {self.structure})" if self.structure else ""
        kind = "latents" if self.categories > 2 else "bits"
        layers = f"{len(self.layers)} layers of {', '.join(map(str, self.layers))} {kind}"
        return [
            self.dataset,
            self.network + structure,
            f"{self.latents}x{self.categories} categories" if self.categories > 2 else "",
            layers if self.layers else "",
            f"{self.likelihood} pixels" if self.likelihood != "bernoulli" else "",
            f"{self.inputs} inputs" if self.inputs != "centered" else "",
            f"{self.kl} KL" if self.kl != "sampled" else "",
            f"n = {self.num_samples}",
            f"{self.steps:,} steps",
            DECODER_RULES.get(self.decoder_samples, self.decoder_samples),
        ]

    @property
    def title(self) -> str:
        return ", ".join(filter(None, self.parts))


@dataclass(frozen=True)
class Row:
    """Runs that differ only in the seed and the number of replicas. Their replicas are pooled."""

    label: str
    estimator: str
    runs: Sequence[RunData]

    @property
    def biased(self) -> bool:
        """Whether the estimator is biased. If it is, the label says so, and no number is bold."""
        return self.estimator in BIASED_ESTIMATORS

    @property
    def pictured(self) -> RunData | None:
        """The first run of the row with a picture of samples, or None if no run has one."""
        return next((run for run in self.runs if run.picture), None)

    @property
    def evaluated_runs(self) -> list[RunData]:
        """The runs of the row that have bounds at their last step."""
        return [run for run in self.runs if run.bounds is not None]


@dataclass(frozen=True)
class Group:
    """A comparison of runs that have the same setting.

    The rows are in the order of `ALL_ESTIMATORS`, which ends with the biased estimators.
    """

    setting: Setting
    rows: Sequence[Row]

    @property
    def notes(self) -> list[str]:
        """The notes of the group's runs, such as warnings about data sets, without duplicates."""
        return list(dict.fromkeys(run.note for row in self.rows for run in row.runs if run.note))


def group_runs(runs: Iterable[RunData]) -> list[Group]:
    """Return one group for each setting that occurs among the runs.

    A setting contains the structure of a user's model only if two models have the same name but
    different structures.
    """
    by_setting: dict[Setting, list[RunData]] = {}
    structures: dict[str, set[str]] = {}
    for run in runs:
        setting = setting_of(run.config)
        by_setting.setdefault(setting, []).append(run)
        structures.setdefault(setting.network, set()).add(setting.structure)
    groups = []
    for setting in sorted(by_setting):
        one_structure = len(structures[setting.network]) == 1
        shown = setting._replace(structure="") if one_structure else setting
        groups.append(Group(shown, _rows(by_setting[setting])))
    return groups


def setting_of(config: TrainConfig) -> Setting:
    """Return the setting of a run. Runs with equal settings can be compared."""
    fields = {name: getattr(config, name) for name in Setting._fields}
    return Setting(**fields | {"latents": config.latents if config.categories > 2 else 0})


def _rows(runs: Sequence[RunData]) -> list[Row]:
    """Return the rows of the group of these runs. Runs that differ only in seeds share a row.

    If two rows have the same estimator, but different values of another field, such as the learning
    rate, their labels contain this field.
    """
    omitted = {*Setting._fields, *OBSERVATION, *POOLED_FIELDS, "folded"} - {"latents"}
    by_fields: dict[tuple[tuple[str, str], ...], list[RunData]] = {}
    for run in runs:
        fields = asdict(run.config) | {"estimator": run.config.label}
        key = tuple((name, str(value)) for name, value in fields.items() if name not in omitted)
        by_fields.setdefault(key, []).append(run)
    shared = {*dict(set.intersection(*map(set, by_fields))), "estimator"}
    rows = []
    for key, same in by_fields.items():
        own = ", ".join(f"{name} {value}" for name, value in key if name not in shared)
        estimator = same[0].config.label
        rows.append(
            Row(labeled_if_biased(estimator) + (f" ({own})" if own else ""), estimator, same)
        )
    order = {name: place for place, name in enumerate(ALL_ESTIMATORS)}
    return sorted(rows, key=lambda r: (order.get(r.runs[0].config.estimator, len(order)), r.label))


def needs_of(estimator: str, num_samples: int) -> Needs | None:
    """Return what an estimator needs from the objective, or None if its name is not known."""
    if estimator not in ALL_ESTIMATORS:
        return None
    return as_estimator(estimator, num_samples).design.needs


def cost_in_words(estimator: str, num_samples: int) -> list[str]:
    """Return texts with an estimator's numbers of evaluations and derivatives.

    Return [] if the estimator makes n evaluations and uses no derivatives.
    """
    needs = needs_of(estimator, num_samples)
    if needs is None or needs.evaluations is None:
        return []
    if (needs.evaluations, needs.derivatives) == (num_samples, 0):
        return []
    return [f"{needs.evaluations} evaluations", f"{needs.derivatives} derivatives"]


def labeled_if_biased(estimator: str) -> str:
    """Return the name of an estimator for tables, followed by "(biased)" if it is biased."""
    return f"{estimator} (biased)" if estimator in BIASED_ESTIMATORS else estimator
