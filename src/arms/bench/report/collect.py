"""Read the runs of a report, from directories and archives. Problems are collected, never fatal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from arms.bench.config import OBSERVATION, TrainConfig
from arms.bench.metrics import Record, stopped_replicas, stopping_values, surviving
from arms.bench.runs.archives import open_runs, run_sources
from arms.bench.runs.files import read_bytes, shown
from arms.bench.runs.run import Run, is_complete

Bounds: TypeAlias = Mapping[str, Mapping[int, Sequence[float | None]]]
"""{split: {K: bound of each replica in nats, None for one that has stopped}}."""

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
MAX_PICTURE_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Problem:
    """A run or a path that is missing, unfinished, diverged or broken, and what is wrong with it."""

    where: str
    what: str


@dataclass(frozen=True)
class RunData:
    """One run, read and checked."""

    path: Path
    config: TrainConfig
    metrics: Sequence[Record]
    bounds: Bounds | None
    """None if the run is not finished."""
    note: str
    """A warning of its data set, shown beside its numbers."""
    provenance: Record
    picture: bytes | None
    """Its samples.png, if there is one."""

    @property
    def surviving(self) -> int:
        """How many of its replicas have not stopped."""
        lists = [
            values for of_split in (self.bounds or {}).values() for values in of_split.values()
        ]
        lists += [
            values for record in self.metrics[-1:] for values in stopping_values(record).values()
        ]
        return min((len(surviving(values)) for values in lists), default=self.config.replicas)


@dataclass(frozen=True)
class Collection:
    """The runs under some paths, and the problems met while reading them."""

    runs: Sequence[RunData]
    problems: Sequence[Problem]


def collect(paths: Sequence[Path | str]) -> Collection:
    """Read run directories, archives, or folders of them, each run once and in alphabetical order."""
    runs: dict[Path, RunData] = {}
    problems: list[Problem] = []
    for path in map(Path, paths):
        sources = sorted(run_sources(path))
        if not sources:
            what = (
                "holds no run" if path.is_dir() else "missing: there is no such directory or file"
            )
            problems.append(Problem(shown(path), what))
        for run in (run for source in sources for run in _opened(source, problems)):
            try:
                if run.path.resolve() not in runs:
                    runs[run.path.resolve()] = _read(run, problems)
            except (ValueError, OSError, RuntimeError) as error:
                problems.append(Problem(shown(run.path), f"broken: {error}"))
    return Collection(_without_repeats(list(runs.values()), problems), problems)


def _opened(source: Path, problems: list[Problem]) -> list[Run]:
    try:
        return open_runs(source)
    except ValueError as error:
        problems.append(Problem(shown(source), f"broken: {error}"))
        return []


def _read(run: Run, problems: list[Problem]) -> RunData:
    path = run.path
    config = run.config()
    metrics = _metrics(run, config, problems)
    result = run.result()
    bounds = None if result is None else _by_count(result["bounds"])
    stopped = stopped_replicas(metrics)
    diverged = len(stopped) == config.replicas
    if bounds is None and not diverged:
        done = metrics[-1]["step"] if metrics else 0
        problems.append(
            Problem(str(path), f"unfinished: {done:,} of {config.steps:,} steps, no result.json")
        )
    if stopped:
        what = (
            _describe_divergence(stopped)
            if diverged
            else _describe_stopped(stopped, config.replicas)
        )
        problems.append(Problem(str(path), what))
    notes = [result["note"]] if result else []
    if result and "images" in result:
        notes.append(f"final bounds over {result['images']:,} images of each split only")
    note = "; ".join(filter(None, notes))
    return RunData(
        path, config, metrics, bounds, note, _provenance(run, problems), _picture(path, problems)
    )


def _describe_divergence(stopped: Mapping[int, int]) -> str:
    return f"diverged at step {max(stopped.values()):,}: numbers not finite, and no replica is left"


def _describe_stopped(stopped: Mapping[int, int], replicas: int) -> str:
    each = ", ".join(
        f"replica {replica} at step {step:,}" for replica, step in sorted(stopped.items())
    )
    return f"numbers not finite: stopped {each}; means are over the other {replicas - len(stopped)} of {replicas}"


def _metrics(run: Run, config: TrainConfig, problems: list[Problem]) -> list[Record]:
    # Lines are counted first: a run that is still training may append one before it is read again.
    lines = run.metric_lines()
    records = [record for record in run.metrics() if is_complete(record, config.replicas)]
    lost = sum(bool(line.strip()) for line in lines) - len(records)
    if lost > 0:
        problems.append(
            Problem(
                str(run.path),
                f"metrics.jsonl: {lost} of {len(lines)} lines are incomplete; skipped",
            )
        )
    return sorted(records, key=lambda record: int(record["step"]))


def _by_count(bounds: Mapping[str, Mapping[str, Sequence[float | None]]]) -> Bounds:
    return {
        split: {int(count): values for count, values in of.items()} for split, of in bounds.items()
    }


def _provenance(run: Run, problems: list[Problem]) -> Record:
    if not run.has("provenance.json"):
        return {}
    try:
        return run.provenance()
    except ValueError as error:
        problems.append(Problem(str(run.path), f"its provenance is omitted: {error}"))
        return {}


def _picture(path: Path, problems: list[Problem]) -> bytes | None:
    file = path / "samples.png"
    if not file.is_file():
        return None
    data = read_bytes(file, MAX_PICTURE_BYTES + 1)
    if len(data) > MAX_PICTURE_BYTES:
        problems.append(Problem(str(path), "samples.png is larger than 4 MiB; omitted"))
        return None
    if not data.startswith(PNG_MAGIC):
        problems.append(Problem(str(path), "samples.png is not a PNG file; omitted"))
        return None
    return data


def _without_repeats(runs: list[RunData], problems: list[Problem]) -> list[RunData]:
    """Keep one run per seed and training: replicas counted twice would look like more evidence than there is."""
    by_start: dict[TrainConfig, list[RunData]] = {}
    for run in runs:
        by_start.setdefault(_start(run.config), []).append(run)
    kept = [
        max(same, key=lambda run: (run.bounds is not None, run.config.replicas))
        for same in by_start.values()
    ]
    for best, same in zip(kept, by_start.values(), strict=True):
        for run in same:
            if run is not best:
                what = "configuration" if run.config == best.config else "seed and training"
                problems.append(Problem(str(run.path), f"the same {what} as {best.path}; skipped"))
    return kept


def _start(config: TrainConfig) -> TrainConfig:
    """Return the configuration without the fields that change neither the initial weights nor their training."""
    return replace(config, replicas=1, **{name: getattr(TrainConfig, name) for name in OBSERVATION})
