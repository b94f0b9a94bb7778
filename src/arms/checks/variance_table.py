"""Estimators compared on one objective, as rows, as text and as Markdown."""

import html
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from textwrap import wrap

WIDTH = 100
"""Columns of a terminal that a table fits."""
HEADINGS = (
    "estimator",
    "n",
    "evals",
    "derivs",
    "variance",
    "±",
    "x lowest",
    "bias |z|",
    "ms",
    "var x ms",
    "x lowest",
)
IN_FULL_HTML = {
    "evals": "evaluations",
    "derivs": "derivatives",
    "±": "± of it",
    "var x ms": "variance x ms",
}
IN_FULL = {**IN_FULL_HTML, "bias |z|": r"bias \|z\|"}


@dataclass(frozen=True)
class VarianceRow:
    """One estimator's line of the table."""

    estimator: str
    """Its name, or of an object its class and what tells it from others."""
    num_samples: int | None
    """n; None where it enumerates all states, whatever n is."""
    evaluations: int
    """Evaluations of the objective for one estimate."""
    derivatives: int
    """How many of them are differentiated with respect to their point."""
    variance: float
    """Mean over all logits of the variance of one estimate."""
    bias_score: float
    """Largest |z| of the mean estimate against the reference; NaN where no logit could be scored."""
    milliseconds: float
    """Time of one estimate, objective included: the median over all draws."""
    unbiased: bool = True
    """What the estimator says of itself."""
    untrained: bool = False
    """Whether it has parameters of its own, and was given by name: they are as they were made."""
    variance_error: float = math.nan
    """Standard error of the variance, over repeats."""

    @property
    def variance_time(self) -> float:
        """Variance times milliseconds: what averaging estimates until a given time leaves is proportional to it."""
        return self.variance * self.milliseconds

    @property
    def title(self) -> str:
        """The name, and what a reader must know of it."""
        return self.estimator + " (untrained)" * self.untrained + " (biased)" * (not self.unbiased)


@dataclass(frozen=True)
class VarianceTable:
    """Estimators compared on one objective; `print` it.

    The unbiased ones come first, each kind by its variance. Ratios are to the lowest of the unbiased.
    """

    rows: tuple[VarianceRow, ...]
    """A line for each estimator."""
    reference: str
    """What the bias scores are held against."""
    score_limit: float
    """The |z| that unbiased estimators exceed once in a million tables if scores are normal: see `arms.variance`."""
    unscored: int = 0
    """How many logits have no part in the bias scores, having flipped too rarely or been drawn too few times."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why an estimator that was not asked for by name has no row: its name to the reason."""

    def __str__(self) -> str:
        rows = [HEADINGS, *self._cells()]
        widths = [max(len(row[column]) for row in rows) for column in range(1, len(HEADINGS))]
        longest = max(len(row[0]) for row in rows)
        gap = "  " if longest + sum(widths) + 2 * len(widths) <= WIDTH else " "
        first = min(longest, WIDTH - sum(widths) - len(gap) * len(widths))
        lines = []
        for name, *figures in rows:
            fits = len(name) <= first
            lines += [] if fits else wrap(name, WIDTH)  # on a line of its own rather than cut
            cells = [f"{cell:>{width}}" for cell, width in zip(figures, widths, strict=True)]
            lines.append(gap.join([f"{name if fits else '':<{first}}", *cells]).rstrip())
        return "\n".join([*lines, *self._notes()])

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        rows = [HEADINGS, *self._cells()]
        head, *body = [
            "".join(
                f"<{tag}>{html.escape(IN_FULL_HTML.get(cell, cell).strip())}</{tag}>"
                for cell in row
            )
            for tag, row in zip(["th", *["td"] * len(self.rows)], rows, strict=True)
        ]
        lines = "".join(f"<tr>{line}</tr>" for line in body)
        notes = "<br>".join(html.escape(note) for note in self._notes())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table><p>{notes}</p>"

    def to_markdown(self) -> str:
        """Return the table in Markdown, with the same figures and notes."""
        lines = [_markdown_line(IN_FULL.get(heading, heading) for heading in HEADINGS)]
        lines.append("|---|" + "---:|" * (len(HEADINGS) - 1))
        lines += [
            _markdown_line(cell.strip().replace("*", r"\*") for cell in cells)
            for cells in self._cells()
        ]
        notes = [note.replace("*", r"\*").replace("|", r"\|") for note in self._notes()]
        return "\n".join([*lines, "", *(f"{note}  " for note in notes[:-1]), notes[-1]])

    def _cells(self) -> list[tuple[str, ...]]:
        unbiased = [row for row in self.rows if row.unbiased]
        lowest = min((row.variance for row in unbiased), default=math.nan)
        quickest = min((row.variance_time for row in unbiased), default=math.nan)
        return [
            (
                row.title,
                "-" if row.num_samples is None else str(row.num_samples),
                str(row.evaluations),
                str(row.derivatives),
                f"{row.variance:.4g}",
                _percent(row.variance_error, row.variance),
                _ratio(row.variance, lowest, row.unbiased),
                _number(row.bias_score, 2),
                _number(row.milliseconds, 3),
                f"{row.variance_time:.4g}",
                _ratio(row.variance_time, quickest, row.unbiased),
            )
            for row in self.rows
        ]

    def _notes(self) -> list[str]:
        against = f"bias |z|: the largest over all logits, against {self.reference}"
        notes = [
            "variance: of one logit's gradient, mean over all logits, in squared units of the objective"
        ]
        notes.append(
            "±: its standard error, in per cent of it; rare large estimates can hide from both"
        )
        notes += [
            "*: the lowest of the unbiased",
            f"{against}; suspicious beyond {self.score_limit:.2f}",
        ]
        if self.unscored:
            notes.append(
                f"logits that have no part in it: {self.unscored} (too few flips or repeats)"
            )
        of_reason: dict[str, list[str]] = {}
        for name, reason in self.left_out.items():
            of_reason.setdefault(reason, []).append(name)
        for reason, names in of_reason.items():
            notes += wrap(
                f"left out: {', '.join(names)} ({reason})", WIDTH, subsequent_indent=" " * 10
            )
        return notes


def _ratio(value: float, lowest: float, unbiased: bool) -> str:
    """Return how many times the lowest, with a mark on the lowest itself."""
    ratio = (
        value / lowest
        if lowest > 0
        else math.nan
        if math.isnan(lowest)
        else 1.0
        if value == 0
        else math.inf
    )
    return _number(ratio, 3) + ("*" if unbiased and value == lowest else " ")


def _percent(error: float, value: float) -> str:
    if math.isnan(error) or value == 0:
        return "-"
    share = 100 * error / value
    return f"{share:.1f}%" if share < 1000 else ">999%"


def _number(value: float, digits: int) -> str:
    if math.isnan(value):
        return "-"
    text = f"{value:.{digits}f}"
    return text if len(text) <= 8 else f"{value:.2e}"


def _markdown_line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
