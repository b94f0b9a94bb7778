"""Tables as files: Markdown to read, LaTeX (booktabs) to print, CSV to compute with."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from arms.bench.report.tables import Cell, Table
from arms.bench.runs.files import replace_file

LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "\u2212": r"$-$",
    "±": r"$\pm$",
}


def markdown(table: Table) -> str:
    """Return the table in Markdown, the best numbers in bold."""
    lines = [f"**{_plain(table.title)}**", "", _line([table.heading, *table.columns])]
    lines.append("|" + "---|" + "---:|" * len(table.columns))
    for label, cells in table.rows:
        lines.append(_line([label, *(f"**{cell}**" if cell.best else str(cell) for cell in cells)]))
    return "\n".join([*lines, "", *(f"{_plain(caveat)}\n" for caveat in table.caveats)])


def latex(table: Table) -> str:
    """Return the table as a LaTeX `tabular`, the best numbers in bold."""
    body = [
        " & ".join([_tex(label), *(_tex_cell(cell) for cell in cells)]) + r" \\"
        for label, cells in table.rows
    ]
    head = " & ".join(_tex(heading) for heading in (table.heading, *table.columns)) + r" \\"
    comments = [f"% {_one_line(text)}" for text in (table.title, *table.caveats)]
    begin = rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}"
    lines = [
        *comments,
        begin,
        r"\toprule",
        head,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def csv_text(table: Table) -> str:
    """Return the table as CSV in full precision: mean, std, replicas and mark of every column."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    parts = ("mean", "std", "replicas", "best")
    writer.writerow(
        [table.heading, *(f"{column} {part}" for column in table.columns for part in parts)]
    )
    for label, cells in table.rows:
        writer.writerow([label, *(field for cell in cells for field in _fields(cell))])
    return out.getvalue()


FORMATS: Mapping[str, Callable[[Table], str]] = {"md": markdown, "tex": latex, "csv": csv_text}


def write_table(table: Table, folder: Path) -> list[Path]:
    """Write the table in every format."""
    paths = [folder / f"{table.name}.{ending}" for ending in FORMATS]
    for path, convert in zip(paths, FORMATS.values(), strict=True):
        replace_file(path, convert(table))
    return paths


def write_csv(path: Path, heading: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    """Write numbers as CSV in full precision, and return the path."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heading)
    writer.writerows(rows)
    replace_file(path, out.getvalue())
    return path


def _fields(cell: Cell) -> list[object]:
    if cell.stat is None:
        return ["", "", "", ""]
    std, count = cell.stat.std, cell.stat.count
    return [
        cell.stat.mean,
        "" if std is None else std,
        "" if count is None else count,
        int(cell.best),
    ]


def _line(fields: list[str]) -> str:
    return "| " + " | ".join(_plain(field) for field in fields) + " |"


def _plain(text: str) -> str:
    """Escape what would end the cell, or become HTML where Markdown is rendered."""
    return _one_line(text).replace("|", r"\|").replace("<", "&lt;")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _tex(text: str) -> str:
    return "".join(LATEX_ESCAPES.get(character, character) for character in _one_line(text))


def _tex_cell(cell: Cell) -> str:
    return rf"\textbf{{{_tex(str(cell))}}}" if cell.best else _tex(str(cell))
