"""Colour, dash and marker of every estimator, the same in every figure.

The colours are those of Okabe and Ito, which colour-blind readers can distinguish. Dash and marker
do so in black and white.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

VERMILION, BLUE, SKY, GREEN = "#D55E00", "#0072B2", "#56B4E9", "#009E73"
PURPLE, ORANGE, GREY, BLACK = "#CC79A7", "#E69F00", "#808080", "#000000"

DASHES: Mapping[str, tuple[float, tuple[float, ...]]] = {
    "solid": (0, ()),
    "dash": (0, (5, 2)),
    "dot": (0, (1.2, 1.5)),
    "dashdot": (0, (5, 1.5, 1.2, 1.5)),
    "longdash": (0, (9, 2.5)),
}
MARKERS = "osD^vPX*p"  # these and the dashes as matplotlib writes them


@dataclass(frozen=True)
class Style:
    """Colour, dash (a key of DASHES) and marker of one curve."""

    color: str
    dash: str
    marker: str


STYLES: dict[str, Style] = {
    "arms": Style(VERMILION, "solid", "o"),
    "arms-dirichlet": Style(BLUE, "solid", "s"),
    "arms-gaussian": Style(SKY, "solid", "D"),
    "loorf": Style(GREEN, "dash", "^"),
    "disarm": Style(PURPLE, "dash", "v"),
    "relax": Style(ORANGE, "dash", "P"),
    "rebar": Style(ORANGE, "dot", "X"),
    "double-cv": Style(GREEN, "dot", "s"),
    "rodeo": Style(GREEN, "solid", "p"),
    "arm": Style(GREY, "dash", "X"),
    "reinforce": Style(GREY, "dot", "P"),
    "exact": Style(GREY, "solid", "*"),
    "midpoint": Style(VERMILION, "dash", "*"),
    "midpoint-single": Style(VERMILION, "dot", "D"),
    "cross-paired": Style(BLUE, "dash", "p"),
    "arms-taylor": Style(VERMILION, "dashdot", "X"),
    "reinmax": Style(GREY, "longdash", "o"),
    "arms-ms": Style(VERMILION, "longdash", "o"),
    "arms-ms-dirichlet": Style(BLUE, "longdash", "s"),
    "arms-ms-gaussian": Style(SKY, "longdash", "D"),
    "loorf-ms": Style(GREEN, "dashdot", "^"),
    "disarm-ms": Style(PURPLE, "dashdot", "v"),
    "midpoint-ms": Style(VERMILION, "dashdot", "*"),
    "midpoint-ms-shared": Style(VERMILION, "dashdot", "D"),
    "vimco": Style(ORANGE, "dashdot", "p"),
    "reinforce-ms": Style(GREY, "dashdot", "P"),
}
UNFOLDED = ("arms-ms", "arms-ms-dirichlet", "arms-ms-gaussian", "loorf-ms", "disarm-ms")
STYLES |= {f"{name} (unfolded)": replace(STYLES[name], marker="X") for name in UNFOLDED}


def style_of(estimator: str) -> Style:
    """Return the style of an estimator; its name decides the style of one without an entry."""
    if estimator in STYLES:
        return STYLES[estimator]
    # No entry is black, so that these styles differ from all entries.
    index = zlib.crc32(estimator.encode())
    marker = MARKERS[index // len(DASHES) % len(MARKERS)]
    return Style(BLACK, list(DASHES)[index % len(DASHES)], marker)
