"""Write and read archives, and find runs. An archive is one small JSON file about many runs.

An archive contains the exact config.json, result.json and provenance.json of each run. It also
contains a curve of at most CURVE_POINTS points for each metric. It contains no checkpoints and no
pictures. Archived runs are read in the same way as run directories.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean

from arms.bench.metrics import Record, surviving
from arms.bench.runs import files
from arms.bench.runs.files import shown
from arms.bench.runs.run import Run, is_complete, is_record

ARCHIVE_VERSION = 1
CURVE_POINTS = 50
MOST_NAME_BYTES = 255
"""The longest folder name on common file systems, in bytes."""
RUN_FILES = {"config.json", "metrics.jsonl", "result.json", "provenance.json"}
_PARTS = {"config.json": "config", "result.json": "result", "provenance.json": "provenance"}
"""{file of a run directory: the key of its content in an archive}."""


class ArchivedRun(Run):
    """A run in an archive. It can be read, but not trained.

    If the archive's entry for the run is damaged, `damage` says why; otherwise, it is "". Reading a
    damaged run raises an error with this text.
    """

    def __init__(
        self,
        path: Path | str,
        parts: Mapping[str, Record],
        records: Sequence[Record],
        damage: str = "",
    ) -> None:
        super().__init__(path)
        self._contents = {name: parts[part] for name, part in _PARTS.items() if part in parts}
        self._lines = []  # an archive contains no lines of metrics.jsonl
        self._thinned = records
        self.damage = damage

    def has(self, name: str) -> bool:
        """Return whether the archive contains the run's file `name`, such as "result.json"."""
        return name in self._contents

    def _parse(self, name: str) -> Record:
        lacking = f"the archived run {self.path} has no {name}: archive the run again"
        raise ValueError(self.damage or lacking)

    def metrics(self) -> list[Record]:
        """Return the run's curves as records: one record for each point, with all metrics."""
        return list(self._thinned)


def write_archive(path: Path | str, runs: Sequence[Run]) -> int:
    """Write the results of runs that have ended into one archive. Return the number of runs.

    Args:
        path: The .json file; its folder is created.
        runs: Run directories or archived runs. They are sorted by name. Equal runs are written
            once.
    """
    file = Path(path)
    files.check_path(file)
    if file.suffix != ".json":
        right = file.with_suffix(".json")
        raise ValueError(f"an archive must be a .json file, got {file}: try {right}")
    entries: dict[str, str] = {}
    for run in sorted(runs, key=lambda run: run.path.name):
        name, entry = run.path.name, json.dumps(_entry_of(run), allow_nan=False)
        if entries.setdefault(name, entry) != entry:
            what = "runs in an archive must have different names"
            raise ValueError(f"{what}, got two named {name}: leave one of them out")
    files.make_folder(file.parent)
    # The first line identifies an archive, so that other JSON files need not be read completely.
    head = f'{{"archived_runs": {ARCHIVE_VERSION}, "runs": [\n'
    files.replace_file(file, head + ",\n".join(entries.values()) + "\n]}\n")
    return len(entries)


def _entry_of(run: Run) -> Record:
    if not run.has_ended():
        what = "only runs that have ended can be archived"
        raise ValueError(f"{what}, got {run.path}, which is unfinished: train it to its end first")
    # Copy the files unchanged, because later versions may interpret them in another way.
    parts = {part: run.read(name) for name, part in _PARTS.items() if run.has(name)}
    replicas = run.config().replicas
    records = [record for record in run.metrics() if is_complete(record, replicas)]
    keys = dict.fromkeys(key for record in records for key in record if key != "step")
    curves = {key: _thinned([one for one in records if key in one], key) for key in keys}
    return {"name": run.path.name, **parts, "curves": curves}


def _thinned(records: Sequence[Record], key: str) -> Record:
    """Return the curve of the metric `key`, thinned to at most CURVE_POINTS points.

    The result has the steps and the values of the points. The value of a point is the mean over
    consecutive records, and its step is the last step of these records.
    """
    width = -(-len(records) // CURVE_POINTS)
    parts = [records[start : start + width] for start in range(0, len(records), width)]
    of_replicas = [zip(*(record[key] for record in part), strict=True) for part in parts]
    values = [[_mean(numbers) for numbers in part] for part in of_replicas]
    return {"step": [part[-1]["step"] for part in parts], "values": values}


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of one replica's values, rounded to six digits.

    Return None if a value is None, because the replica has then stopped.
    """
    numbers = surviving(values)
    return float(f"{mean(numbers):.6g}") if len(numbers) == len(values) else None


def is_archive(path: Path | str) -> bool:
    """Return whether a file begins with the bytes with which every archive begins."""
    marker = rb'(\xef\xbb\xbf)?\s*\{\s*"archived_runs"'
    try:
        return re.match(marker, files.read_bytes(Path(path), 100)) is not None
    except OSError:
        return False


def read_archive(path: Path | str) -> list[Run]:
    """Return the runs in an archive.

    A damaged run does not raise an error here. The error is raised when the run's content is read.

    Raises:
        ValueError: The file is not an archive, it has another version, or all of its runs are
            damaged.
    """
    file = Path(path)
    what = f"{shown(file)} must be a file written by `arms archive`"
    try:
        content = json.loads(files.read_bytes(file).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{what}, but it cannot be read: {why}") from None
    if not isinstance(content, dict) or "archived_runs" not in content:
        raise ValueError(f"{what}, got other JSON: name an archive or run directories")
    if (version := content["archived_runs"]) != ARCHIVE_VERSION:
        remedy = "read it with the version of this library that wrote it"
        raise ValueError(f"{what} of version {ARCHIVE_VERSION}, got {version!r}: {remedy}")
    runs = content.get("runs")
    if not isinstance(runs, list):
        got = type(runs).__name__
        raise ValueError(f"{file} must contain a list of runs, got {got}: archive the runs again")
    read = [_run_of(file, index, entry) for index, entry in enumerate(runs, 1)]
    if (names := len({run.path.name for run in read})) < len(runs):
        got = f"{len(runs)} runs with {names} different names"
        raise ValueError(f"{file} must contain each run once, got {got}: remove the duplicates")
    if read and all(run.damage for run in read):
        raise ValueError(read[0].damage)
    return list(read)


def _run_of(file: Path, index: int, entry: object) -> ArchivedRun:
    name = entry.get("name") if isinstance(entry, dict) else None
    name = name if _is_name(name) else None
    try:
        if name is None or not isinstance(entry, dict):
            raise ValueError("the name must be a valid folder name")
        files.check_json(entry)
        parts = {part: entry[part] for part in _PARTS.values() if part in entry}
        if "config" not in parts or not all(isinstance(part, dict) for part in parts.values()):
            raise ValueError("config, result and provenance must be JSON objects")
        records = _records(entry.get("curves"))
        if records is None:
            raise ValueError("each curve must have a list of steps, and a finite number per step")
    except ValueError as error:
        remedy = "archive the run again, or remove it from the file"
        damage = f"{file}: run {index} is damaged, because {error}: {remedy}"
        return ArchivedRun(file / (name or f"run {index}"), {}, [], damage)
    return ArchivedRun(file / name, parts, records)


def _is_name(name: object) -> bool:
    """Return whether the name of an archived run is a string that can be a folder's name."""
    if not isinstance(name, str) or Path(name).name != name or name == ".." or "\0" in name:
        return False
    try:
        return len(name.encode()) <= MOST_NAME_BYTES
    except UnicodeEncodeError:
        return False


def _records(curves: object) -> list[Record] | None:
    """Return the curves of an archived run as records, sorted by step.

    `curves` is {key of a metric: {"step": [...], "values": [...]}}. Return None if `curves` has
    another form.
    """
    by_step: dict[int, Record] = {}
    try:
        for key, curve in dict(curves).items():  # type: ignore[call-overload]
            for step, values in zip(curve["step"], curve["values"], strict=True):
                by_step.setdefault(step, {"step": step})[key] = values
        records = [by_step[step] for step in sorted(by_step)]
    except (TypeError, ValueError, KeyError):
        return None
    return records if all(map(is_record, records)) else None


class UnreadableError(ValueError):
    """Raised if a folder that may contain runs cannot be read."""


def run_sources(path: Path | str) -> Iterator[Path]:
    """Yield the paths of all run directories and archives at or below a path.

    If the path is an archive, or a run within an archive, yield only this path. A folder that
    cannot be read is also yielded, and `open_runs` raises an error for it. Links to folders are
    followed, except links inside linked folders, and links to a parent of the path. Runs
    behind links come last. No run is yielded twice.
    """
    top = Path(path)
    if top.is_file() or top.parent.is_file():
        yield top
        return
    seen: set[str] = set()
    links: list[Path] = []
    yield from _sources_in(top, seen, links)
    for link in links:
        target = os.path.realpath(link)
        if os.path.commonpath([target, os.path.realpath(top)]) != target:
            yield from _sources_in(link, seen, [])


def _sources_in(top: Path, seen: set[str], links: list[Path]) -> Iterator[Path]:
    """Yield the paths of all run directories and archives at or below the folder `top`.

    Folders in `seen` are skipped. Every visited folder is added to `seen`. Links to folders are
    added to `links`, and are not followed.
    """
    failures: list[OSError] = []
    for folder, folders, names in os.walk(top, onerror=failures.append):
        own = os.path.realpath(folder)
        if own in seen:
            folders.clear()
            continue
        seen.add(own)
        folders.sort()
        links += [link for name in folders if (link := Path(folder, name)).is_symlink()]
        if RUN_FILES & set(names):
            yield Path(folder)
        others = sorted(name for name in names if name.endswith(".json") and name not in RUN_FILES)
        yield from (file for name in others if is_archive(file := Path(folder, name)))
    for failure in failures:
        if not isinstance(failure, FileNotFoundError | NotADirectoryError):
            yield Path(failure.filename)


def open_runs(source: Path) -> list[Run]:
    """Return the runs at `source`, which is one of the paths from `run_sources`.

    It is the path of a run directory, of an archive, or of a run within an archive.

    Raises:
        UnreadableError: The folder cannot be read.
        ValueError: The file is not an archive, or it is damaged.
    """
    if source.is_file():
        return read_archive(source)
    if source.parent.is_file():
        return [run for run in read_archive(source.parent) if run.path == source]
    try:
        os.scandir(source).close()
    except OSError as error:
        remedy = "change its permissions, or move it out of this folder"
        what = f"the folder {shown(source)} cannot be read ({error.strerror})"
        raise UnreadableError(f"{what}: {remedy}") from None
    return [Run(source)]


def examine_runs(folder: Path | str) -> Iterator[tuple[Path, Run | ValueError]]:
    """Yield (path, run) for every run in an archive, or at any depth in a folder.

    If an archive or the configuration of a run cannot be read, yield (path, error) instead.
    """
    for source in run_sources(folder):
        try:
            opened = open_runs(source)
        except ValueError as error:  # a damaged archive, an unreadable folder, a path not in UTF-8
            yield source, error
            continue
        for run in opened:
            try:
                run.config()
            except ValueError as error:
                yield run.path, error
            else:
                yield run.path, run


def find_runs(folder: Path | str) -> Iterator[Run]:
    """Yield every run in an archive, or at any depth in a folder.

    Run directories whose configuration cannot be read are skipped.

    Raises:
        ValueError: An archive is damaged, or a folder cannot be read. (If these errors were
            ignored, finished runs would be trained again.)
    """
    for path, found in examine_runs(folder):
        if isinstance(found, Run):
            yield found
        elif isinstance(found, UnreadableError) or not path.is_dir():
            raise found
