"""What `mkdocs build` calls: generated pages, measured numbers, links to files of the repository, mathematics."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from generators import colours, mathematics, measured, navigation, pages, picture, repository, speed
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

MARKERS: dict[str, Callable[[], str]] = {
    "<!-- picture: choosing -->": picture.draw,
    "<!-- measured: variance -->": measured.variance_table,
    "<!-- measured: bias -->": measured.bias_table,
    "<!-- measured: toy -->": measured.toy_table,
    "<!-- measured: agreement -->": measured.agreement_table,
    "<!-- measured: estimators on a CPU -->": speed.overhead_table,
    "<!-- measured: training on a CPU -->": speed.train_step_table,
    "<!-- measured: training on a GPU -->": speed.gpu_step_table,
    "<!-- measured: precision -->": speed.precision_table,
    "<!-- measured: estimators on a GPU -->": speed.gpu_estimators_table,
    "<!-- measured: packs -->": speed.packs_table,
}
"""What stands in a page for something that is made at build time."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Write the pages of `folder/*` into the navigation."""
    generated = [*pages.estimator_pages(), *pages.coupling_pages(), *pages.api_pages()]
    config.nav = navigation.expanded(config.nav or [], config.docs_dir, generated)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is generated, and the files of the repository that pages link to."""
    made = {**pages.estimator_pages(), **pages.coupling_pages(), **pages.api_pages(), "changelog.md": pages.changelog()}
    made |= repository.copies({file.src_uri: file.content_string for file in files.documentation_pages()} | made)
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Fill in what is measured, and lead links out of docs/ to the copies."""
    for marker, make in MARKERS.items():
        if marker in markdown:
            markdown = markdown.replace(marker, make())
    return repository.relinked(markdown, page.file.src_uri)


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Turn formulas into MathML, and colour differences by their standard errors."""
    if page.file.src_uri == "reproduced.md":
        html = colours.coloured(html)
    html = re.sub(r"(?<=\d) ([±/]) (?=\d)", r"&nbsp;\1&nbsp;", html)  # numbers that belong together stay on one line
    return mathematics.as_mathml(html)


def on_post_build(config: MkDocsConfig) -> None:
    """Add the font of the formulas."""
    mathematics.write_font(Path(config.site_dir))
