"""Everything a user may rely on in an estimator, tried on a live one."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from arms.checks.bias import check_bias
from arms.checks.verdicts import FAILURE_RATE, Finding, Report, attempt
from arms.estimators.base import Estimator
from arms.latents import Bernoulli, Latent, OneHot

__all__ = ["COUNTS", "check_estimator"]

COUNTS = (1, 2, 3, 4, 8)


def check_estimator(
    factory: Callable[[int], Estimator], draws: int = 100_000, failure_rate: float = FAILURE_RATE
) -> Report:
    """Test an estimator, given as a class or any function of num_samples, at every budget that it accepts.

    Args:
        factory: Makes the estimator of a number of samples; a class will do.
        draws: Estimates of each table's gradient, for the bias.
        failure_rate: How often a right one may fail by chance.

    >>> from arms import LOORF
    >>> check_estimator(LOORF, draws=1000).passed
    True
    """
    accepted = [estimator for n in COUNTS if (estimator := _accept(factory, n)) is not None]
    if not accepted:
        raise ValueError(f"{factory!r} accepts no num_samples among {COUNTS}: nothing to check")
    first = accepted[-1]
    # An estimator with parameters may settle on a number of latents, so each check has one of its own.
    findings = []
    for kind in (Bernoulli, OneHot):
        if issubclass(kind, first.latents):
            checked = [factory(first.num_samples) for _ in range(4)]
            of_kind = "" if kind is Bernoulli else " of categories"
            looks = {
                f"shapes{of_kind}": partial(_shapes, checked[0], kind),
                f"repeatable{of_kind}": partial(_repeatable, checked[1], kind),
                f"extreme logits{of_kind}, float32": partial(_extremes, checked[2], kind, torch.float32),
                f"extreme logits{of_kind}, bfloat16": partial(_extremes, checked[3], kind, torch.bfloat16),
            }
            for name, look in looks.items():
                findings += attempt(name, partial(_named, name, look))
    rate = failure_rate / len(accepted)
    for seed, one in enumerate(accepted):
        findings += attempt(f"unbiased, n = {one.num_samples}", partial(_bias, one, draws, rate, seed))
    return Report(
        f"{type(first).__name__}, num_samples {', '.join(str(e.num_samples) for e in accepted)}", tuple(findings)
    )


def _named(name: str, look: Callable[[], Finding]) -> list[Finding]:
    return [replace(look(), name=name)]


def _of_kind(kind: type[Latent], logits: Tensor) -> Latent:
    """Return bits of these logits, or choices between two categories of which the first has logit 0."""
    return kind(logits if kind is Bernoulli else torch.stack([torch.zeros_like(logits), -logits.abs()], -1))


def _bias(estimator: Estimator, draws: int, rate: float, seed: int) -> list[Finding]:
    return [check_bias(estimator, draws, rate, seed)]


def _accept(factory: Callable[[int], Estimator], n: int) -> Estimator | None:
    try:
        return factory(n)
    except ValueError:
        return None


def _objective(kind: type[Latent]) -> Callable[[Tensor], Tensor]:
    def of_bits(b: Tensor) -> Tensor:
        return (b * torch.arange(1, b.shape[-1] + 1, dtype=b.dtype)).sum(-1).square()

    return of_bits if kind is Bernoulli else lambda z: of_bits(z[..., 0])


def _shapes(estimator: Estimator, kind: type[Latent]) -> Finding:
    for batch in ((), (5,), (2, 3)):
        latent = _of_kind(kind, torch.linspace(-2, 2, 4).expand(*batch, 4))
        logits = latent.logits
        grad, value, values = estimator(_objective(kind), latent, torch.Generator().manual_seed(0))
        attached = grad.requires_grad and not estimator.has_parameters
        if grad.shape != logits.shape or grad.dtype != logits.dtype or attached:
            figure = f"logits {list(logits.shape)} gave a gradient {list(grad.shape)}, {grad.dtype}, expected the same"
            figure += ", detached" if attached else ""
            return Finding("shapes", False, figure)
        if values.shape[1:] != batch or value.shape != batch:
            figure = f"value must have shape {list(batch)} and values [n, ...] of it, got {list(value.shape)} and "
            return Finding("shapes", False, figure + f"{list(values.shape)}")
    return Finding("shapes", True, "grad as the logits, values [n, *batch], for batch (), (5,), (2, 3)")


def _repeatable(estimator: Estimator, kind: type[Latent]) -> Finding:
    latent = _of_kind(kind, torch.linspace(-2, 2, 4).expand(50, 4).contiguous())
    logits = latent.logits
    before, state = logits.clone(), torch.get_rng_state()
    grads = [estimator(_objective(kind), latent, torch.Generator().manual_seed(7)).grad for _ in range(2)]
    same = torch.equal(grads[0], grads[1])
    untouched = torch.equal(before, logits) and torch.equal(state, torch.get_rng_state())
    figure = "same generator, same bits; logits and the global generator untouched"
    return Finding("repeatable", same and untouched, figure if same and untouched else f"NOT: {figure}")


def _extremes(estimator: Estimator, kind: type[Latent], dtype: torch.dtype) -> Finding:
    far = torch.tensor([20.0, 90.0, 200.0, torch.inf])
    logits = torch.cat([far, -far]).to(dtype).expand(100, 8)
    grad = estimator(_objective(kind), _of_kind(kind, logits), torch.Generator().manual_seed(0)).grad
    certain = grad[:, [2, 3, 6, 7]]  # |logit| >= 200: p is 0 or 1
    passed = bool(grad.isfinite().all()) and bool((certain == 0).all())
    figure = "finite at |logit| 20, 90, 200, inf; zero where p is 0 or 1"
    return Finding(
        f"extreme logits, {str(dtype).removeprefix('torch.')}", passed, figure if passed else f"NOT: {figure}"
    )
