"""A run directory: the configuration, the results, and the state from which training can resume.

config.json      the configuration; a missing field has its default value. "data_path" is the file
                 from which the user's own data set was read
metrics.jsonl    one record per line: the step, and each metric as a list with one number per
                 replica, or null for a stopped replica
checkpoint.safetensors, checkpoint.previous.safetensors
result.json      the final bounds, after the end of training; "stopped" is {replica: step} for
                 replicas whose numbers were not finite
provenance.json  versions, device, command, wall time
samples.png      test images, reconstructions and samples, drawn by `arms sample`
events.*         the metrics for TensorBoard, if it is installed
.lock            locked while a process trains the run
"""

import hashlib
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

import arms
from arms.bench.config import (
    IDENTITY_VERSION,
    RETIRED_FIELDS,
    TrainConfig,
    difference,
    digest_of,
    identity,
    is_longer,
)
from arms.bench.metrics import Record, is_values, stopped_replicas
from arms.bench.runs import files
from arms.bench.runs.files import CHECKPOINTS, read_checkpoint, step_in, write_checkpoint
from arms.bench.training.trainer import STEP_COUNTS, model_of, step_of

PACKAGE = Path(arms.__file__).parent
NEED_CONFIG = ("result.json", "metrics.jsonl", *CHECKPOINTS)
"""Files of a run that are useless without the run's config.json."""
WRITTEN = ("config.json", "provenance.json", *NEED_CONFIG)
"""All files that training writes, except TensorBoard's events and the lock."""
BESIDE_CONFIG = ("schema", "data_path")
"""Entries of config.json that do not belong to the configuration."""


class Run:
    """A run directory, which may not exist yet.

    Each file is read when it is first needed, and then cached. To see later changes by other
    processes, create a new `Run`, or call `refresh`. A write either replaces a whole file, or
    appends one line. After a crash, only the last line of metrics.jsonl may be incomplete, and
    readers skip this line.

    Args:
        path: The directory.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        files.check_path(self.path)
        self.trained_here = False
        """Whether this object has written records or final bounds."""
        self.refresh()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def refresh(self) -> None:
        """Discard the cached content of all files, so that the files are read again."""
        self._contents: dict[str, Record] = {}
        self._config: TrainConfig | None = None
        self._lines: list[str] | None = None
        self._checkpoint_steps: dict[str, int | None] = {}

    def begin(self, config: TrainConfig, data_path: str = "") -> Self:
        """Start a new run in this directory, or resume the run that it contains.

        If the existing run has fewer steps than `config`, it is extended. Its final bounds are
        replaced when the extended run ends. The fields of `ObservationConfig` may differ from those
        of the existing run; config.json keeps their first values. A directory with another run, or
        with results but without config.json, is an error.

        Args:
            config: The requested configuration.
            data_path: The path of the user's own data set, if any.
        """
        self.check_same_run(config)
        for name in WRITTEN:  # check before the first step instead of at the first save
            files.check_replaceable(self.path / name)
        if not self.exists():
            files.make_folder(self.path)
            content: Record = {"schema": IDENTITY_VERSION, **asdict(config), "data_path": data_path}
            for name in ("structure", "data_path"):  # built-in networks and data sets have none
                if not content[name]:
                    del content[name]
            self._write("config.json", content)
        elif is_longer(config, self.config()):
            self._write("config.json", {**self.read("config.json"), "steps": config.steps})
            self._config = None
        return self

    def exists(self) -> bool:
        """Return whether this directory contains a run."""
        return self.has("config.json")

    def check_same_run(self, config: TrainConfig) -> None:
        """Raise ValueError unless the directory is new, or contains the run of this configuration.

        The run in the directory may have fewer steps than `config`.
        """
        remedy = "choose another directory"
        if not self.exists():
            if found := [name for name in NEED_CONFIG if (self.path / name).exists()]:
                what = (
                    f"{self.path} contains {', '.join(found)}, but the run's config.json is missing"
                )
                raise ValueError(f"{what}: restore config.json, delete these files, or {remedy}")
            return
        if (schema := self.read("config.json").get("schema")) != IDENTITY_VERSION:
            what = f"another version of this library (schema {schema}, expected {IDENTITY_VERSION})"
            raise ValueError(f"{self.path} contains a run of {what}: {remedy}")
        there = self.config()
        if (other := difference(there, config)) and not is_longer(config, there):
            what = ", ".join(
                f"{name} is {theirs!r} there, but {ours!r} was requested"
                for name, (theirs, ours) in other.items()
            )
            if set(other) == {"steps"} and config.steps > there.steps:
                what += "; a cosine schedule ends at the last step, so more steps make another run"
            remedy = f"{remedy}, or request the settings of that run"
            raise ValueError(f"{self.path} contains another run ({what}): {remedy}")

    def config(self) -> TrainConfig:
        """Return the run's configuration, read from config.json."""
        if self._config is None:
            file, content = self.path / "config.json", self.read("config.json")
            version = content.get("schema", IDENTITY_VERSION)
            if type(version) is not int or not 1 <= version <= IDENTITY_VERSION:
                expected = f"a schema from 1 to {IDENTITY_VERSION}"
                remedy = "read it with the version of this library that wrote it"
                raise ValueError(f"{file} must have {expected}, got {version!r}: {remedy}")
            found = {
                name: value
                for name, value in content.items()
                if name not in BESIDE_CONFIG and (name, value) not in RETIRED_FIELDS
            }
            if unknown := set(found) - {field.name for field in fields(TrainConfig)}:
                names = ", ".join(sorted(unknown))
                what = f"{file} has unknown fields {names}, written by another version of arms"
                raise ValueError(f"{what}: read it with that version")
            try:
                self._config = TrainConfig(**found)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{file} is not a valid configuration: {error}") from None
        return self._config

    def data_path(self) -> str | None:
        """Return the path of the user's own data set, or None if config.json has no path."""
        found = self.read("config.json").get("data_path")
        return found if isinstance(found, str) and found else None

    def identity(self) -> dict[str, object]:
        """Return the run's identity, in the version of the schema that config.json has."""
        return identity(self.config()) | {"schema": self.read("config.json").get("schema")}

    def result(self) -> Record | None:
        """Return the content of result.json, or None if there are no final bounds at the last step.

        The bounds may have been computed on only some of the images: see `is_finished`.
        """
        if not self.has("result.json"):
            return None
        config, result = self.config(), {"note": "", **self.read("result.json")}
        if expected := _expected_result(result, config.replicas):
            file = self.path / "result.json"
            raise ValueError(f"{file} must contain {expected}: remove it, and train the run again")
        # An extended run has the bounds of its earlier end until it reaches its new end.
        return result if result.get("steps", config.steps) == config.steps else None

    def is_finished(self, config: TrainConfig | None = None, images: int | None = None) -> bool:
        """Return whether the run is finished: it has final bounds, computed on enough images.

        This is the only definition of a finished run. `has_ended` requires less. A diverged run is
        never finished. If the directory contains another run than `config`, raise ValueError.

        Args:
            config: The requested configuration; by default that in config.json. If it has more
                steps than the run, the run is not finished.
            images: The required number of images per split; by default all images.
        """
        if config is not None:
            self.check_same_run(config)
        if not self.exists() or (config is not None and is_longer(config, self.config())):
            return False
        result = self.result()
        seen = None if result is None else result.get("images")  # None means all images
        return result is not None and (seen is None or (images is not None and images <= seen))

    def has(self, name: str) -> bool:
        """Return whether the run has the file `name`, such as "result.json"."""
        return name in self._contents or (self.path / name).exists()

    def read(self, name: str) -> Record:
        """Return the content of the run's JSON file `name`, such as "result.json"."""
        if name not in self._contents:
            self._contents[name] = self._parse(name)
        return self._contents[name]

    def _parse(self, name: str) -> Record:
        file = self.path / name
        try:
            content = json.loads(files.read_bytes(file).decode("utf-8-sig"))
            files.check_json(content)
        except FileNotFoundError:
            is_folder = self.path.is_dir()
            what = f"has no {name}, so it is not a run directory, or the run is unfinished"
            what = what if is_folder else "does not exist: check the path"
            raise ValueError(f"{self.path} {what}") from None
        except (OSError, ValueError, RecursionError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ValueError(f"{file} cannot be read: {why}") from None
        if not isinstance(content, dict):
            raise ValueError(f"{file} must contain a JSON object, got {type(content).__name__}")
        return content

    def _write(self, name: str, content: Mapping[str, object]) -> None:
        text = files.to_json(content, indent=1)
        files.replace_file(self.path / name, text)
        self._contents[name] = json.loads(text)

    def provenance(self) -> Record:
        """Return the content of provenance.json: versions, device, command and wall time."""
        return self.read("provenance.json")

    def metrics(self) -> list[Record]:
        """Return all valid records in metrics.jsonl. Damaged lines are skipped."""
        records = []
        for line in self.metric_lines():
            with suppress(ValueError, RecursionError):
                if is_record(record := json.loads(line)):
                    records.append(record)
        return records

    def append(self, record: Mapping[str, object]) -> None:
        """Append a record to metrics.jsonl.

        A record contains `step`. For each metric, it also contains a list with one entry per
        replica, a number or None. `arms.bench.metrics` explains how to add a metric.
        """
        files.append_line(self.path / "metrics.jsonl", files.to_json(record))
        self._lines, self.trained_here = None, True

    def finish(self, result: Mapping[str, object]) -> None:
        """Write the final bounds to result.json. `result()` returns them."""
        self._write("result.json", result)
        self.trained_here = True

    def write_provenance(self, device: str, seconds: float, together: Sequence[str] = ()) -> None:
        """Write provenance.json: versions, device, command and wall time.

        Args:
            device: The device on which the run was trained.
            seconds: Duration of this training. It is added to the recorded wall time.
            together: Names of all runs in the ensemble, including this run.
        """
        earlier: Record = {}
        with suppress(ValueError):
            earlier = self.provenance()
        before = earlier.get("wall_seconds")
        if not isinstance(before, int | float) or not math.isfinite(before):
            before = 0.0  # a damaged provenance.json must not stop the training
        on_gpu = device.startswith("cuda")
        record = {
            "version": arms.__version__,
            "commit": commit(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
            "threads": torch.get_num_threads(),
            "command": " ".join(sys.argv),
            "wall_seconds": round(before + seconds, 3),
        }
        if shared := list(together) if len(together) > 1 else earlier.get("together"):
            record["together"] = shared
        self._write("provenance.json", record)

    def save_checkpoint(self, tensors: Mapping[str, Tensor]) -> None:
        """Write tensors as the newest checkpoint, and keep the checkpoint before it."""
        write_checkpoint(self.path, tensors, self._digest())

    def weights(self) -> dict[str, Tensor]:
        """Return the model's weights from the newest checkpoint, for `load_state_dict`."""
        state = self.checkpoint()
        if state is None:
            done = "its checkpoints were not kept" if self.result() else "train it first"
            raise ValueError(f"{self.path} has no intact checkpoint: {done}")
        return model_of(state)

    def checkpoint(self) -> dict[str, Tensor] | None:
        """Return the newest intact checkpoint for `Trainer.load_state`, or None."""
        found = map(self._read_checkpoint, CHECKPOINTS)
        return next((state for state in found if state is not None), None)

    def checkpoints(self) -> dict[int, dict[str, Tensor]]:
        """Return {step: checkpoint} for all intact checkpoints.

        If two checkpoints have the same step, the result contains the newer one.
        """
        found = map(self._read_checkpoint, reversed(CHECKPOINTS))
        return {step_of(state): state for state in found if state is not None}

    def step(self) -> int:
        """Return the step of the newest readable checkpoint, or 0 if there is none."""
        return next(filter(None, (step_in(self.path / name) for name in CHECKPOINTS)), 0)

    def stopped(self) -> dict[int, int]:
        """Return {index of a stopped replica: step of the first record without a value for it}.

        If a replica stopped only because its final bounds were not finite, it is not included here,
        but in "stopped" of `result()`.
        """
        return stopped_replicas(self.metrics())

    def has_diverged(self) -> bool:
        """Return whether all replicas stopped during training."""
        return len(self.stopped()) == self.config().replicas

    def has_ended(self) -> bool:
        """Return whether training has ended.

        Training has ended if there are final bounds, or if all replicas have stopped.
        """
        return self.result() is not None or self.has_diverged()

    def truncate_after(self, step: int) -> None:
        """Remove records and checkpoints of steps after `step`, which will be trained again.

        Call `checkpoint()` or `checkpoints()` first, because only checkpoints that were read are
        removed. (A checkpoint that was not read is older than the checkpoint in use, and can stay.)
        If a later checkpoint stayed, the next save would keep it as the backup, and lose the
        checkpoint in use.
        """
        kept = [files.to_json(record) for record in self.metrics() if record["step"] <= step]
        files.replace_file(self.path / "metrics.jsonl", "".join(kept))
        self._lines = kept
        for name, found in self._checkpoint_steps.items():
            if found is None or found > step:
                (self.path / name).unlink(missing_ok=True)

    def _read_checkpoint(self, name: str) -> dict[str, Tensor] | None:
        """Return the checkpoint in the file `name`, or None if the file is missing or damaged."""
        file = self.path / name
        self._checkpoint_steps[name] = None
        try:
            found = read_checkpoint(file)
        except OSError as error:
            raise ValueError(f"{file} cannot be read: {error.strerror or error}") from None
        if found is None:
            return None
        tensors, run = found
        if STEP_COUNTS not in tensors or not tensors[STEP_COUNTS].numel():
            what = f"{file} must be a checkpoint, but it does not contain a step"
            raise ValueError(f"{what}: remove it")
        if run != self._digest():
            raise ValueError(
                f"the checkpoint {file} does not belong to the config.json in the same folder: "
                "remove the checkpoint to start again, or restore the config.json of its run"
            )
        self._checkpoint_steps[name] = step_of(tensors)
        return tensors

    def _digest(self) -> str:
        """Return the digest of this run that is stored in its checkpoints.

        Only with a cosine schedule, the digest depends on the number of steps.
        """
        found = self.identity()
        if self.config().schedule != "cosine":
            found.pop("steps", None)
        return digest_of(found)

    def metric_lines(self) -> list[str]:
        """Return all lines of metrics.jsonl, including invalid lines."""
        if self._lines is None:
            file = self.path / "metrics.jsonl"
            try:
                self._lines = files.read_bytes(file).decode("utf-8", "replace").splitlines()
            except (FileNotFoundError, NotADirectoryError):
                self._lines = []
            except OSError as error:
                denied = isinstance(error, PermissionError)
                remedy = "change its permissions" if denied else "remove it"
                raise ValueError(f"{file} cannot be read: {error.strerror}: {remedy}") from None
        return self._lines


def is_record(content: object) -> bool:
    """Return whether JSON data, read from a line of metrics.jsonl, is a valid record."""
    if not isinstance(content, dict) or not _is_count(content.get("step")):
        return False
    return all(is_values(values) for name, values in content.items() if name != "step")


def is_complete(record: Record, replicas: int) -> bool:
    """Return whether every metric in a record has one entry, a number or None, for each replica."""
    return all(len(values) == replicas for name, values in record.items() if name != "step")


def _is_count(content: object) -> bool:
    """Return whether JSON data is a whole number of at least 1, such as a number of steps."""
    return type(content) is int and 1 <= content < 2**63


def _expected_result(result: Record, replicas: int) -> str:
    """Return a text that says what result.json should contain and does contain instead.

    Return "" if `result` is valid.
    """
    bounds = result.get("bounds")
    splits = bounds.values() if isinstance(bounds, dict) else ()
    if not splits or not all(isinstance(by_count, dict) for by_count in splits):
        return "{'bounds': {split: {K: [...]}}}, got something else"
    for split, by_count in result["bounds"].items():
        for count, values in by_count.items():
            if not count.isdecimal() or not is_values(values) or len(values) != replicas:
                what = f"{replicas} numbers, one per replica, for each whole K"
                return f"{what}, got something else for K = {count!r} of {split!r}"
    if not isinstance(result["note"], str):
        return f"text in 'note', got {repr(result['note'])[:60]}"
    for name in ("images", "steps"):
        if name in result and not _is_count(result[name]):
            return f"a whole number of at least 1 in {name!r}, got {repr(result[name])[:60]}"
    return ""


def commit() -> str:
    """Return the git commit of this package's source code.

    If the environment variable ARMS_COMMIT is set, return its value. If the package lies inside the
    repository of another project, the commit of that repository is not used. If there is no commit,
    return a digest of the source code.
    """
    said = os.environ.get("ARMS_COMMIT", "").strip()
    return said or _git_commit(PACKAGE) or f"source-{_source_digest()}"


@cache  # the code of a running process does not change
def _git_commit(package: Path) -> str:
    git = ["git", "-C", str(package)]
    is_ours = [*git, "ls-files", "--error-unmatch", "__init__.py"]
    state = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        subprocess.check_output(is_ours, stderr=subprocess.DEVNULL, timeout=10)  # noqa: S603
        said = subprocess.check_output(state, stderr=subprocess.DEVNULL, timeout=10)  # noqa: S603
        return said.decode().strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _source_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix().encode()
        digest.update(name + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
