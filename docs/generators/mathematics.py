"""Formulas as MathML, which browsers draw by themselves, and the font for it: nothing is loaded from elsewhere."""

import logging
from importlib.util import find_spec
from pathlib import Path

from fontTools import subset
from latex2mathml.converter import convert

FONT = "_static/math.woff"


def as_mathml(latex: str, block: bool = False) -> str:
    """Return a formula as MathML, inline or as a block that scrolls where it is too wide.

    >>> as_mathml("a < b")[:5], as_mathml("a", block=True)[:26]
    ('<math', '<div class="formula"><math')
    """
    found = convert(latex.strip(), display="block" if block else "inline")
    return f'<div class="formula">{found}</div>' if block else found


def write_font(site: Path) -> None:
    """Write STIX Two Math, with the characters that formulas may have: not every system has a font for mathematics."""
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it reports every table
    options = subset.Options()
    options.flavor = "woff"
    options.layout_features = ["*"]
    options.name_IDs = ["*"]  # its license is in there
    letters = [
        *range(0x20, 0x250),
        *range(0x370, 0x400),
        *range(0x2000, 0x2070),
        *range(0x2100, 0x2300),
    ]
    letters += [
        *range(0x2308, 0x230C),
        *range(0x27E8, 0x27EA),
        *range(0x1D400, 0x1D468),
        *range(0x1D6A8, 0x1D71C),
    ]
    font = subset.load_font(str(_source()), options)
    cutter = subset.Subsetter(options)
    cutter.populate(unicodes=letters)
    cutter.subset(font)
    subset.save_font(font, str(site / FONT), options)


def _source() -> Path:
    """Return the font's file, in a package that brings it along; the package itself is not imported."""
    found = find_spec("ziamath")
    assert found is not None
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "fonts" / "STIXTwoMath-Regular.ttf"
