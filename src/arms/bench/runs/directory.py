"""A run directory: what was asked, what came of it, and enough to go on after a crash at any moment.

config.json      the configuration, which decides every number
metrics.jsonl    a line a report: step, then each metric as a list with one number a replica, null once it has stopped
checkpoint.safetensors, checkpoint.previous.safetensors
result.json      the final bounds, once training has ended; "stopped": {replica: step} where some came to no number
provenance.json  versions, device, command, wall time
events.*         the metrics again, for TensorBoard, where it is installed
"""

import hashlib
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path

import torch
from torch import Tensor

from arms.bench.config import TrainConfig, run_name
from arms.bench.metrics import Record, stopped_replicas
from arms.bench.training.state import step_of

CHECKPOINTS = ("checkpoint.safetensors", "checkpoint.previous.safetensors")


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Keep other processes from training in a directory; a process that dies lets go of it."""
    try:
        import fcntl
    except ImportError:  # not a Unix
        yield
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems know no locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"{path} is being trained by another process: wait until it has ended, or name another directory"
                ) from None
        yield
    finally:
        os.close(descriptor)


class Run:
    """One run directory. Every file is replaced whole or appended by a line: a crash leaves nothing half-written."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: Path | str, config: TrainConfig) -> "Run":
        """Return the run of this configuration in that directory, new or to be gone on with."""
        run = cls(path)
        if run.exists():
            if (found := run.config()) != config:
                raise ValueError(f"{path} holds another run ({run_name(found)}): choose another directory")
            return run
        run.path.mkdir(parents=True, exist_ok=True)
        replace_file(run.path / "config.json", _to_json(asdict(config)))
        return run

    def exists(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "config.json").exists()

    def config(self) -> TrainConfig:
        """Return the configuration."""
        found = self._read("config.json")
        known = {field.name for field in fields(TrainConfig)}
        if unknown := set(found) - known:
            raise ValueError(f"{self.path / 'config.json'} has unknown fields {', '.join(sorted(unknown))}")
        try:
            return TrainConfig(**found)
        except TypeError as error:
            raise ValueError(f"{self.path / 'config.json'} is no configuration: {error}") from None

    def result(self) -> Record | None:
        """Return the final bounds, or None while the run is not finished."""
        return self._read("result.json") if (self.path / "result.json").exists() else None

    def provenance(self) -> Record:
        """Return where the numbers come from."""
        return self._read("provenance.json")

    def metrics(self) -> list[Record]:
        """Return all reports that were written whole."""
        return list(self._whole_lines())

    def report(self, record: Mapping[str, object]) -> None:
        """Append a report."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(_to_line(record))

    def finish(self, result: Mapping[str, object]) -> None:
        """Write the final bounds: the run is done."""
        replace_file(self.path / "result.json", _to_json(result))

    def describe(self, device: str, seconds: float, together: Sequence[str] = ()) -> None:
        """Write down the provenance; `seconds` of this sitting are added to those of earlier ones.

        `together` names the runs of a pack: its runs share their noise and their time.
        """
        earlier: Record = {}
        with suppress(ValueError):
            earlier = self.provenance()
        record: Record = {
            "version": _version(),
            "commit": _commit(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine(),
            "threads": torch.get_num_threads(),
            "command": " ".join(sys.argv),
            "wall_seconds": round(float(earlier.get("wall_seconds", 0)) + seconds, 3),
        }
        if shared := list(together) if len(together) > 1 else earlier.get("together"):
            record["together"] = shared
        replace_file(self.path / "provenance.json", _to_json(record))

    def save(self, tensors: Mapping[str, Tensor]) -> None:
        """Write a checkpoint, and keep the one before."""
        from safetensors.torch import save

        # Copies, since one tensor may stand under two names: tied weights are written twice.
        flat = {
            name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            for name, tensor in tensors.items()
        }
        data = save(flat, metadata={"sha256": _digest(flat)})
        newest, previous = (self.path / name for name in CHECKPOINTS)
        with _written(newest.with_suffix(".new"), data) as written:
            if newest.exists():
                newest.replace(previous)
            written.replace(newest)

    def load(self) -> dict[str, Tensor] | None:
        """Return the newest checkpoint that is intact, or None."""
        return next((state for state in map(self._checkpoint, CHECKPOINTS) if state is not None), None)

    def checkpoints(self) -> dict[int, dict[str, Tensor]]:
        """Return every intact checkpoint by its step; of two of one step, the newer."""
        return {step_of(state): state for state in map(self._checkpoint, reversed(CHECKPOINTS)) if state is not None}

    def resumable(self) -> dict[int, dict[str, Tensor]]:
        """Return its intact checkpoints by step, and an empty one of step 0 if it has come no further than one save."""
        found = self.checkpoints()
        return {**found, 0: {}} if max(found, default=0) <= self.config().report_every else found

    def stopped(self) -> dict[int, int]:
        """Return the replicas that have stopped, each with the step of the report that found it."""
        return stopped_replicas(self._whole_lines())

    def forget_after(self, step: int) -> None:
        """Drop what belongs to steps that will be done again, reports and checkpoints.

        A checkpoint that stayed would push the one in use out at the next save.
        """
        kept = [record for record in self._whole_lines() if record["step"] <= step]
        replace_file(self.path / "metrics.jsonl", "".join(map(_to_line, kept)))
        for name in CHECKPOINTS:
            state = self._checkpoint(name)
            if state is None or step_of(state) > step:
                (self.path / name).unlink(missing_ok=True)

    def _checkpoint(self, name: str) -> dict[str, Tensor] | None:
        with suppress(ValueError, FileNotFoundError):
            return _read_checkpoint(self.path / name)
        return None

    def _whole_lines(self) -> Iterator[Record]:
        file = self.path / "metrics.jsonl"
        if not file.exists():
            return
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(json.JSONDecodeError):
                record = json.loads(line)
                if isinstance(record, dict) and isinstance(record.get("step"), int):
                    yield record

    def _read(self, name: str) -> Record:
        try:
            content = json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            what = "is no run directory, or an unfinished one" if self.path.is_dir() else "is not there"
            raise ValueError(f"{self.path} {what}: it has no {name}") from None
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.path / name} cannot be read: {error}") from None
        if not isinstance(content, dict):
            raise ValueError(f"{self.path / name} must hold a JSON object, got {type(content).__name__}")
        return content


class Events:
    """The metrics as TensorBoard events; silent where TensorBoard is not installed."""

    def __init__(self, path: Path, steps_done: int) -> None:
        self._writer = None
        with suppress(ImportError):
            from torch.utils.tensorboard.writer import SummaryWriter

            self._writer = SummaryWriter(str(path), purge_step=steps_done + 1)

    def __call__(self, record: Record) -> None:
        if self._writer is None:
            return
        for name, values in record.items():
            for replica, value in enumerate(values if isinstance(values, list) else []):
                if value is not None:
                    self._writer.add_scalar(f"{name}/{replica}", value, record["step"])

    def close(self) -> None:
        """Write out what is still in memory."""
        if self._writer is not None:
            self._writer.close()


def replace_file(path: Path, text: str) -> None:
    """Write a file so that it is there whole, or as it was before."""
    with _written(path.with_name(path.name + ".new"), text.encode()) as written:
        written.replace(path)


@contextmanager
def _written(path: Path, data: bytes) -> Iterator[Path]:
    """Write data to a new file, through to the disk; whatever goes wrong, the file does not stay."""
    try:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield path
    finally:
        path.unlink(missing_ok=True)


def _read_checkpoint(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            expected = (file.metadata() or {}).get("sha256")
    except SafetensorError as error:
        raise ValueError(f"{path} is no checkpoint: {error}") from None
    if _digest(tensors) != expected:
        raise ValueError(f"{path} is damaged: its contents do not match their checksum")
    return tensors


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {list(tensors[name].shape)}".encode())
        digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _to_json(content: Mapping[str, object]) -> str:
    return json.dumps(_strict(content), indent=1, allow_nan=False) + "\n"


def _to_line(record: Mapping[str, object]) -> str:
    return json.dumps(_strict(record), allow_nan=False) + "\n"


def _strict(content: object) -> object:
    """Put null for what JSON has no number for: most readers refuse a NaN."""
    if isinstance(content, Mapping):
        return {name: _strict(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_strict(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _version() -> str:
    from arms import __version__

    return __version__


def _commit() -> str:
    """Return the commit of this file, not that of a project it is merely installed in."""
    git = ["git", "-C", str(Path(__file__).parent)]
    is_ours = [*git, "ls-files", "--error-unmatch", Path(__file__).name]
    describe = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        for command in (is_ours, describe):
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)  # noqa: S603
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
