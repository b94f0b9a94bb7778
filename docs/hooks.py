"""What `mkdocs build` calls: generated pages, measured numbers, links to files of the repository, mathematics."""

import re
from pathlib import Path
from typing import Any

from generators import colors, filled, mathematics, navigation, pages, picture, repository
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

MARKERS = {"picture: choosing": picture.draw, **filled.TABLES}
"""What is made at build time, by its name in the page."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Write the pages of `folder/*` into the navigation."""
    generated = [*pages.estimator_pages(), *pages.coupling_pages(), *pages.api_pages()]
    config.nav = navigation.expanded(config.nav or [], config.docs_dir, generated)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is generated, and the files of the repository that pages link to."""
    made = {
        **pages.estimator_pages(),
        **pages.coupling_pages(),
        **pages.api_pages(),
        "changelog.md": pages.changelog(),
    }
    made |= repository.copies(
        {file.src_uri: file.content_string for file in files.documentation_pages()} | made
    )
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Fill in what is measured, and lead links out of docs/ to the copies."""
    return repository.relinked(filled.in_page(markdown, MARKERS), page.file.src_uri)


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Turn formulas into MathML, and color differences by their standard errors."""
    if page.file.src_uri == "reproduced.md":
        html = colors.colored(html)
    html = re.sub(
        r"(?<=\d) ([±/]) (?=\d)", r"&nbsp;\1&nbsp;", html
    )  # numbers that belong together stay on one line
    return mathematics.as_mathml(html)


def on_post_build(config: MkDocsConfig) -> None:
    """Add the font of the formulas."""
    mathematics.write_font(Path(config.site_dir))
