"""The user's door: a tensor whose value is the objective's mean, or the bound, and whose gradient is the estimate."""

import torch
from torch import Generator, Tensor

from arms.arguments import Logits, as_logits
from arms.couplings import Coupling
from arms.couplings import coupling as as_coupling
from arms.estimators import ARMS, Draw, Estimator, MultiSample, Objective
from arms.estimators import estimator as as_estimator
from arms.estimators.base import Values, as_values, draw_from, evaluate, gradient
from arms.estimators.multi_sample import log_mean_exp

LARGEST = 1e4
"""A logit whose p is 0 or 1 in every floating-point format."""


def expectation(
    objective: Objective,
    logits: Logits,
    estimator: str | Estimator = "arms-s",
    num_samples: int | None = None,
    generator: Generator | None = None,
    *,
    chunk: int | None = None,
    validate: bool = True,
) -> Tensor:
    """Return E[objective(b)] for b ~ Bernoulli(sigmoid(logits)), as seen by n samples, ready for `.backward()`.

    `objective` maps samples `[n, *batch, d]` to values `[n, *batch]`; it may be a black box. The result `[*batch]` is
    the mean of those values. Its gradient is the estimator's for the logits, plus autograd's own for whatever the
    objective itself depends on.

    `estimator` is a name of `arms.ESTIMATORS` or an object; `num_samples` (8 unless said) counts evaluations of the
    objective. `chunk` evaluates that many samples at a time and recomputes them in backward, when memory is short.
    `validate=False` skips the look at values (NaN, infinity), which on a GPU waits for the device.

    >>> logits = torch.zeros(5, 3, requires_grad=True)
    >>> value = expectation(lambda b: (b - 0.4).square().sum(-1), logits, num_samples=4)
    >>> value.sum().backward()
    >>> value.shape, logits.grad.shape
    (torch.Size([5]), torch.Size([5, 3]))
    """
    chosen = as_estimator(estimator, num_samples)
    if chosen.objective != "expectation":
        raise ValueError(f"{chosen} estimates the gradient of the {chosen.objective}: use arms.multi_sample_bound")
    if chosen.relaxes:
        phi = as_logits(logits)
        grad, values = chosen(objective, phi, generator, chunk=chunk, validate=validate)
        return _attach(values.mean(0), phi, grad.detach())
    drawn = draw_from(chosen, logits, generator, validate=validate)
    return _surrogate(drawn, evaluate(objective, drawn, chunk=chunk, validate=validate))


def multi_sample_bound(
    log_weight: Objective,
    logits: Logits,
    estimator: str | Estimator = "arms-ms-d",
    num_samples: int | None = None,
    generator: Generator | None = None,
    *,
    chunk: int | None = None,
    validate: bool = True,
) -> Tensor:
    """Return the K-sample bound log(1/K sum_k w_k) of Burda et al. `[*batch]`, ready for `.backward()`.

    `log_weight` maps samples `[n, *batch, d]` to log w = log p(x, b) - log q(b) `[n, *batch]`, where q(b) is computed
    from the same logits, attached. The gradient is unbiased for that of E[log(1/K sum_k w_k)] over independent
    samples: for the logits (the estimator's score part, and the direct term by autograd through log q) and for
    whatever else `log_weight` depends on.

    `num_samples` (8 unless said) counts evaluations of `log_weight`; the K that goes with it is the estimator's
    `bound_samples`: n for vimco and reinforce-ms, n/2 for the others unless said. `chunk` and `validate` are those of
    `expectation`.

    >>> logits = torch.zeros(5, 3, requires_grad=True)
    >>> def log_weight(b):
    ...     return b.prod(-1) - torch.distributions.Bernoulli(logits=logits).log_prob(b).sum(-1)
    >>> bound = multi_sample_bound(log_weight, logits, "arms-ms-d", num_samples=4)
    >>> bound.sum().backward()
    >>> bound.shape, logits.grad.shape
    (torch.Size([5]), torch.Size([5, 3]))
    """
    chosen = as_estimator(estimator, num_samples)
    if not isinstance(chosen, MultiSample):
        raise ValueError(f"{chosen} estimates the gradient of the {chosen.objective}: use arms.expectation")
    drawn = draw_from(chosen, logits, generator, validate=validate)
    return _surrogate(drawn, evaluate(log_weight, drawn, chunk=chunk, validate=validate))


def coupled_bound(
    log_weight: Objective,
    logits: Logits,
    coupling: str | Coupling = "systematic",
    num_samples: int = 8,
    generator: Generator | None = None,
) -> Tensor:
    """Return log(1/n sum_i w_i) `[*batch]` over n coupled samples: a lower bound of log p(x) too, for evaluation only.

    Each sample has the law q, so the mean of the weights is unbiased for p(x) and Jensen's inequality holds as it does
    for independent ones. Antithetic samples mostly tighten the bound, but no theorem says so: there are models where
    they loosen it. The result is detached.

    >>> coupled_bound(lambda b: b.sum(-1), torch.zeros(5, 3), "systematic", num_samples=4).shape
    torch.Size([5])
    """
    chosen = as_coupling(coupling) if isinstance(coupling, str) else coupling
    with torch.no_grad():
        drawn = draw_from(ARMS(num_samples, chosen), logits, generator)
        return log_mean_exp(evaluate(log_weight, drawn))


def draw(
    logits: Logits,
    estimator: str | Estimator = "arms-s",
    num_samples: int | None = None,
    generator: Generator | None = None,
    *,
    validate: bool = True,
) -> Draw:
    """Draw samples now and bring their objective values to `attach` later: for simulators and environments.

    >>> drawn = draw(torch.zeros(3), "disarm", num_samples=2)
    >>> drawn.samples.sum(0)  # at p = 1/2 the two are each other's complement
    tensor([1., 1., 1.])
    """
    return draw_from(as_estimator(estimator, num_samples), logits, generator, validate=validate)


def attach(draw: Draw, values: Values, *, validate: bool = True) -> Tensor:
    """Return the value `[*batch]` of a draw, given its objective values `[n, *batch]`, ready for `.backward()`.

    Of a multi-sample estimator's draw it is the bound, given log-weights.

    >>> logits = torch.zeros(3, requires_grad=True)
    >>> drawn = draw(logits, "arms-s", num_samples=4)
    >>> attach(drawn, drawn.samples.numpy().sum(-1)).backward()
    >>> logits.grad.shape
    torch.Size([3])
    """
    return _surrogate(draw, as_values(draw, values, validate=validate))


def _surrogate(draw: Draw, values: Tensor) -> Tensor:
    value = draw.estimator.value(draw, values)
    if not (torch.is_grad_enabled() and draw.logits.requires_grad):
        return value
    return _attach(value, draw.logits, gradient(draw, values))


def _attach(value: Tensor, logits: Tensor, grad: Tensor) -> Tensor:
    # Zero in value, the estimate in slope. The clamp meets only logits that cannot move: inf - inf would be NaN.
    # Zero before the product and the sum, which could overflow in half precision.
    still = logits.clamp(-LARGEST, LARGEST)
    return value + ((still - still.detach()) * grad).sum(-1)
