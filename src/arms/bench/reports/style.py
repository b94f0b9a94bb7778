"""Colour, dash and marker of every estimator, the same in every figure and on every page.

The colours are those of Okabe and Ito, which colour-blind readers can distinguish; dash and marker do so in black and
white.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "BLACK",
    "BLUE",
    "COUPLING_STYLES",
    "DASHES",
    "GREEN",
    "GREY",
    "MARKERS",
    "ORANGE",
    "PURPLE",
    "SKY",
    "STYLES",
    "VERMILION",
    "Style",
    "style_of",
]

VERMILION, BLUE, SKY, GREEN = "#D55E00", "#0072B2", "#56B4E9", "#009E73"
PURPLE, ORANGE, GREY, BLACK = "#CC79A7", "#E69F00", "#808080", "#000000"

DASHES: Mapping[str, tuple[float, tuple[float, ...]]] = {
    "solid": (0, ()),
    "dash": (0, (5, 2)),
    "dot": (0, (1.2, 1.5)),
    "dashdot": (0, (5, 1.5, 1.2, 1.5)),
    "longdash": (0, (9, 2.5)),
}
"""Plotly's name of a dash, and its form in matplotlib."""

MARKERS: Mapping[str, str] = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "triangle-down": "v",
    "cross": "P",
    "x": "X",
    "star": "*",
    "pentagon": "p",
}


@dataclass(frozen=True)
class Style:
    """Colour, dash and marker of one curve."""

    color: str
    dash: str
    marker: str


STYLES: Mapping[str, Style] = {
    "arms-s": Style(VERMILION, "solid", "circle"),
    "arms-d": Style(BLUE, "solid", "square"),
    "arms-n": Style(SKY, "solid", "diamond"),
    "loorf": Style(GREEN, "dash", "triangle-up"),
    "disarm": Style(PURPLE, "dash", "triangle-down"),
    "relax": Style(ORANGE, "dash", "cross"),
    "rebar": Style(ORANGE, "dot", "x"),
    "double-cv": Style(GREEN, "dot", "square"),
    "rodeo": Style(GREEN, "solid", "pentagon"),
    "arm": Style(GREY, "dash", "x"),
    "arts": Style(PURPLE, "dot", "star"),
    "reinforce": Style(GREY, "dot", "cross"),
    "exact": Style(GREY, "solid", "star"),
    "midpoint": Style(VERMILION, "dash", "star"),
    "midpoint-single": Style(VERMILION, "dot", "diamond"),
    "repaired": Style(BLUE, "dash", "pentagon"),
    "arms-s-taylor": Style(VERMILION, "dashdot", "x"),
    "reinmax": Style(GREY, "longdash", "circle"),
    "arms-ms-s": Style(VERMILION, "longdash", "circle"),
    "arms-ms-d": Style(BLUE, "longdash", "square"),
    "arms-ms-n": Style(SKY, "longdash", "diamond"),
    "loorf-ms": Style(GREEN, "dashdot", "triangle-up"),
    "disarm-ms": Style(PURPLE, "dashdot", "triangle-down"),
    "arms-ms-s-paper": Style(VERMILION, "longdash", "x"),
    "arms-ms-d-paper": Style(BLUE, "longdash", "x"),
    "arms-ms-n-paper": Style(SKY, "longdash", "x"),
    "loorf-ms-paper": Style(GREEN, "dashdot", "x"),
    "disarm-ms-paper": Style(PURPLE, "dashdot", "x"),
    "midpoint-ms": Style(VERMILION, "dashdot", "star"),
    "midpoint-ms-tried": Style(VERMILION, "dashdot", "diamond"),
    "vimco": Style(ORANGE, "dashdot", "pentagon"),
    "reinforce-ms": Style(GREY, "dashdot", "cross"),
}

COUPLING_STYLES: Mapping[str, Style] = {
    "independent": STYLES["loorf"],
    "dirichlet": STYLES["arms-d"],
    "gaussian": STYLES["arms-n"],
    "systematic": STYLES["arms-s"],
}
"""A coupling has the style of the estimator that draws from it."""


def style_of(estimator: str) -> Style:
    """Return the style of an estimator; one that is not in the table gets a combination of its own from its name.

    >>> style_of("arms-s").color
    '#D55E00'
    """
    if estimator in STYLES:
        return STYLES[estimator]
    # Black is in no entry of the table, so that no name can meet one of them.
    index = zlib.crc32(estimator.encode())
    return Style(BLACK, list(DASHES)[index % len(DASHES)], list(MARKERS)[index // len(DASHES) % len(MARKERS)])
