"""The public functions: a tensor whose value is the objective's mean or a bound, and whose gradient is the estimate."""

from torch import Generator, Tensor

from arms.estimators import Estimator, Objective, as_estimator
from arms.estimators.pipeline import Options, draw_points, evaluate, gradient, through_nan
from arms.latents import Latent, Logits, as_latent
from arms.surrogate import attached, is_wanted

__all__ = ["expectation", "multi_sample_bound"]


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
    """Return E[objective(b)] for a discrete latent b, as seen by n samples, ready for `.backward()`.

    The result is the mean of the objective's values. Its gradient is the estimator's for the logits, plus autograd's
    own for whatever the objective itself depends on.

    Args:
        objective: Maps samples `[n, *batch, d]` to values `[n, *batch]`; it may be a black box.
        logits: `[*batch, d]` for b ~ Bernoulli(sigmoid(logits)); a torch `Bernoulli`; a `Categorical` with logits
            `[*batch, d, K]`, whose indices `[n, *batch, d]` the objective gets, or a `OneHotCategorical`, with samples
            `[n, *batch, d, K]`; any of these in `Independent(..., 1)`; or a latent such as `arms.OneHot(logits)`.
        estimator: A name in `arms.ESTIMATORS`, or an estimator object.
        num_samples: Evaluations of the objective, 8 unless given.
        generator: Source of all randomness; PyTorch's global one unless given.
        chunk: Evaluate this many samples at a time and again in backward, when memory is short.
        validate: Look for NaN and infinity, which on a GPU waits for the device.

    Returns:
        `[*batch]`, differentiable once with respect to the logits.

    >>> import torch
    >>> logits = torch.zeros(5, 3, requires_grad=True)
    >>> value = expectation(lambda b: (b - 0.4).square().sum(-1), logits, num_samples=4)
    >>> value.sum().backward()
    >>> value.shape, logits.grad.shape
    (torch.Size([5]), torch.Size([5, 3]))
    """
    chosen = as_estimator(estimator, num_samples)
    if chosen.target.direct:
        raise ValueError(f"{chosen} estimates the gradient of the {chosen.target}: use arms.multi_sample_bound")
    return _surrogate(chosen, objective, as_latent(logits, validate=validate), generator, chunk, validate)


def multi_sample_bound(
    log_weight: Objective,
    logits: Logits,
    estimator: str | Estimator = "disarm-ms",
    num_samples: int | None = None,
    generator: Generator | None = None,
    *,
    chunk: int | None = None,
    validate: bool = True,
) -> Tensor:
    """Return the K-sample bound log(1/K sum_k w_k) of Burda et al., ready for `.backward()`.

    The gradient is unbiased for that of E[log(1/K sum_k w_k)] over independent samples: for the logits, a part of it
    by autograd through log q, and for whatever `log_weight` depends on. Which estimator: docs/bound.md.

    Args:
        log_weight: Maps samples `[n, *batch, d]` to log w = log p(x, b) - log q(b) `[n, *batch]`, where q(b) is
            computed from the very tensor of logits that is given here, not detached. Whether its gradient arrives is
            looked at, and refused where it does not.
        logits: As for `expectation`.
        estimator: A name in `arms.ESTIMATORS` whose target is a bound (`arms estimators` lists them), or an object.
        num_samples: Evaluations of `log_weight`, 8 unless given. The K that goes with it is the estimator's
            `bound_samples`: n for vimco and reinforce-ms, a third for midpoint-ms-tried, n/2 for the others unless
            given.
        generator: Source of all randomness; PyTorch's global one unless given.
        chunk: Evaluate this many samples at a time and again in backward, when memory is short.
        validate: Look for NaN and infinity, and at the gradient of log q, which on a GPU waits for the device.

    Returns:
        The bound `[*batch]`.

    >>> import torch
    >>> logits = torch.zeros(5, 3, requires_grad=True)
    >>> def log_weight(b):  # log p(x, b) = b.sum(-1), say
    ...     return b.sum(-1) - torch.distributions.Bernoulli(logits=logits).log_prob(b).sum(-1)
    >>> multi_sample_bound(log_weight, logits, num_samples=10).sum().backward()
    >>> logits.grad.shape
    torch.Size([5, 3])
    """
    chosen = as_estimator(estimator, num_samples)
    if not chosen.target.direct:
        raise ValueError(f"{chosen} estimates the gradient of the {chosen.target}: use arms.expectation")
    return _surrogate(chosen, log_weight, as_latent(logits, validate=validate), generator, chunk, validate)


def _surrogate(
    estimator: Estimator,
    objective: Objective,
    latent: Latent,
    generator: Generator | None,
    chunk: int | None,
    validate: bool,
) -> Tensor:
    wanted = is_wanted(latent)
    options = Options(chunk, "all" if validate else "cheap", gradient=wanted)
    drawn = draw_points(estimator, latent, generator)
    found = evaluate(objective, drawn, options)
    value = through_nan(estimator.value(drawn, found.values), latent, options)
    if not wanted:
        return value
    return attached(drawn, latent, value, found.values, gradient(drawn, found, options).detach(), options)
