"""The page of reproduced numbers: a difference is colored by how many standard errors it is away from zero."""

import re

DIFFERENCE = re.compile(
    r'<td(?: class="[^"]*")?>(<p>(?:<strong>)?[+\u2212][\d.]+ \(([+\u2212])([\d.]+)\)(?:</strong>)?</p>)</td>'
)
STEPS = (
    (1.0, "within-1"),
    (2.0, "within-2"),
    (3.0, "within-3"),
    (5.0, "within-5"),
    (float("inf"), "beyond"),
)
WORDS = {"within-1": "1", "within-2": "2", "within-3": "3", "within-5": "5", "beyond": "more"}


def colored(html: str) -> str:
    """Return the page with a class for every difference, and a legend above the first table of them."""
    html = DIFFERENCE.sub(
        lambda match: f'<td class="{_kind(match[2], float(match[3]))}">{match[1]}</td>', html
    )
    first = html.find('<td class="difference')
    if first < 0:
        raise ValueError(
            "the page of reproduced numbers must have differences like +0.42 (+3.0), and has none"
        )
    start = html.rfind("<table", 0, first)
    return html[:start] + _legend() + html[start:]


def _kind(sign: str, errors: float) -> str:
    step = next(name for limit, name in STEPS if errors <= limit)
    return f"difference {'above' if sign == '+' else 'below'} {step}"


def _legend() -> str:
    """Return one line for each direction: a box for every step."""
    rows = [
        f"<span>ours {where}, standard errors up to</span> "
        + " ".join(
            f'<span class="difference {where} {step}">{WORDS[step]}</span>' for _, step in STEPS
        )
        for where in ("above", "below")
    ]
    return '<p class="legend">' + "<br>".join(rows) + "</p>"
