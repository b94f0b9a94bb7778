"""The subcommand audit: test gradient estimators that were written elsewhere."""

from dataclasses import replace
from typing import Annotated, Any

import tyro

from arms import BestOf, Expectation, checks
from arms.arguments import as_count
from arms.bench.cli.library import MIN_DRAWS
from arms.bench.output import print_plain
from arms.bench.runs.loading import find_attribute
from arms.checks.audit import Kind
from arms.checks.verdicts import FAILURE_RATE, call


def audit(
    subject: Annotated[str, tyro.conf.Positional],
    /,
    kind: Kind = "gradient",
    latent: Annotated[str | None, tyro.conf.arg(help_behavior_hint="(default: by kind)")] = None,
    num_samples: int = 8,
    best_of: Annotated[int | None, tyro.conf.arg(help_behavior_hint="(default: none)")] = None,
    batched: bool = True,
    draws: int = 100_000,
    failure_rate: float = FAILURE_RATE,
    seed: int = 0,
) -> None:
    """Test any gradient estimator for bias by enumeration, and compare its variance with LOORF's.

    The exit code is 1 if the estimator is biased, and 2 if it could not be audited.

    Args:
        subject: module:function. The current folder is searched for modules too.
        kind: sample for function(logits) that returns differentiable samples; gradient for
            function(objective, logits) that returns a gradient; weights for function(rewards) that
            returns weights of log-probabilities.
        latent: bits, categories, or module:name of a latent without batch axes and with few states.
            The default is bits for kind gradient, and categories otherwise.
        num_samples: The number of rewards in a group, for kind weights.
        best_of: The number k, if the target is the expected highest of k rewards. By default, the
            target is the expected reward.
        batched: Whether the function accepts a batch of rows. If not, each call gets one row.
        draws: Estimates per problem, at least 1,000; more draws detect smaller errors.
        failure_rate: Accepted probability that a correct function is called biased.
        seed: The seed of the test problems and of the draws.
    """
    chosen: Any = latent
    if latent is not None and ":" in latent:
        found = find_attribute(latent)
        chosen = call(found, "give a latent") if callable(found) else found
    result = checks.audit(
        find_attribute(subject),
        kind,
        as_count(draws, MIN_DRAWS, "--draws"),
        failure_rate,
        latent=chosen,
        num_samples=num_samples,
        target=Expectation() if best_of is None else BestOf(best_of),
        batched=batched,
        seed=seed,
    )
    for line in str(replace(result, subject=subject)).splitlines():
        print_plain(line)
    if result.biased:
        raise SystemExit(1)
