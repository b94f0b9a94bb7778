"""Links from pages to files of the repository; in the site they lead to copies."""

import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(\]\()([^)\s:#]+)([)#])")
FOLDER = "repository"
"""Of the copies, in the site."""


def target(link: str, page: str) -> str | None:
    """Return the path, from the repository's root, of a file outside docs/ that a link leads to; None if inside.

    >>> target("../benchmarks/results/toy_variance.json", "midpoint.md")
    'benchmarks/results/toy_variance.json'
    >>> target("layers.md", "midpoint.md") is None
    True
    """
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if path.startswith("docs/") else path


def targets(markdown: str, page: str) -> Iterator[str]:
    """Yield the files outside docs/ that a page links to."""
    for _, link, _ in LINK.findall(markdown):
        if path := target(link, page):
            yield path


def copies(pages: Mapping[str, str]) -> dict[str, str]:
    """Return what the pages link to, by its place in the site; a folder is a page that lists its files."""
    made = {}
    for path in sorted(
        {path for page, markdown in pages.items() for path in targets(markdown, page)}
    ):
        source = ROOT / path
        if not source.exists():
            raise ValueError(f"a page links to {path}, which is not in the repository")
        if source.is_file():
            text = source.read_text()
            # Links of a page in the repository's root lead to pages of the site.
            made[f"{FOLDER}/{path}"] = (
                text.replace("](docs/", "](../") if path.endswith(".md") else text
            )
            continue
        names = sorted(file.name for file in source.iterdir() if file.is_file())
        made |= {
            f"{FOLDER}/{path}/{name}": (source / name).read_text()
            for name in names
            if not name.endswith(".md")
        }
        listed = "\n".join(f"- [{name}]({name})" for name in names if not name.endswith(".md"))
        made[f"{FOLDER}/{path}/index.md"] = f"# Files of {path}/\n\n{listed}\n"
    return made


def relinked(markdown: str, page: str) -> str:
    """Return the page with its links out of docs/ leading to the copies."""

    def lead(match: re.Match[str]) -> str:
        path = target(match[2], page)
        if path is None:
            return match[0]
        copy = f"{FOLDER}/{path}" if (ROOT / path).is_file() else f"{FOLDER}/{path}/index.md"
        return f"{match[1]}{posixpath.relpath(copy, posixpath.dirname(page) or '.')}{match[3]}"

    return LINK.sub(lead, markdown)
