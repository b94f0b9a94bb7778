"""Verbs for data sets: data list, data get."""

from pathlib import Path
from typing import Annotated

import tyro
from rich.markup import escape
from rich.table import Table

from arms.bench import data
from arms.bench.cli.console import print_plain, print_table


def data_list(data_dir: Path | None = None) -> None:
    """List the data sets, and which of them are on this machine.

    Args:
        data_dir: Folder with data files; ARMS_DATA_DIR unless given.
    """
    table = Table("name", "description", "available", "location")
    for status in data.status(data_dir):
        table.add_row(
            status.name,
            status.description,
            "yes" if status.available else "no",
            escape(status.where),
        )
    print_table(table)


def data_get(name: Annotated[str, tyro.conf.Positional], data_dir: Path | None = None) -> None:
    """Download a data set, or check the files that are already there.

    Args:
        name: Data set.
        data_dir: Folder with data files; unless given, ARMS_DATA_DIR, then the download cache.
    """
    paths = data.fetch(name, data_dir)
    for path in paths:
        print_plain(f"{_state(name, path)}: {path}")
    if not paths:
        print_plain(f"{name} comes with an installed package")


def _state(name: str, path: Path) -> str:
    """Return what is known of a file: its checksum is right, or, where none is known, it can be read."""
    sources = getattr(data.DATASETS[name], "sources", ())
    checked = any(source.file == path.name for source in sources)
    return "intact" if checked else "readable, without a checksum to compare"
