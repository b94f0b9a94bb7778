"""Reports: run directories become tables, figures and one HTML page, the paper's numbers beside ours."""

import re
from collections.abc import Sequence
from pathlib import Path

from arms.bench.reports.collect import Collection, Problem, collect
from arms.bench.reports.curves import plots
from arms.bench.reports.figures import budgets_figure, looks, save, training_figure
from arms.bench.reports.groups import Group, Setting, group_runs
from arms.bench.reports.page import Overview, Section, render, summary
from arms.bench.reports.table_files import write_table
from arms.bench.reports.tables import Table, beside_paper, comparison, overview
from arms.bench.runs.directory import replace_file

__all__ = ["Collection", "Problem", "build_report", "collect", "summary"]


def build_report(run_paths: Sequence[Path | str], output: Path | str, *, files: bool = True) -> Collection:
    """Write a page on runs (run directories, or folders of them), and return what was found.

    With `files`, every table (Markdown, LaTeX, CSV) and figure (PDF, SVG) is also written, into `<page>_files` beside
    the page. A run that is missing, unfinished or broken is listed on the page, and never fatal.
    """
    from arms import __version__

    page = _page_path(output)
    collection = collect(run_paths)
    groups = group_runs(collection.runs)
    folder = page.with_name(f"{page.stem}_files") if files else None
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    sections = [_section(group, f"{index}-{_slug(group.setting)}", folder) for index, group in enumerate(groups, 1)]
    across = _overview(groups, sections, folder)
    page.parent.mkdir(parents=True, exist_ok=True)
    replace_file(page, render(collection, sections, across, __version__))
    return collection


def _page_path(output: Path | str) -> Path:
    page = Path(output)
    if page.is_dir():
        raise ValueError(f"the report must be a file, got the folder {page}: try {page / 'report.html'}")
    if page.suffix not in (".html", ".htm"):
        raise ValueError(f"the report must be an .html file, got {page}: try {page.with_suffix('.html')}")
    return page


def _section(group: Group, name: str, folder: Path | None) -> Section:
    first = comparison(group, name)
    tables = [*([first] if first else []), *beside_paper(group, name)]
    curves = plots(group)
    written: list[Path] = []
    if folder:
        written = _write_tables(tables, folder)
        if curves:
            with looks():
                written += save(training_figure(curves), folder, f"{name}-training")
    return Section(group, tables, curves, _links(written))


def _overview(groups: Sequence[Group], sections: Sequence[Section], folder: Path | None) -> Overview:
    """Return what spans comparisons: the table of all, and a figure for each family that differs in n alone."""
    table = overview(groups, "overview")
    written: list[Path] = []
    if folder:
        written = _write_tables([table] if table else [], folder)
        for index, family in enumerate(_families(sections), 1):
            name = f"budgets-{index}-{_slug(family[0].group.setting._replace(num_samples=0)).replace('-n0', '')}"
            with looks():
                columns = {section.group.setting.num_samples: section.plots for section in family}
                written += save(budgets_figure(columns), folder, name)
    return Overview(table, _links(written))


def _families(sections: Sequence[Section]) -> list[list[Section]]:
    found: dict[Setting, list[Section]] = {}
    for section in sections:
        if section.plots:
            found.setdefault(section.group.setting._replace(num_samples=0), []).append(section)
    return [family for family in found.values() if len(family) > 1]


def _links(paths: Sequence[Path]) -> list[str]:
    return [f"{path.parent.name}/{path.name}" for path in paths]


def _write_tables(tables: Sequence[Table], folder: Path) -> list[Path]:
    return [path for table in tables for path in write_table(table, folder)]


def _slug(setting: Setting) -> str:
    """Return a file name that holds nothing but letters, digits and dashes, whatever a data set is called."""
    words = re.sub(r"[^a-z0-9]+", "-", f"{setting.dataset}-{setting.network}".lower()).strip("-")[:60]
    return f"{words}-n{setting.num_samples}-{setting.steps}-{re.sub('[^a-z]', '', setting.decoder_samples)[:10]}"
