"""A sweep as a TOML file: fields of a configuration, where a list stands for one run of each.

    steps = 2000
    estimator = ["arms", "loorf"]
    seed = [0, 1, 2]

are six runs. Tables `[[runs]]` are further combinations each, on top of what stands before them.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import product
from pathlib import Path

from arms.arguments import unknown_name
from arms.bench.config import TrainConfig, digest_of, identity
from arms.bench.data import DATASETS
from arms.bench.experiments import EXPERIMENTS, Scale, configs

FIELDS = tuple(field.name for field in fields(TrainConfig) if field.name != "structure")


def wanted_runs(what: str, scale: Scale) -> list[TrainConfig]:
    """Return the runs of an experiment of the paper, by its name, or of a file.

    Args:
        what: Name of the experiment, or path of the file.
        scale: Of an experiment; a file says itself how long to train.
    """
    if what in EXPERIMENTS:
        if found := configs(what, scale):
            return found
        raise ValueError(f"{what} is drawn without training: arms experiments run {what}")
    if not Path(what).is_file():
        raise ValueError(
            f"there is no experiment and no file {what!r}: see arms experiments list, or write a TOML file"
        )
    return read_sweep(what)


def read_sweep(path: Path | str) -> list[TrainConfig]:
    """Return the runs that a file asks for, each once, in its order.

    Args:
        path: A TOML file of fields of `TrainConfig`; a list is every value in turn, `layers` a list of lists.

    Raises:
        ValueError: It cannot be read, or asks for something that is no configuration; the message names the file.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        found = list(_configs(content))
    except RecursionError:
        raise ValueError(f"{path}: brackets in brackets, deeper than can be read") from None
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None
    return list({digest_of(identity(config)): config for config in reversed(found)}.values())[::-1]


def _configs(content: Mapping[str, object]) -> Iterator[TrainConfig]:
    common = {name: value for name, value in content.items() if name != "runs"}
    tables = content.get("runs", [{}])
    if not (
        isinstance(tables, list) and tables and all(isinstance(table, dict) for table in tables)
    ):
        raise ValueError("runs must be tables, each under a line [[runs]]")
    for table in tables:
        given = common | table
        for name in given:
            if name not in FIELDS:
                raise unknown_name("field", name, FIELDS)
        choices = [_choices(name, value) for name, value in given.items()]
        for values in product(*choices):
            config = TrainConfig(**dict(zip(given, values, strict=True)))
            if (
                config.dataset not in DATASETS
            ):  # a user's own file has another name on another machine
                raise unknown_name("data set", config.dataset, DATASETS)
            yield config


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
