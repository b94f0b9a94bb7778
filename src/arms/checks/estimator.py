"""Everything a user may rely on in an estimator, tried on a live one."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from arms.checks.bias import check_bias
from arms.checks.verdicts import FAILURE_RATE, Finding, Report, attempt
from arms.estimators.base import Estimator

__all__ = ["COUNTS", "check_estimator"]

COUNTS = (1, 2, 3, 4, 8)


def check_estimator(
    factory: Callable[[int], Estimator], draws: int = 100_000, failure_rate: float = FAILURE_RATE
) -> Report:
    """Test an estimator, given as a class or any function of num_samples, at every budget that it accepts.

    >>> from arms import LOORF
    >>> check_estimator(LOORF, draws=1000).passed
    True
    """
    accepted = [estimator for n in COUNTS if (estimator := _accept(factory, n)) is not None]
    if not accepted:
        raise ValueError(f"{factory!r} accepts no num_samples among {COUNTS}: nothing to check")
    first = accepted[-1]
    # An estimator with parameters may settle on a number of latents, so each check has one of its own.
    checked = [factory(first.num_samples) for _ in range(4)]
    findings = [
        *attempt("shapes", lambda: [_shapes(checked[0])]),
        *attempt("repeatable", lambda: [_repeatable(checked[1])]),
        *attempt("extreme logits, float32", lambda: [_extremes(checked[2], torch.float32)]),
        *attempt("extreme logits, bfloat16", lambda: [_extremes(checked[3], torch.bfloat16)]),
    ]
    rate = failure_rate / len(accepted)
    for seed, one in enumerate(accepted):
        findings += attempt(f"unbiased, n = {one.num_samples}", partial(_bias, one, draws, rate, seed))
    return Report(
        f"{type(first).__name__}, num_samples {', '.join(str(e.num_samples) for e in accepted)}", tuple(findings)
    )


def _bias(estimator: Estimator, draws: int, rate: float, seed: int) -> list[Finding]:
    return [check_bias(estimator, draws, rate, seed)]


def _accept(factory: Callable[[int], Estimator], n: int) -> Estimator | None:
    try:
        return factory(n)
    except ValueError:
        return None


def _objective(b: Tensor) -> Tensor:
    return (b * torch.arange(1, b.shape[-1] + 1, dtype=b.dtype)).sum(-1).square()


def _shapes(estimator: Estimator) -> Finding:
    for batch in ((), (5,), (2, 3)):
        logits = torch.linspace(-2, 2, 4).expand(*batch, 4)
        grad, value, values = estimator(_objective, logits, torch.Generator().manual_seed(0))
        attached = grad.requires_grad and not estimator.has_parameters
        if grad.shape != logits.shape or grad.dtype != logits.dtype or attached:
            figure = f"logits {list(logits.shape)} gave a gradient {list(grad.shape)}, {grad.dtype}, expected the same"
            figure += ", detached" if attached else ""
            return Finding("shapes", False, figure)
        if values.shape[1:] != batch or value.shape != batch:
            figure = f"value must have shape {list(batch)} and values [n, ...] of it, got {list(value.shape)} and "
            return Finding("shapes", False, figure + f"{list(values.shape)}")
    return Finding("shapes", True, "grad [*batch, d], values [n, *batch], for batch (), (5,), (2, 3)")


def _repeatable(estimator: Estimator) -> Finding:
    logits = torch.linspace(-2, 2, 4).expand(50, 4).contiguous()
    before, state = logits.clone(), torch.get_rng_state()
    grads = [estimator(_objective, logits, torch.Generator().manual_seed(7)).grad for _ in range(2)]
    same = torch.equal(grads[0], grads[1])
    untouched = torch.equal(before, logits) and torch.equal(state, torch.get_rng_state())
    figure = "same generator, same bits; logits and the global generator untouched"
    return Finding("repeatable", same and untouched, figure if same and untouched else f"NOT: {figure}")


def _extremes(estimator: Estimator, dtype: torch.dtype) -> Finding:
    far = torch.tensor([20.0, 90.0, 200.0, torch.inf])
    logits = torch.cat([far, -far]).to(dtype).expand(100, 8)
    grad = estimator(_objective, logits, torch.Generator().manual_seed(0)).grad
    certain = grad[..., [2, 3, 6, 7]]  # |logit| >= 200: p is 0 or 1
    passed = bool(grad.isfinite().all()) and bool((certain == 0).all())
    figure = "finite at |logit| 20, 90, 200, inf; zero where p is 0 or 1"
    return Finding(
        f"extreme logits, {str(dtype).removeprefix('torch.')}", passed, figure if passed else f"NOT: {figure}"
    )
