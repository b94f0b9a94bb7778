"""The picture of the decision, as SVG inside the page: it takes its colors from the page, light or dark."""

from dataclasses import dataclass
from html import escape

WIDTH = 420
HEIGHT = 64
GAP = 34
LEFT, RIGHT = 226, 150
"""Widths of questions and answers."""


@dataclass(frozen=True)
class Step:
    """A question, and what to take if the answer is yes."""

    question: tuple[str, ...]
    answer: str
    folder: str
    words: tuple[str, ...]


STEPS = (
    Step(
        ("Can you afford to evaluate", "every state of every row?"),
        "exact",
        "expectation",
        ("no noise at all",),
    ),
    Step(("Is f a black box?", "(no df/db)"), "arms", "expectation", ("loorf for subsets",)),
    Step(
        ("Is f meaningless", "between 0 and 1?"),
        "cross-paired",
        "expectation",
        ("derivatives at 0 and 1",),
    ),
    Step(
        ("Does a batch have", "at least 8 rows?"), "flips", "expectation", ("n = 4: 6 evaluations",)
    ),
    Step(
        ("Are there a dozen latents", "or fewer?"),
        "arms-taylor",
        "expectation",
        ("one derivative, at b = p",),
    ),
)
LAST = Step((), "midpoint", "expectation", ("n = 4: 5 evaluations",))


def draw() -> str:
    """Return the picture."""
    parts, y = [], 4
    for step in STEPS:
        parts += [
            _box(4, y, LEFT, "question", step.question),
            _arrow(4 + LEFT, y + HEIGHT / 2, WIDTH - RIGHT - 4, "yes"),
        ]
        parts.append(_answer(WIDTH - RIGHT - 4, y, RIGHT, step))
        parts.append(_down(4 + LEFT / 2, y + HEIGHT, y + HEIGHT + GAP))
        y += HEIGHT + GAP
    parts.append(_answer(4, y, LEFT, LAST))
    height = y + HEIGHT + 4
    title = "Which estimator: five questions from top to bottom; the first yes decides, and five times no is midpoint."
    return (
        f'<svg class="decision" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">'
        f"<title>{title}</title>{''.join(parts)}</svg>"
    )


def _lines(x: float, y: float, lines: tuple[str, ...], bold: bool = False) -> str:
    top = y + HEIGHT / 2 - 9 * (len(lines) - 1) + 5
    kinds = (' class="name"', ' class="words"') if bold else ("", "")
    return "".join(
        f'<text{kinds[min(i, 1)]} x="{x}" y="{top + 18 * i}">{escape(line)}</text>'
        for i, line in enumerate(lines)
    )


def _box(
    x: float, y: float, width: float, kind: str, lines: tuple[str, ...], bold: bool = False
) -> str:
    return (
        f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{HEIGHT}" rx="6"/>'
        + _lines(x + width / 2, y, lines, bold)
    )


def _answer(x: float, y: float, width: float, step: Step) -> str:
    box = _box(x, y, width, "answer", (step.answer, *step.words), bold=True)
    return f'<a href="estimators/{step.folder}/{step.answer}.html">{box}</a>'


def _arrow(x: float, y: float, end: float, word: str) -> str:
    head = f"M{end - 7} {y - 5} L{end} {y} L{end - 7} {y + 5}"
    return f'<path d="M{x} {y} H{end} {head}"/><text class="small" x="{(x + end) / 2}" y="{y - 7}">{word}</text>'


def _down(x: float, y: float, end: float) -> str:
    head = f"M{x - 5} {end - 7} L{x} {end} L{x + 5} {end - 7}"
    return f'<path d="M{x} {y} V{end} {head}"/><text class="small" x="{x + 16}" y="{(y + end) / 2 + 3}">no</text>'
