"""Colour, dash and marker of every estimator, the same in every figure and on every page.

The colours are those of Okabe and Ito, which colour-blind readers can distinguish; dash and marker do so in black and
white.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

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
    "arms": Style(VERMILION, "solid", "circle"),
    "arms-dirichlet": Style(BLUE, "solid", "square"),
    "arms-gaussian": Style(SKY, "solid", "diamond"),
    "loorf": Style(GREEN, "dash", "triangle-up"),
    "disarm": Style(PURPLE, "dash", "triangle-down"),
    "relax": Style(ORANGE, "dash", "cross"),
    "rebar": Style(ORANGE, "dot", "x"),
    "double-cv": Style(GREEN, "dot", "square"),
    "rodeo": Style(GREEN, "solid", "pentagon"),
    "arm": Style(GREY, "dash", "x"),
    "reinforce": Style(GREY, "dot", "cross"),
    "exact": Style(GREY, "solid", "star"),
    "midpoint": Style(VERMILION, "dash", "star"),
    "midpoint-single": Style(VERMILION, "dot", "diamond"),
    "cross-paired": Style(BLUE, "dash", "pentagon"),
    "arms-taylor": Style(VERMILION, "dashdot", "x"),
    "reinmax": Style(GREY, "longdash", "circle"),
    "arms-ms": Style(VERMILION, "longdash", "circle"),
    "arms-ms-dirichlet": Style(BLUE, "longdash", "square"),
    "arms-ms-gaussian": Style(SKY, "longdash", "diamond"),
    "loorf-ms": Style(GREEN, "dashdot", "triangle-up"),
    "disarm-ms": Style(PURPLE, "dashdot", "triangle-down"),
    "arms-ms (unfolded)": Style(VERMILION, "longdash", "x"),
    "arms-ms-dirichlet (unfolded)": Style(BLUE, "longdash", "x"),
    "arms-ms-gaussian (unfolded)": Style(SKY, "longdash", "x"),
    "loorf-ms (unfolded)": Style(GREEN, "dashdot", "x"),
    "disarm-ms (unfolded)": Style(PURPLE, "dashdot", "x"),
    "midpoint-ms": Style(VERMILION, "dashdot", "star"),
    "midpoint-ms-shared": Style(VERMILION, "dashdot", "diamond"),
    "vimco": Style(ORANGE, "dashdot", "pentagon"),
    "reinforce-ms": Style(GREY, "dashdot", "cross"),
}

COUPLING_STYLES: Mapping[str, Style] = {
    "independent": STYLES["loorf"],
    "dirichlet": STYLES["arms-dirichlet"],
    "gaussian": STYLES["arms-gaussian"],
    "systematic": STYLES["arms"],
}
"""A coupling has the style of the estimator that draws from it."""


def style_of(estimator: str) -> Style:
    """Return the style of an estimator; one that is not in the table gets a combination of its own from its name.

    >>> style_of("arms").color
    '#D55E00'
    """
    if estimator in STYLES:
        return STYLES[estimator]
    # Black is in no entry of the table, so that no name can meet one of them.
    index = zlib.crc32(estimator.encode())
    return Style(
        BLACK, list(DASHES)[index % len(DASHES)], list(MARKERS)[index // len(DASHES) % len(MARKERS)]
    )
