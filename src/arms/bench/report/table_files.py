"""Tables as files: Markdown to read, LaTeX (booktabs) to print, CSV to compute with."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from arms.bench.report.tables import Cell, Table
from arms.bench.runs.files import replace_file

LATEX_ESCAPES = str.maketrans(
    {character: rf"\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "\u2212": r"$-$", "±": r"$\pm$"}
)


def markdown(table: Table) -> str:
    """Return the table in Markdown, the best numbers in bold."""
    heading, *rows = [f"| {' | '.join(row)} |" for row in _texts(table, _plain, "**{}**")]
    rule = "|" + "---|" + "---:|" * len(table.columns)
    caveats = [f"{_plain(caveat)}\n" for caveat in table.caveats]
    return "\n".join([f"**{_plain(table.title)}**", "", heading, rule, *rows, "", *caveats])


def latex(table: Table) -> str:
    """Return the table as a LaTeX `tabular`, the best numbers in bold."""
    heading, *rows = [rf"{' & '.join(row)} \\" for row in _texts(table, _tex, r"\textbf{{{}}}")]
    comments = [f"% {_one_line(text)}" for text in (table.title, *table.caveats)]
    begin = [rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule"]
    end = [r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join([*comments, *begin, heading, r"\midrule", *rows, *end])


def csv_text(table: Table) -> str:
    """Return the table as CSV in full precision: mean, std, replicas and mark of every column."""
    parts = ("mean", "std", "replicas", "best")
    heading = [f"{column} {part}" for column in table.columns for part in parts]
    rows = [
        [label, *(field for cell in cells for field in _fields(cell))]
        for label, cells in table.rows
    ]
    return _csv([table.heading, *heading], rows)


def write_table(table: Table, folder: Path) -> list[Path]:
    """Write the table in every format, and return the paths."""
    texts = {"md": markdown(table), "tex": latex(table), "csv": csv_text(table)}
    paths = [folder / f"{table.name}.{ending}" for ending in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        replace_file(path, text)
    return paths


def write_csv(path: Path, heading: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    """Write numbers as CSV in full precision, and return the path."""
    replace_file(path, _csv(heading, rows))
    return path


def _csv(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([heading, *rows])
    return out.getvalue()


def _fields(cell: Cell) -> list[object]:
    """Return the columns of a cell; the writer leaves None empty."""
    if cell.stat is None:
        return [None] * 4
    return [cell.stat.mean, cell.stat.std, cell.stat.count, int(cell.best)]


def _texts(table: Table, escape: Callable[[str], str], bold: str) -> list[list[str]]:
    """Return the heading and the rows, escaped, with the best numbers in bold."""
    rows = [[escape(text) for text in (table.heading, *table.columns)]]
    for label, cells in table.rows:
        form = [bold if cell.best else "{}" for cell in cells]
        shown = [one.format(escape(str(cell))) for one, cell in zip(form, cells, strict=True)]
        rows.append([escape(label), *shown])
    return rows


def _plain(text: str) -> str:
    """Escape what would end the cell, or become HTML where Markdown is rendered."""
    return _one_line(text).replace("|", r"\|").replace("<", "&lt;")


def _tex(text: str) -> str:
    return _one_line(text).translate(LATEX_ESCAPES)


def _one_line(text: str) -> str:
    return " ".join(text.split())
