"""Verbs for data sets: data list, data get."""

from pathlib import Path
from typing import Annotated

import rich
import tyro
from rich.markup import escape
from rich.table import Table

from arms.bench import data


def data_list(data_dir: Path | None = None) -> None:
    """List the data sets, and which of them are on this machine.

    Args:
        data_dir: Folder with data files; ARMS_DATA_DIR unless given.
    """
    table = Table("name", "description", "available", "location")
    for status in data.status(data_dir):
        table.add_row(status.name, status.description, "yes" if status.available else "no", escape(status.where))
    rich.print(table)


def data_get(name: Annotated[str, tyro.conf.Positional], data_dir: Path | None = None) -> None:
    """Download a data set, or check the files that are already there.

    Args:
        name: Data set.
        data_dir: Folder with data files; unless given, ARMS_DATA_DIR, then the download cache.
    """
    paths = data.fetch(name, data_dir)
    rich.print("\n".join(f"intact: {escape(str(path))}" for path in paths) or f"{name} comes with an installed package")
