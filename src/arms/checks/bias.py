"""The bias test: an estimator's mean over many draws against the enumerated gradient of random tables."""

import math

import torch
from torch import Generator, Tensor

from arms.checks.oracle import exact_bound, exact_gradient, random_table, table_objective
from arms.checks.verdicts import FAILURE_RATE, Finding, judge_score
from arms.estimators import MultiSample
from arms.estimators.base import Draw, Estimator, TensorObjective, draw_from, evaluate, gradient

LATENTS = 3
# Both signs, near and far from one half: a wrong correlation shows at one of them. Rarer bits make z-scores unreliable.
LOGITS = ((0.0, 0.7, -1.3), (2.0, -0.4, 1.1), (-2.2, 1.6, 0.3))


def bias_scores(
    estimator: Estimator, objective: TensorObjective, logits: Tensor, draws: int, generator: Generator
) -> Tensor:
    """Return the z-score `[d]` of the mean of `draws` estimates against enumeration, for logits `[d]`.

    For an estimator of the multi-sample bound the log-weight is objective(b) - log q(b): the direct term counts.
    """
    if isinstance(estimator, MultiSample):
        grad = bound_gradients(estimator, objective, logits.expand(draws, -1), generator).double()
        exact = exact_bound_gradient(objective, logits, estimator.bound_samples)
    else:
        with torch.no_grad():
            grad = estimator(objective, logits.expand(draws, -1), generator).grad.double()
        exact = exact_gradient(objective, logits)
    spread = grad.std(0) / math.sqrt(draws)
    # Where an estimate never varies, only rounding may separate it from the truth.
    return (grad.mean(0) - exact) / spread.clamp(min=1e-12)


def log_weight_of(objective: TensorObjective, logits: Tensor) -> TensorObjective:
    """Return the log-weight objective(b) - log q(b), attached to the logits."""

    def log_weight(b: Tensor) -> Tensor:
        return objective(b) - torch.nn.functional.logsigmoid(torch.where(b > 0, logits, -logits)).sum(-1)

    return log_weight


def bound_gradients(
    estimator: MultiSample, objective: TensorObjective, logits: Tensor, generator: Generator | None = None
) -> Tensor:
    """Return one whole estimate, score part and direct term, of the bound's gradient for every row of `[*batch, d]`."""
    with torch.enable_grad():
        phi = logits.detach().clone().requires_grad_()
        draw = draw_from(estimator, phi, generator)
        return whole_gradient(draw, evaluate(log_weight_of(objective, phi), draw))


def whole_gradient(draw: Draw, values: Tensor) -> Tensor:
    """Return the estimate plus autograd's gradient of the value, for a draw of logits that require it."""
    (direct,) = torch.autograd.grad(draw.estimator.value(draw, values).sum(), draw.logits)
    return gradient(draw, values) + direct


def exact_bound_gradient(objective: TensorObjective, logits: Tensor, bound_samples: int) -> Tensor:
    """Return the gradient of the bound of log-weights objective(b) - log q(b), for logits `[d]`, by enumeration."""
    with torch.enable_grad():
        phi = logits.detach().clone().requires_grad_()
        (grad,) = torch.autograd.grad(exact_bound(log_weight_of(objective, phi), phi, bound_samples), phi)
    return grad


def check_bias(
    estimator: Estimator, draws: int = 100_000, failure_rate: float = FAILURE_RATE, seed: int = 0
) -> Finding:
    """Test in float64 whether an estimator is unbiased on random tables over {0,1}^3.

    A correct estimator fails with probability `failure_rate`; the smallest bias that is surely seen shrinks as
    1/sqrt(draws).

    >>> from arms import LOORF
    >>> check_bias(LOORF(4), draws=1000).passed
    True
    """
    generator = torch.Generator().manual_seed(seed)
    scores = [
        bias_scores(
            estimator,
            table_objective(random_table(LATENTS, generator)),
            torch.tensor(row, dtype=torch.float64),
            draws,
            generator,
        )
        for row in LOGITS
    ]
    largest = torch.stack(scores).abs().max().item()
    return judge_score(f"unbiased, n = {estimator.num_samples}", largest, LATENTS * len(LOGITS), failure_rate)
