"""A sweep as a TOML file: fields of a configuration, where a list stands for one run of each.

    steps = 2000
    estimator = ["arms", "loorf"]
    seed = [0, 1, 2]

are six runs. Tables `[[runs]]` are further combinations each, on top of what stands before them.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path

from arms.arguments import unknown_name
from arms.bench.config import TrainConfig
from arms.bench.experiments import EXPERIMENTS, Scale, combinations, configs

FIELDS = tuple(field.name for field in fields(TrainConfig) if field.name != "structure")


def find_configs(what: str, scale: Scale) -> list[TrainConfig]:
    """Return the runs of an experiment by name, at some scale, or of a file."""
    if what in EXPERIMENTS:
        if found := configs(what, scale):
            return found
        raise ValueError(f"{what} is drawn without training: arms experiments run {what}")
    if not Path(what).is_file():
        raise ValueError(f"there is no experiment and no file {what!r}: see arms experiments list")
    return read_sweep(what)


def read_sweep(path: Path | str) -> list[TrainConfig]:
    """Return the runs that a TOML file asks for. Any error names the file."""
    try:
        return list(_configs(tomllib.loads(Path(path).read_text(encoding="utf-8"))))
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply") from None
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


def _configs(content: Mapping[str, object]) -> Iterator[TrainConfig]:
    common = {name: value for name, value in content.items() if name != "runs"}
    tables = content.get("runs", [{}])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError("runs must be tables, each under a line [[runs]]")
    for table in tables:
        given = common | table
        if unknown := [name for name in given if name not in FIELDS]:
            raise unknown_name("field", unknown[0], FIELDS)
        yield from combinations({name: _choices(name, given[name]) for name in given})


def _choices(name: str, value: object) -> list[object]:
    if not isinstance(value, list):
        return [value]
    if not value:
        raise ValueError(f"{name} must be a value or a list of values, got an empty list")
    if name == "precision":  # runs are recognised at any precision: one would stand for the other
        raise ValueError("precision must be one value, as a run at any precision counts for all")
    if name == "layers" and not isinstance(value[0], list):
        return [value]
    return value
