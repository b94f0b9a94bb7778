"""The exact gradient by decoding each state once, against the plain enumeration."""

from functools import partial
from typing import Any

import pytest
import torch

from arms import Exact
from arms.bench.config import TrainConfig
from arms.bench.data import Dataset
from arms.bench.training.enumeration import estimate_states, states_of
from arms.bench.training.trainer import Trainer
from arms.estimate import estimate


@pytest.mark.parametrize("sizes", [{"categories": 3, "latents": 3}, {"latents": 4}])
@pytest.mark.parametrize("likelihood", ["bernoulli", "gray", "gaussian", "scaled-gaussian"])
@pytest.mark.parametrize("kl", ["sampled", "analytic"])
def test_states_decoded_once_are_the_plain_enumeration(
    sizes: dict[str, int], likelihood: str, kl: str, digits: Dataset
) -> None:
    fields: dict[str, Any] = {**sizes, "likelihood": likelihood, "kl": kl}
    config = TrainConfig(network="nonlinear", estimator="exact", replicas=2, batch_size=5, **fields)
    trainer = Trainer(config, digits)
    model = trainer.model
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        model.prior.copy_(torch.randn(model.prior.shape, generator=generator))
    x = torch.rand(2, 5, 64, generator=generator)
    x = x.round() if likelihood == "bernoulli" else x
    logits = (3 * torch.randn(2, 5, *model.event_shape, generator=generator)).detach()
    analytic = kl == "analytic"
    plain = estimate(
        Exact(),
        lambda b: model.log_weights(b, x, logits, analytic_kl=analytic),
        model.latent(logits),
    )
    found = estimate_states(model, states_of(model), x, logits, analytic_kl=analytic)
    close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)
    close(found.grad, plain.grad)
    close(found.value, plain.value)
    close(found.values, plain.values)
    learned = [*trainer.other_optimizer.parameters, *([] if analytic else [model.prior])]
    of_found = torch.autograd.grad(found.value.sum(), learned)
    for one, other in zip(of_found, torch.autograd.grad(plain.value.sum(), learned), strict=True):
        close(one, other)


@pytest.mark.parametrize("sizes", [{"categories": 3, "latents": 3}, {"latents": 4}])
@pytest.mark.parametrize("estimator", ["exact", "loorf"])
def test_a_divergence_in_closed_form_is_the_same_objective(
    sizes: dict[str, int], estimator: str, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both forms give the same mean gradient of encoder, decoder and prior."""
    repeats = 1 if estimator == "exact" else 4000  # side by side in one batch
    fields: dict[str, Any] = {**sizes, "estimator": estimator, "batch_size": 5 * repeats}
    means = []
    for kl in ("sampled", "analytic"):
        trainer = Trainer(TrainConfig(network="nonlinear", kl=kl, **fields), digits)
        with torch.no_grad():
            noise = torch.Generator().manual_seed(0)
            trainer.model.prior.copy_(torch.randn(trainer.model.prior.shape, generator=noise))
        images = torch.rand(1, 5, 64, generator=torch.Generator().manual_seed(1)).round()
        batch = images.repeat(1, repeats, 1)
        monkeypatch.setattr(trainer, "_batch", lambda batch=batch: batch)
        means.append(torch.cat([grad.flatten() for grad in trainer.gradients()]))
    sampled, analytic = means
    error = (sampled - analytic).norm() / sampled.norm()
    assert error < (1e-4 if estimator == "exact" else 0.1)
    assert sampled.norm() > 0.1
