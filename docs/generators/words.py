"""Plain text of docstrings as a page has it: Greek letters, subscripts and relations, where a terminal has words."""

import re
import unicodedata

KEPT = re.compile(r"(\$\$.*?\$\$|`[^`]*`|^ {4}.*$)", re.DOTALL | re.MULTILINE)
"""Formulas, code, and lines that are set apart."""
GREEK = re.compile(r"\b(alpha|beta|eta|gamma|kappa|omega|phi|rho|sigma|tau|theta)\b", re.IGNORECASE)
RELATIONS = {"<->": "\u2194", "->": "\u2192", "!=": "\u2260", "<=": "\u2264", ">=": "\u2265"}
BELOW = re.compile(r"(?<![\w{])([A-Za-z]'?|sum|mean)_(\{[^}]*\}|\w+)")
ABOVE = re.compile(r"(?<=[\w)])\^(\{[^}]*\}|-?\w+)")


def typeset(text: str) -> str:
    """Return text with its mathematics as HTML; formulas between dollar signs and code stay as they are.

    >>> typeset("p_s R_s, l != k, 2^d, but `num_samples`")
    'p<sub>s</sub> R<sub>s</sub>, l \u2260 k, 2<sup>d</sup>, but `num_samples`'
    """
    return "".join(part if i % 2 else _typeset(part) for i, part in enumerate(KEPT.split(text)))


def _typeset(text: str) -> str:
    text = GREEK.sub(
        lambda match: unicodedata.lookup(f"GREEK SMALL LETTER {match[1].upper()}"), text
    )
    for written, shown in RELATIONS.items():
        text = text.replace(written, shown)
    text = BELOW.sub(lambda match: f"{match[1]}<sub>{match[2].strip('{}')}</sub>", text)
    return ABOVE.sub(lambda match: f"<sup>{match[1].strip('{}')}</sup>", text)


def capital(sentence: str) -> str:
    """Return a sentence with a capital, unless it begins with a symbol.

    >>> capital("a pair of bits"), capital("n different states"), capital("u_i, in order")
    ('A pair of bits', 'n different states', 'u_i, in order')
    """
    return sentence if re.match(r"(?!a )\w[ _]", sentence) else sentence[0].upper() + sentence[1:]
