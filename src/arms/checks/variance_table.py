"""Estimators compared on one objective, as rows, as text and for notebooks."""

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import wrap

WIDTH = 100
"""Columns of a terminal that a table fits."""
HEADINGS = (
    *("estimator", "n", "evals", "derivs", "variance", "±", "x lowest"),
    *("bias |z|", "ms", "var x ms", "x lowest"),
)


@dataclass(frozen=True)
class VarianceRow:
    """One estimator's line of the table."""

    estimator: str
    """Its name; for an object, its class and what distinguishes it from others."""
    num_samples: int | None
    """n; None if it enumerates all states, whatever n is."""
    evaluations: int
    """Evaluations of the objective for one estimate."""
    derivatives: int
    """How many of them are differentiated with respect to their point."""
    variance: float
    """Mean over all logits of the variance of one estimate."""
    bias_score: float
    """Largest |z| of the mean estimate against the reference; NaN if no logit could be scored."""
    milliseconds: float
    """Time of one estimate, objective included: the median over all draws."""
    unbiased: bool = True
    """What the estimator says of itself."""
    untrained: bool = False
    """Whether it was given by name and has parameters, which are then the initial ones."""
    variance_error: float = math.nan
    """Standard error of the variance, over repeats."""

    @property
    def variance_time(self) -> float:
        """Variance times milliseconds: proportional to the variance reached in a given time."""
        return self.variance * self.milliseconds

    @property
    def title(self) -> str:
        """The name, and what a reader must know of it."""
        return self.estimator + " (untrained)" * self.untrained + " (biased)" * (not self.unbiased)


@dataclass(frozen=True)
class VarianceTable:
    """Estimators compared on one objective; `print` it.

    The unbiased ones come first, each kind by its variance. Ratios are to the lowest unbiased one.
    """

    rows: tuple[VarianceRow, ...]
    """A line for each estimator."""
    reference: str
    """What means are compared with."""
    score_limit: float
    """The |z| that unbiased estimators exceed once in a million tables: see `arms.variance`."""
    unscored: int = 0
    """How many logits have no bias score: too few flips, or too few repeats."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why an estimator that was not asked for by name has no row: its name to the reason."""

    def __str__(self) -> str:
        rows = [HEADINGS, *self._cells()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= WIDTH else " "
        widths[0] = min(widths[0], WIDTH - sum(widths[1:]) - len(gap) * (len(widths) - 1))
        lines = []
        for name, *figures in rows:
            fits = len(name) <= widths[0]
            lines += [] if fits else wrap(name, WIDTH)  # on a line of its own rather than cut
            cells = [f"{cell:>{width}}" for cell, width in zip(figures, widths[1:], strict=True)]
            lines.append(gap.join([f"{name if fits else '':<{widths[0]}}", *cells]).rstrip())
        return "\n".join([*lines, *self._notes()])

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        head, *body = (
            "".join(f"<{tag}>{html.escape(cell.strip())}</{tag}>" for cell in row)
            for tag, row in [("th", HEADINGS), *(("td", row) for row in self._cells())]
        )
        lines = "".join(f"<tr>{line}</tr>" for line in body)
        notes = "<br>".join(map(html.escape, self._notes()))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table><p>{notes}</p>"

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
            "variance: of a logit's gradient, mean over logits, in squared units of the objective",
            "±: its standard error, in per cent of it; rare large estimates can hide from both",
            "*: the lowest of the unbiased",
            f"{against}; suspicious beyond {self.score_limit:.2f}",
        ]
        if self.unscored:
            few = f"{self.unscored} (too few flips or repeats)"
            notes.append(f"logits that have no part in it: {few}")
        names_of: dict[str, list[str]] = {}
        for name, reason in self.left_out.items():
            names_of.setdefault(reason, []).append(name)
        for reason, names in names_of.items():
            note = f"left out: {', '.join(names)} ({reason})"
            notes += wrap(note, WIDTH, subsequent_indent=" " * 10)
        return notes


def _ratio(value: float, lowest: float, unbiased: bool) -> str:
    """Return how many times the lowest, with a mark on the lowest itself."""
    at_zero = 1.0 if value == 0 else math.inf
    ratio = value / lowest if lowest else at_zero
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
