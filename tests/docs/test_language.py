"""Texts avoid the phrases that made readers stop; CONTRIBUTING.md explains the style."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AVOIDED = {
    r"over that of": "relative to",
    r"as many evaluations": "the same number of evaluations",
    r"at as many": "with the same number of",
    r"whoever": "if you; users who",
    r"nobody": "no one; or name who",
    r"as ever": "as usual",
    r"in print": "in the paper",
    r"a night": "hours",
    r"a human being": "a person",
    r"in brackets": "in parentheses",
    r"the bench": "the benchmark suite",
    r"held against": "compared with",
    r"told apart": "distinguished",
    r"tells? apart": "distinguishes",
    r"anew": "again",
    r"what is asked": "what is needed",
    r"look for the step": "check the operation",
    r"by one's own": "by yourself",
    r"of one's own": "your own",
    r"begins? anew": "starts a new run",
    r"is there twice": "is duplicated",
    r"costs dear|dear in": "is expensive",
    r"hangs on": "depends on",
    r"a hair": "slightly",
    r"by anybody": "by any method",
}
"""Phrases, as regular expressions for whole words, and what to write instead."""
AVOIDED_ON_PAGES = {r"slopes?": "derivative", r"laws?": "distribution"}
"""Words that are allowed in code, and as terms of a proof in these files."""
OPENINGS = re.compile(
    r'(?:^\s*(?:"""|#|-|\*)?\s*|[.:] )Of (?:bits|categories|\w+ categories|more|several)\b'
)
"""A sentence that begins with a genitive: "Of bits, …" in place of "For bits, …"."""


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a file, without the table of CONTRIBUTING.md that shows bad examples."""
    skipped = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        skipped = line.startswith("| before |") or (skipped and line.startswith("|"))
        if not skipped:
            yield number, line


def texts() -> list[Path]:
    """Return the files that users and contributors read."""
    pages = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    folders = [(ROOT / "docs", ("*.md", "*.py")), (ROOT / "src", ("*.py", "*.j2"))]
    return pages + [
        path for folder, kinds in folders for kind in kinds for path in sorted(folder.rglob(kind))
    ]


def lines_with(phrase: str, paths: list[Path]) -> list[str]:
    """Return the lines of these files that contain a phrase."""
    wrong = re.compile(rf"\b(?:{phrase})\b", re.IGNORECASE)
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in lines(path)
        if wrong.search(line)
    ]


@pytest.mark.parametrize("phrase", AVOIDED)
def test_texts_avoid_a_phrase(phrase: str) -> None:
    assert lines_with(phrase, texts()) == [], f"write: {AVOIDED[phrase]}"


@pytest.mark.parametrize("phrase", AVOIDED_ON_PAGES)
def test_pages_avoid_a_word(phrase: str) -> None:
    pages = [path for path in texts() if path.suffix == ".md"]
    assert lines_with(phrase, pages) == [], f"write: {AVOIDED_ON_PAGES[phrase]}"


def test_sentences_begin_with_their_subject() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts()
        for number, line in lines(path)
        if OPENINGS.search(line)
    ]
    assert found == []


def test_the_list_finds_what_it_is_for() -> None:
    text = "Variance over that of LOORF; whoever compares them"
    assert [phrase for phrase in AVOIDED if re.search(rf"\b{phrase}\b", text)] == [
        "over that of",
        "whoever",
    ]
    assert OPENINGS.search('"""Of bits, the sum is zero."""')
    assert not OPENINGS.search("The sum of bits is zero.")


def test_the_table_of_bad_examples_is_the_only_exception() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert page.count("| before |") == 1
    shown = {number for number, _ in lines(ROOT / "CONTRIBUTING.md")}
    assert len(page.splitlines()) - len(shown) == 7  # a heading, a rule, five pairs
