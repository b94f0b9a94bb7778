"""Exact expectations of estimators, including stacked ones, from all outcomes of their designs."""

import torch
from torch import Tensor

from arms import Estimator, ExtraSample, Latent, Stacked
from arms.checks import expected_estimate
from arms.estimators import TensorObjective


def exact_mean(estimator: Estimator, objective: TensorObjective, latent: Latent) -> Tensor:
    """Return the exact expectation of the gradient `[*event]`.

    For stacked estimators, which serve different parts of a batch, return the mean over all of them.
    """
    inner = estimator.inner if isinstance(estimator, ExtraSample) else estimator
    if isinstance(inner, Stacked):
        wrap = ExtraSample if isinstance(estimator, ExtraSample) else lambda one: one
        means = [exact_mean(wrap(one), objective, latent) for one in inner.inners]
        return torch.stack(means).mean(0)
    found = expected_estimate(estimator, objective, latent)
    assert found is not None, f"{estimator} has continuous noise"
    return found[0]
