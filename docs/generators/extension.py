"""What Sphinx does with the pages beyond its own: formulas, the picture, links out of docs/, docstrings, colors."""

import posixpath
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

from generators import colors, filled, mathematics, picture

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\[([^]\[]*)\]\(([^)\s:#]+)(#[\w-]+)?\)")
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code_of_conduct.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Files of the repository's root that the site has as pages."""
API = re.compile(r"\]\([\w./-]*\bapi/\w+\.md#(arms[\w.]*)\)")
FORMULA = re.compile(r"^( *)\$\$(.*?)\$\$", re.DOTALL | re.MULTILINE)
KEPT = re.compile(
    r"(`[^`]*`|^ *>>>.*?(?:\n\s*$|\Z)|^ *\.\. math::\n\n(?: [^\n]*\n?)*)", re.DOTALL | re.MULTILINE
)
"""Code, examples and formulas."""
PAGE = re.compile(r"(?<![\w/`])docs/([\w/]+)\.md")
TOGETHER = re.compile(r"(?<=\d) ([±/]) (?=\d)")
"""Numbers that belong on one line."""


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_html_math_renderer("mathml", (inline_formula, None), (formula, None))
    app.connect("source-read", read)
    app.connect("include-read", read_included)
    app.connect("autodoc-process-docstring", restructured, priority=400)  # before napoleon
    app.connect("html-page-context", finish)
    app.connect("build-finished", add_font)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


# ---- pages


def read(_: Sphinx, page: str, source: list[str]) -> None:
    """Put in the picture, and lead links to where the site has what they name."""
    text = filled.in_site(source[0], {"picture: choosing": picture.draw})
    source[0] = relinked(text, page)


def read_included(_: Sphinx, path: Path, __: str, content: list[str]) -> None:
    """Lead the links of a file of the repository's root to the pages that show such files."""
    if path.parent == Path(".."):  # relative to docs/
        content[0] = LINK.sub(_from_root, content[0])


def _from_root(found: re.Match[str]) -> str:
    page = PAGES.get(found[2])
    return f"[{found[1]}](docs/{page}{found[3] or ''})" if page else found[0]


def relinked(markdown: str, page: str) -> str:
    """Return a page for the site: links to names of the API, and names in place of links that lead nowhere.

    Folders and pages outside docs/ are on a code host alone. Sphinx offers other files for download.

    >>> relinked("[`Bits`](../api/latents.md#arms.Bits), [runs](../../results)", "recipes/ddp")
    '[`Bits`](#arms.Bits), runs'
    >>> relinked("[how](../CONTRIBUTING.md#tests)", "extending")
    '[how](contributing.md#tests)'
    """

    def lead(found: re.Match[str]) -> str:
        folder = posixpath.dirname(page)
        path = posixpath.normpath(posixpath.join("docs", folder, found[2]))
        if path.startswith("docs/"):
            return found[0]
        if path in PAGES:
            address = posixpath.relpath(PAGES[path], folder or ".")
            return f"[{found[1]}]({address}{found[3] or ''})"
        return found[1] if (ROOT / path).is_dir() or path.endswith(".md") else found[0]

    return LINK.sub(lead, API.sub(r"](#\1)", markdown))


def finish(_: Sphinx, page: str, __: str, context: dict[str, Any], ___: Any) -> None:
    """Color the differences of the page of reproduced numbers, and keep numbers together."""
    if body := context.get("body"):
        body = colors.colored(body) if page == "reproduced" else body
        context["body"] = TOGETHER.sub(r"&nbsp;\1&nbsp;", body)


# ---- docstrings


def restructured(_: Any, what: str, __: str, ___: Any, ____: Any, lines: list[str]) -> None:
    """Turn a docstring into reStructuredText: formulas, links to pages, bars that are not substitutions."""
    if lines and what in ("attribute", "data", "property") and ":" in lines[0]:
        lines[0] = (
            f": {lines[0]}"  # an empty type: else the words before the colon are taken for it
        )
    text = FORMULA.sub(_directive, "\n".join(lines))
    parts = [part if i % 2 else _plain(part) for i, part in enumerate(KEPT.split(text))]
    lines[:] = "".join(parts).split("\n")


def _plain(text: str) -> str:
    return PAGE.sub(r":doc:`/\1`", text.replace("|", "\\|"))


def _directive(found: re.Match[str]) -> str:
    lines = "\n".join(f"{found[1]}   {line.strip()}" for line in found[2].strip().splitlines())
    return f"{found[1]}.. math::\n\n{lines}\n"


# ---- formulas


def inline_formula(translator: Any, node: nodes.math) -> None:
    translator.body.append(mathematics.as_mathml(node.astext()))
    raise nodes.SkipNode


def formula(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(mathematics.as_mathml(node.astext(), block=True))
    raise nodes.SkipNode


def add_font(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        mathematics.write_font(Path(app.outdir))
