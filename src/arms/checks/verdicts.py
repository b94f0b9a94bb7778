"""The results of checks: findings with a measured figure and its limit."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from arms.arguments import described

FAILURE_RATE = 1e-6  # accepted probability that the check of a correct subject fails


@dataclass(frozen=True)
class Finding:
    """The result of one test."""

    name: str
    """The name of the test."""
    passed: bool
    """Whether the test passed."""
    figure: str
    """The measured value and its limit, in words."""
    label: str = ""
    """A word to print instead of "pass", such as "biased"."""

    @property
    def verdict(self) -> str:
        """The result in one word."""
        return (self.label or "pass") if self.passed else "FAIL"


@dataclass(frozen=True)
class Findings:
    """All findings on one subject; `print` them for a table."""

    subject: str
    """The estimator or coupling that was checked."""
    findings: tuple[Finding, ...]
    """The findings, in the order of the tests."""
    not_checked: tuple[str, ...] = ()
    """Properties that a user might expect to be checked, but that were not."""

    @property
    def passed(self) -> bool:
        """Whether every finding passed."""
        return all(finding.passed for finding in self.findings)

    @property
    def verdict(self) -> str:
        """ "FAIL" if a test failed; otherwise the first label of a finding, or "pass"."""
        ranked = sorted(self.findings, key=lambda one: (one.passed, not one.label))
        return ranked[0].verdict if ranked else "pass"

    def __str__(self) -> str:
        width = max((len(one.name) for one in self.findings), default=0)
        lines = [f"{one.name:<{width}}  {one.verdict:<6}  {one.figure}" for one in self.findings]
        notes = [f"not checked: {'; '.join(self.not_checked)}"] if self.not_checked else []
        return "\n".join([f"{self.subject}: {self.verdict}", *lines, *notes])


Found = Finding | list[Finding] | tuple[bool, str]  # a tuple means (passed, figure)


def attempt(name: str, test: Callable[..., Found], *arguments: Any) -> list[Finding]:
    """Return the findings of `test(*arguments)` as a list. An exception counts as a failed test.

    `name` is the name of the finding, unless the test names its findings.

    >>> attempt("shapes", lambda: (True, str(1 / 0)))[0].figure
    'raised ZeroDivisionError: division by zero'
    """
    try:
        found = test(*arguments)
    except (Exception, SystemExit) as error:
        found = (False, f"raised {described(error)}")
    if isinstance(found, tuple):
        found = Finding(name, *found)
    return found if isinstance(found, list) else [found]


def call(make: Callable[[], Any], remedy: str) -> Any:
    """Call a user's function `make`. If it raises, raise a `ValueError` that names the function.

    `remedy` is the end of the message, and says what the user can do.
    """
    try:
        return make()
    except (Exception, SystemExit) as error:
        raise ValueError(f"calling {make!r}() raised {described(error)}: {remedy}") from error


def score_limit(comparisons: int, failure_rate: float = FAILURE_RATE) -> float:
    """Return a limit for the largest absolute value of several standard normal z-scores.

    Args:
        comparisons: The number of z-scores.
        failure_rate: The probability that the largest absolute value exceeds the limit.

    >>> round(score_limit(1, 0.05), 2)
    1.96
    """
    return -NormalDist().inv_cdf(failure_rate / (2 * comparisons))


def judge_scores(scores: Iterable[Tensor], failure_rate: float) -> tuple[bool, str]:
    """Return whether all absolute z-scores are within a limit, and a text that explains the result.

    If all scores are standard normal, the largest exceeds the limit with the probability
    `failure_rate`. NaN fails, and an empty list passes.
    """
    sizes = torch.cat([one.abs().flatten() for one in scores])
    comparisons = max(1, sizes.numel())
    largest = sizes.max().item() if sizes.numel() else 0.0
    limit = score_limit(comparisons, failure_rate)
    return largest <= limit, f"largest |z| of {comparisons} is {largest:.2f}, limit {limit:.2f}"


def skew_corrected(
    mean: Tensor, variance: Tensor, third: Tensor, count: int, rounding: float
) -> Tensor:
    """Return z-scores of means of `count` terms, corrected for skewness.

    The mean of rare events is skewed, so its plain z-score is far from normal. Hall's monotone
    transformation removes the first order of the skewness. `variance` and `third` are the variance
    and the third central moment of a single term. `rounding` is a lower limit of the standard error
    of the mean.
    """
    error = (variance / count).sqrt().clamp(min=rounding)
    score = mean / error
    skew = third / (count**0.5 * (count**0.5 * error) ** 3)
    corrected: Tensor = score + skew * score.square() / 3 + skew.square() * score**3 / 27 + skew / 6
    return corrected
