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
            values for by_count in (self.bounds or {}).values() for values in by_count.values()
        ]
        for record in self.metrics[-1:]:
            lists += stopping_values(record).values()
        return min((len(surviving(values)) for values in lists), default=self.config.replicas)


@dataclass(frozen=True)
class Collection:
    """The runs under some paths, and the problems met while reading them."""

    runs: Sequence[RunData]
    problems: Sequence[Problem]


def collect(paths: Sequence[Path | str]) -> Collection:
    """Read run directories, archives, or folders of them, each run once, in alphabetical order."""
    runs: dict[Path, RunData] = {}
    problems: list[Problem] = []
    for path in map(Path, paths):
        sources = sorted(run_sources(path))
        if not sources:
            missing = "missing: there is no such directory or file"
            problems.append(Problem(shown(path), "holds no run" if path.is_dir() else missing))
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
    config, result = run.config(), run.result()
    found: list[str] = []
    metrics = _metrics(run, config, found)
    stopped = stopped_replicas(metrics)
    if result is None and len(stopped) < config.replicas:
        done = metrics[-1]["step"] if metrics else 0
        found.append(f"unfinished: {done:,} of {config.steps:,} steps, no result.json")
    if stopped:
        found.append(_describe_stopped(stopped, config.replicas))
    notes, bounds = [], None
    if result is not None:
        notes.append(result["note"])
        if "images" in result:
            notes.append(f"final bounds over {result['images']:,} images of each split only")
        bounds = {
            split: {int(count): values for count, values in by_count.items()}
            for split, by_count in result["bounds"].items()
        }
    note = "; ".join(filter(None, notes))
    provenance, picture = _provenance(run, found), _picture(run.path, found)
    problems += [Problem(str(run.path), what) for what in found]
    return RunData(run.path, config, metrics, bounds, note, provenance, picture)


def _describe_stopped(stopped: Mapping[int, int], replicas: int) -> str:
    left = replicas - len(stopped)
    if not left:
        last = max(stopped.values())
        return f"diverged at step {last:,}: numbers not finite, and no replica is left"
    each = ", ".join(
        f"replica {number} at step {step:,}" for number, step in sorted(stopped.items())
    )
    return f"numbers not finite: stopped {each}; means are over the other {left} of {replicas}"


def _metrics(run: Run, config: TrainConfig, found: list[str]) -> list[Record]:
    # Lines are counted first: a run that is still training may append one before it is read again.
    lines = run.metric_lines()
    records = [record for record in run.metrics() if is_complete(record, config.replicas)]
    lost = sum(bool(line.strip()) for line in lines) - len(records)
    if lost > 0:
        found.append(f"metrics.jsonl: {lost} of {len(lines)} lines are incomplete; skipped")
    return sorted(records, key=lambda record: int(record["step"]))


def _provenance(run: Run, found: list[str]) -> Record:
    if not run.has("provenance.json"):
        return {}
    try:
        return run.provenance()
    except ValueError as error:
        found.append(f"its provenance is omitted: {error}")
        return {}


def _picture(path: Path, found: list[str]) -> bytes | None:
    file = path / "samples.png"
    if not file.is_file():
        return None
    data = read_bytes(file, MAX_PICTURE_BYTES + 1)
    if len(data) <= MAX_PICTURE_BYTES and data.startswith(PNG_MAGIC):
        return data
    too_large = len(data) > MAX_PICTURE_BYTES
    found.append(
        f"samples.png is {'larger than 4 MiB' if too_large else 'not a PNG file'}; omitted"
    )
    return None


def _without_repeats(runs: list[RunData], problems: list[Problem]) -> list[RunData]:
    """Keep one run per seed and training: a replica that is counted twice is no more evidence."""
    by_start: dict[TrainConfig, list[RunData]] = {}
    for run in runs:
        by_start.setdefault(_start(run.config), []).append(run)
    kept = []
    for same in by_start.values():
        best = max(same, key=lambda run: (run.bounds is not None, run.config.replicas))
        kept.append(best)
        for run in (run for run in same if run is not best):
            what = "configuration" if run.config == best.config else "seed and training"
            problems.append(Problem(str(run.path), f"the same {what} as {best.path}; skipped"))
    return kept


def _start(config: TrainConfig) -> TrainConfig:
    """Return the configuration without the fields that do not change how a replica is trained."""
    return replace(config, replicas=1, **{name: getattr(TrainConfig, name) for name in OBSERVATION})
