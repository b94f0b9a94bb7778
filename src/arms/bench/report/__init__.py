"""Reports: one HTML page, with tables and figures, from run directories, the paper's numbers beside ours."""

import re
from collections.abc import Sequence
from pathlib import Path

from arms.bench.report.collect import Collection, Problem, collect
from arms.bench.report.curves import plots
from arms.bench.report.figures import budgets_figure, figure_settings, save, training_figure
from arms.bench.report.groups import Group, Setting, group_runs, name_structures
from arms.bench.report.page import Overview, Section, render, summary
from arms.bench.report.table_files import write_table
from arms.bench.report.tables import Table, beside_paper, comparison, overview
from arms.bench.runs.files import check_path, check_replaceable, make_folder, replace_file

__all__ = ["Collection", "Problem", "build_report", "collect", "summary"]


def build_report(
    run_paths: Sequence[Path | str], output: Path | str, *, files: bool = True
) -> Collection:
    """Write a page that compares runs, and return the runs and problems that are on it.

    A run that is missing, unfinished or broken is listed on the page, and never an error.

    Args:
        run_paths: Run directories, archives (`arms archive`), or folders of them.
        output: The page, an .html file; its folder is made.
        files: Whether to write every table (Markdown, LaTeX, CSV) and figure (PDF, SVG) too, into `<page>_files`.
    """
    from arms import __version__

    page = Path(output)
    _check_page_path(page)
    collection = collect(run_paths)
    groups = name_structures(group_runs(collection.runs))
    folder = page.with_name(f"{page.stem}_files") if files else None
    if folder:
        make_folder(folder)
    sections = [
        _section(group, f"{index}-{_slug(group.setting)}", folder)
        for index, group in enumerate(groups, 1)
    ]
    across = _overview(groups, sections, folder)
    make_folder(page.parent)
    replace_file(page, render(collection, sections, across, __version__))
    return collection


def _check_page_path(page: Path) -> None:
    check_path(page)
    if page.is_dir():
        raise ValueError(
            f"the report must be a file, got the folder {page}: try {page / 'report.html'}"
        )
    check_replaceable(page)
    if page.suffix not in (".html", ".htm"):
        raise ValueError(
            f"the report must be an .html file, got {page}: try {page.with_suffix('.html')}"
        )


def _section(group: Group, name: str, folder: Path | None) -> Section:
    first = comparison(group, name)
    tables = [*([first] if first else []), *beside_paper(group, name)]
    curves = plots(group)
    written: list[Path] = []
    if folder:
        written = _write_tables(tables, folder)
        if curves:
            with figure_settings():
                written += save(training_figure(curves), folder, f"{name}-training")
    return Section(group, tables, curves, _links(written))


def _overview(
    groups: Sequence[Group], sections: Sequence[Section], folder: Path | None
) -> Overview:
    """Return what spans several comparisons: their table, and one figure per family that differs in n alone."""
    table = overview(groups, "overview")
    written: list[Path] = []
    if folder:
        written = _write_tables([table] if table else [], folder)
        for index, family in enumerate(_families(sections), 1):
            name = f"budgets-{index}-{_slug(family[0].group.setting._replace(num_samples=0)).replace('-n0', '')}"
            with figure_settings():
                columns = {section.group.setting.num_samples: section.plots for section in family}
                written += save(budgets_figure(columns), folder, name)
    return Overview(table, _links(written))


def _families(sections: Sequence[Section]) -> list[list[Section]]:
    """Return the sections with curves that differ in n alone, where there are at least two of them."""
    families: dict[Setting, list[Section]] = {}
    for section in sections:
        if section.plots:
            families.setdefault(section.group.setting._replace(num_samples=0), []).append(section)
    return [family for family in families.values() if len(family) > 1]


def _links(paths: Sequence[Path]) -> list[str]:
    return [f"{path.parent.name}/{path.name}" for path in paths]


def _write_tables(tables: Sequence[Table], folder: Path) -> list[Path]:
    return [path for table in tables for path in write_table(table, folder)]


def _slug(setting: Setting) -> str:
    """Return a file name of letters, digits and dashes only, whatever the name of the data set."""
    words = re.sub(r"[^a-z0-9]+", "-", f"{setting.dataset}-{setting.network}".lower()).strip("-")[
        :60
    ]
    return f"{words}-n{setting.num_samples}-{setting.steps}-{re.sub('[^a-z]', '', setting.decoder_samples)[:10]}"
