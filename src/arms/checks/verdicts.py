"""What a check returns: findings, each with its figure and the limit it was compared with."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

from torch import Tensor

FAILURE_RATE = 1e-6
"""How often a whole check of a correct estimator or coupling may fail by chance."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    """What was looked at."""
    passed: bool
    """Whether it is as it should be."""
    figure: str
    """What was measured and what it was held against, in words."""
    label: str = ""
    """What to say instead of "pass", where passing is no praise: "biased"."""

    @property
    def verdict(self) -> str:
        """The finding in one word."""
        return (self.label or "pass") if self.passed else "FAIL"


@dataclass(frozen=True)
class Findings:
    """All findings on one subject."""

    subject: str
    """What was checked."""
    findings: tuple[Finding, ...]
    """One by one."""
    not_checked: tuple[str, ...] = ()
    """What a user might take for checked and is not, each in a few words."""

    @property
    def passed(self) -> bool:
        """Whether every finding passed."""
        return all(finding.passed for finding in self.findings)

    @property
    def verdict(self) -> str:
        """All findings in one word: a failure if there is one, else a label such as "biased" if there is one."""
        return next(
            (f.verdict for f in sorted(self.findings, key=lambda f: (f.passed, not f.label))),
            "pass",
        )

    def __str__(self) -> str:
        width = max((len(finding.name) for finding in self.findings), default=0)
        lines = [
            f"{finding.name:<{width}}  {finding.verdict:<6}  {finding.figure}"
            for finding in self.findings
        ]
        notes = [f"not checked: {'; '.join(self.not_checked)}"] if self.not_checked else []
        return "\n".join([f"{self.subject}: {self.verdict}", *lines, *notes])


def attempt(name: str, look: Callable[[], Finding | list[Finding]]) -> list[Finding]:
    """Return what a look at a user's own code finds; whatever it raises is a failure, in one line.

    >>> attempt("shapes", lambda: [Finding("shapes", True, str(1 / 0))])
    [Finding(name='shapes', passed=False, figure='raised ZeroDivisionError: division by zero', label='')]
    """
    try:
        found = look()
        return found if isinstance(found, list) else [found]
    except Exception as error:
        what = str(error).strip().partition("\n")[0]
        return [Finding(name, False, f"raised {type(error).__name__}{f': {what}' if what else ''}")]


def score_limit(comparisons: int, failure_rate: float = FAILURE_RATE) -> float:
    """Return the |z| that the largest of this many normal scores exceeds with probability at most `failure_rate`.

    Args:
        comparisons: How many scores.
        failure_rate: The probability.

    >>> round(score_limit(1, 0.05), 2)
    1.96
    """
    return -NormalDist().inv_cdf(failure_rate / (2 * comparisons))


def skew_corrected(
    mean: Tensor, variance: Tensor, third: Tensor, count: int, rounding: float
) -> Tensor:
    """Return z-scores of means that are zero in expectation, corrected for the skewness of what was averaged.

    The mean of rare events is skewed, and its plain z-score far from normal. Hall's transformation removes the first
    order of that; it is monotone.

    Args:
        mean: The means.
        variance: The variance of one term.
        third: The third central moment of one term.
        count: How many terms were averaged.
        rounding: The least standard error.

    >>> import torch
    >>> skew_corrected(torch.tensor(0.1), torch.tensor(1.0), torch.tensor(0.0), 100, 1e-12)
    tensor(1.)
    """
    error = (variance / count).sqrt().clamp(min=rounding)
    score = mean / error
    skew = third / (count**0.5 * (count**0.5 * error) ** 3)
    corrected: Tensor = score + skew * score.square() / 3 + skew.square() * score**3 / 27 + skew / 6
    return corrected


def judge_score(
    name: str, largest: float, comparisons: int, failure_rate: float = FAILURE_RATE
) -> Finding:
    """Hold the largest of this many |z| against its limit; NaN fails."""
    limit = score_limit(comparisons, failure_rate)
    return Finding(
        name, largest <= limit, f"largest |z| of {comparisons} is {largest:.2f}, limit {limit:.2f}"
    )
