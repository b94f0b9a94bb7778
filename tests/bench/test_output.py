"""Numbers and names as text."""

import pytest

from arms.bench.metrics import GRADIENT_VARIANCE, TRAIN_ELBO
from arms.bench.output import (
    format_mean_std,
    format_metric,
    format_number,
    format_survivors,
    is_drawable,
    printable,
    shorten,
    shorten_words,
)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (format_mean_std([-1.0, None, -2.0]), "-1.50 ±0.71 (2 of 3 replicas)"),
        (format_number(-123.456), "-123.46"),
        (format_number(-1.2345e31), "-1.23e+31"),
        (format_metric(TRAIN_ELBO, [-1.0, None, -2.0]), "-1.50"),
        (format_metric(GRADIENT_VARIANCE, [0.001, 0.003]), "2.00e-03"),
        (format_survivors([-1.0, None]), " (1 of 2 replicas)"),
        (format_survivors([-1.0, 1.0]), ""),
        (printable("digits\x1b[2J"), r"digits\x1b[2J"),
        (shorten("mnist"), "mnist"),
        (shorten("a" * 80_000)[-25:], "aaa... (80000 characters)"),
    ],
)
def test_text(found: str, expected: str) -> None:
    assert found == expected


def test_long_words_are_cut() -> None:
    line = shorten_words(f"there is no {3000 * 'a/'}: give another", ["runs"])
    assert line.endswith("/a/a/a... (6001 characters) give another")


def test_what_can_be_drawn() -> None:
    assert is_drawable(-1e31)
    assert not is_drawable(1e200)
