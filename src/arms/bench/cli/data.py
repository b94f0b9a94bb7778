"""Verbs for data sets: data list, data get."""

from pathlib import Path
from typing import Annotated

import tyro
from rich.markup import escape
from rich.table import Table

from arms.bench import data
from arms.bench.output import print_plain, print_table


def data_list(data_dir: Path | None = None) -> None:
    """List the data sets, and which of them are on this machine.

    Args:
        data_dir: Folder with data files; ARMS_DATA_DIR unless given.
    """
    table = Table("name", "description", "available", "location")
    for one in data.status(data_dir):
        is_here = "yes" if one.available else "no"
        table.add_row(one.name, one.description, is_here, escape(one.where))
    print_table(table)


def data_get(name: Annotated[str, tyro.conf.Positional], data_dir: Path | None = None) -> None:
    """Download a data set, or check the files that are already there.

    Args:
        name: Data set.
        data_dir: Folder with data files; unless given, ARMS_DATA_DIR, then the download cache.
    """
    paths = data.fetch(name, data_dir)
    with_checksum = [source.file for source in getattr(data.DATASETS[name], "sources", ())]
    for path in paths:
        is_checked = path.name in with_checksum
        state = "intact" if is_checked else "readable, without a checksum to compare"
        print_plain(f"{state}: {path}")
    if not paths:
        print_plain(f"{name} comes with an installed package")
