"""What is made of result files inside a page: `<!-- measured: name -->`, what was made, `<!-- end -->`.

The pages hold it as plain Markdown for those who read them in the repository; the site has it with links.

    python docs/generators/filled.py    # writes it into the pages
"""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

DOCS = Path(__file__).parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(DOCS))

from generators import measured, speed  # noqa: E402

TABLES: Mapping[str, Callable[[], str]] = {
    "measured: variance": measured.variance_table,
    "measured: bias": measured.bias_table,
    "measured: toy": measured.toy_table,
    "measured: agreement": measured.agreement_table,
    "measured: estimators on a CPU": speed.overhead_table,
    "measured: training on a CPU": speed.train_step_table,
    "measured: training on a GPU": speed.gpu_step_table,
    "measured: precision": speed.precision_table,
    "measured: estimators on a GPU": speed.gpu_estimators_table,
    "measured: packs": speed.packs_table,
}
PLACE = re.compile(r"<!-- ((?:measured|picture): [^>]*?) -->\n(.*?)<!-- end -->", re.DOTALL)
LINK = re.compile(r"\[(`[^`]*`)\]\([^)]*\)")
"""Of a name to its page, which is there in the site alone."""


def in_page(text: str, make: Mapping[str, Callable[[], str]]) -> str:
    """Return a page of the site: every place with what is made for it."""
    return PLACE.sub(lambda found: make[found[1]](), text)


def in_repository(text: str) -> str:
    """Return a page of the repository: every place with its table, without links to pages of the site."""

    def place(found: re.Match[str]) -> str:
        if found[1] not in TABLES:
            return found[0]
        table = LINK.sub(r"\1", TABLES[found[1]]()).strip()
        return f"<!-- {found[1]} -->\n\n{table}\n\n<!-- end -->"

    return PLACE.sub(place, text)


if __name__ == "__main__":
    for page in DOCS.rglob("*.md"):
        page.write_text(in_repository(page.read_text()))
