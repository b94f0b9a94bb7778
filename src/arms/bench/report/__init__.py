"""Reports: an HTML page with tables and figures about runs, next to the paper's numbers."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from arms.bench.report.collect import Collection, Problem, collect
from arms.bench.report.curves import budget_grid, training_panels
from arms.bench.report.figures import Panel, draw, write_figure
from arms.bench.report.groups import Group, Setting, group_runs
from arms.bench.report.page import Section, render, summary
from arms.bench.report.tables import beside_paper, comparison_table, overview_table, write_table
from arms.bench.runs.files import check_path, check_replaceable, make_folder, replace_file

__all__ = ["Collection", "Problem", "build_report", "collect", "summary"]


def build_report(
    run_paths: Sequence[Path | str], output: Path | str, *, files: bool = True
) -> Collection:
    """Write a page that compares runs. Return the runs, and the problems found while reading them.

    The page lists runs that are missing, unfinished or broken. Such runs do not cause an error.

    Args:
        run_paths: Run directories, archives (`arms archive`), or folders of them.
        output: The page, an .html file. Its folder is created if necessary.
        files: Whether to also write every table (Markdown, LaTeX, CSV) and figure (PDF, SVG) to
            `<page>_files`.
    """
    page = Path(output)
    _check_page_path(page)
    collection = collect(run_paths)
    folder = page.with_name(f"{page.stem}_files") if files else None
    make_folder(folder or page.parent)
    groups = group_runs(collection.runs)
    sections = [_section(group, index, folder) for index, group in enumerate(groups, 1)]
    table, written = overview_table(groups, "overview"), []
    if folder:
        written = write_table(table, folder) if table else []
        written += _write_budgets(sections, folder)
    replace_file(page, render(collection, sections, table, written))
    return collection


def _check_page_path(page: Path) -> None:
    check_path(page)
    if page.is_dir():
        raise ValueError(
            f"the report must be a file, got the folder {page}: try {page / 'report.html'}"
        )
    check_replaceable(page)
    if page.suffix not in (".html", ".htm"):
        better = page.with_suffix(".html")
        raise ValueError(f"the report must be an .html file, got {page}: try {better}")


def _section(group: Group, index: int, folder: Path | None) -> Section:
    name = f"{index}-{_slug(group.setting)}"
    table, panels = comparison_table(group, name), training_panels(group)
    tables = [*([table] if table else []), *beside_paper(group, name)]
    drawings, written = [], []
    if folder:
        written = [path for table in tables for path in write_table(table, folder)]
    for key, panel in panels.items():
        drawn = draw([[panel]], ("svg", "pdf") if folder else ("svg",))
        drawings.append(drawn["svg"])
        if folder:
            written += write_figure(drawn, folder, f"{name}-{key.replace('_', '-')}")
    return Section(group, tables, panels, drawings, written)


def _write_budgets(sections: Sequence[Section], folder: Path) -> list[Path]:
    """Write figures that compare several numbers of samples n. Return the paths of the files.

    Sections with the same setting, except for n, share a figure.
    """
    families: dict[Setting, dict[int, Mapping[str, Panel]]] = {}
    for section in sections:
        setting = section.group.setting
        if section.panels:
            family = families.setdefault(setting._replace(num_samples=0), {})
            family[setting.num_samples] = section.panels
    written = []
    large = {setting: family for setting, family in families.items() if len(family) > 1}
    for index, (setting, family) in enumerate(large.items(), 1):
        name = f"budgets-{index}-{_slug(setting).replace('-n0', '')}"
        written += write_figure(draw(budget_grid(family), ("svg", "pdf")), folder, name)
    return written


def _slug(setting: Setting) -> str:
    """Return a text for file names that describes a setting in letters, digits and dashes."""
    words = re.sub(r"[^a-z0-9]+", "-", f"{setting.dataset}-{setting.network}".lower())
    rule = re.sub("[^a-z]", "", setting.decoder_samples)[:10]
    return f"{words.strip('-')[:60]}-n{setting.num_samples}-{setting.steps}-{rule}"
