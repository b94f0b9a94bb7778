"""Read the runs for a report. Problems are collected instead of raised."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from arms.bench.config import OBSERVATION, TrainConfig
from arms.bench.metrics import Record, stopped_replicas, stopping_values, surviving
from arms.bench.runs.archives import open_runs, run_sources
from arms.bench.runs.files import read_bytes, shown
from arms.bench.runs.run import Run, is_complete

Bounds: TypeAlias = Mapping[str, Mapping[int, Sequence[float | None]]]
"""{split: {K: list with the bound of each replica in nats, or None for a stopped replica}}."""

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
MAX_PICTURE_BYTES = 4 * 2**20


class Problem(NamedTuple):
    """A path or a run that cannot be reported as usual, and the reason in words."""

    where: str
    what: str


@dataclass(frozen=True)
class RunData:
    """The data of one run, checked for errors, as a report shows them."""

    path: Path
    config: TrainConfig
    metrics: Sequence[Record]
    bounds: Bounds | None  # None if there are no bounds at the last step
    note: str  # the warning of the data set
    provenance: Record
    picture: bytes | None

    @property
    def surviving(self) -> int:
        """The number of replicas that have not stopped."""
        lists = [
            values for by_count in (self.bounds or {}).values() for values in by_count.values()
        ]
        for record in self.metrics[-1:]:
            lists += stopping_values(record).values()
        return min((len(surviving(values)) for values in lists), default=self.config.replicas)


class Collection(NamedTuple):
    """Runs that were read for a report, and the problems found while reading them."""

    runs: Sequence[RunData]
    problems: Sequence[Problem]


def collect(paths: Sequence[Path | str]) -> Collection:
    """Read all runs at the given paths: run directories, archives, or folders of both.

    The runs at each path are in alphabetical order. A run that is at several paths is read once.
    """
    runs: dict[Path, RunData] = {}
    problems: list[Problem] = []
    for path in map(Path, paths):
        sources = sorted(run_sources(path))
        if not sources:
            missing = "missing: there is no such directory or file"
            problems.append(Problem(shown(path), "holds no run" if path.is_dir() else missing))
        for source in sources:
            with _noting_errors(problems, source, "broken"):
                for run in open_runs(source):
                    with _noting_errors(problems, run.path, "broken"):
                        if run.path.resolve() not in runs:
                            runs[run.path.resolve()] = _read(run, problems)
    return Collection(_without_repeats(list(runs.values()), problems), problems)


@contextmanager
def _noting_errors(problems: list[Problem], where: Path, what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError, RuntimeError) as error:
        problems.append(Problem(shown(where), f"{what}: {error}"))


def _read(run: Run, problems: list[Problem]) -> RunData:
    config, result = run.config(), run.result()
    metrics, found = _metrics(run, config)
    notes, bounds = [], None
    if result is not None:
        notes = [result["note"]]
        if "images" in result:
            notes.append(f"final bounds over {result['images']:,} images of each split only")
        by_split = result["bounds"].items()
        bounds = {split: {int(k): values for k, values in of.items()} for split, of in by_split}
    elif len(stopped_replicas(metrics)) < config.replicas:
        done = metrics[-1]["step"] if metrics else 0
        found.insert(0, f"unfinished: {done:,} of {config.steps:,} steps, no result.json")
    picture = run.path / "samples.png"
    content = read_bytes(picture, MAX_PICTURE_BYTES + 1) if picture.is_file() else None
    if content and (len(content) > MAX_PICTURE_BYTES or not content.startswith(PNG_MAGIC)):
        found.append("samples.png is omitted, because it is larger than 4 MiB or not a PNG file")
        content = None
    problems += [Problem(str(run.path), what) for what in found]
    provenance: Record = {}
    with _noting_errors(problems, run.path, "its provenance is omitted"):
        provenance = run.provenance() if run.has("provenance.json") else {}
    note = "; ".join(filter(None, notes))
    return RunData(run.path, config, metrics, bounds, note, provenance, content)


def _metrics(run: Run, config: TrainConfig) -> tuple[list[Record], list[str]]:
    """Return the complete records of a run, sorted by step, and one text for each problem."""
    # Read the lines before the records, because a run in training may append lines in between.
    lines = run.metric_lines()
    records = [record for record in run.metrics() if is_complete(record, config.replicas)]
    stopped, found = stopped_replicas(records), []
    left = config.replicas - len(stopped)
    lost = sum(bool(line.strip()) for line in lines) - len(records)
    if lost > 0:
        found.append(f"metrics.jsonl: skipped {lost} of {len(lines)} lines, which are incomplete")
    if stopped and left:
        each = ", ".join(f"replica {one} at step {step:,}" for one, step in sorted(stopped.items()))
        means = f"means are over the other {left} of {config.replicas}"
        found.append(f"numbers not finite: stopped {each}; {means}")
    elif stopped:
        last = max(stopped.values())
        found.append(f"diverged at step {last:,}: numbers not finite, and no replica is left")
    return sorted(records, key=lambda record: int(record["step"])), found


def _without_repeats(runs: list[RunData], problems: list[Problem]) -> list[RunData]:
    """Return the runs without repetitions. Add a problem to `problems` for each run left out.

    Two runs repeat each other if they differ only in the number of replicas and in fields of
    `ObservationConfig`. Of such runs, prefer those with bounds, and among these keep the one with
    the most replicas.
    """
    observation = {name: getattr(TrainConfig, name) for name in OBSERVATION}
    by_training: dict[TrainConfig, list[RunData]] = {}
    for run in runs:
        by_training.setdefault(replace(run.config, replicas=1, **observation), []).append(run)
    kept = []
    for same in by_training.values():
        best = max(same, key=lambda run: (run.bounds is not None, run.config.replicas))
        kept.append(best)
        for run in (run for run in same if run is not best):
            what = "configuration" if run.config == best.config else "seed and training"
            problems.append(Problem(str(run.path), f"skipped: the same {what} as {best.path}"))
    return kept
