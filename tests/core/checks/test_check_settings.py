"""Checks reject wrong settings instead of reporting an error of the estimator."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from marks import slow
from ranks import Ranks
from torch import Tensor

import arms
from arms.checks import bias_finding, exact_gradient, findings


@dataclass(frozen=True, eq=False)
class Tempered(Ranks):
    """Ranks with a field beside the logits."""

    temperature: float = 1.0

    def _cooled(self) -> Ranks:
        return Ranks(self.logits / self.temperature)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        return self._cooled().sample(n, generator)

    def log_prob(self, samples: Tensor) -> Tensor:
        return self._cooled().log_prob(samples)

    def score(self, samples: Tensor) -> Tensor:
        return self._cooled().score(samples) / self.temperature


def test_fields_of_a_latent_are_kept_everywhere() -> None:
    latent = Tempered(torch.tensor([0.5, -0.3, 0.1], dtype=torch.float64), temperature=0.4)
    weights = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)

    def objective(b: Tensor) -> Tensor:
        return (b * weights).sum(-1).sin()

    logits = latent.logits.clone().requires_grad_()
    states = latent.states()
    probs = Tempered(logits, temperature=0.4).log_prob(states).exp()
    (truth,) = torch.autograd.grad((probs * objective(states)).sum(), logits)
    assert torch.allclose(arms.Exact()(objective, latent).grad, truth, atol=1e-14)
    assert torch.allclose(exact_gradient(objective, latent), truth, atol=1e-14)
    assert findings(arms.LOORF, 2000, latents=[latent]).passed


@pytest.mark.parametrize("seed", [283, *(pytest.param(one, marks=slow) for one in (417, 131))])
def test_values_of_rare_states_raise_no_alarm_with_few_draws(seed: int) -> None:
    found = findings(arms.VIMCO, 1000, num_samples=[4], seed=seed)
    assert found.passed, str(found)


def test_latents_in_float32_are_enumerated_in_float64() -> None:
    latents = (arms.Bits(torch.zeros(2)) for _ in range(1))
    found = findings(arms.LOORF, 1000, latents=latents)  # type: ignore[arg-type]
    assert found.passed, str(found)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_samples": 5}, "num_samples must be a list of one or more integers, got 5"),
        ({"num_samples": []}, "num_samples must be a list of one or more integers"),
        ({"num_samples": [3, "4"]}, "num_samples must be an integer >= 1, got '4'"),
        ({"num_samples": torch.tensor(3)}, "num_samples must be a list"),
        ({"seed": 1.5}, "seed must be an integer"),
        ({"seed": 2**62}, "seed must be at most 1,125,899,906,842,624, got 4.6e"),
        ({"draws": 0}, "draws must be an integer >= 2, got 0"),
        ({"failure_rate": 0}, "failure_rate must be a float between 0 and 1, got 0"),
        ({"failure_rate": 2.0}, "failure_rate must be a float between 0 and 1"),
        (
            {"latents": arms.Bits(torch.zeros(2))},
            r"list of latents, as in \[arms.Bits\(logits\)\], got Bits\(logits=tensor\(\[0., 0.\]\),",
        ),
        (
            {"latents": []},
            r"latents must be a list of latents, as in \[arms.Bits\(logits\)\], got \[\]",
        ),
        (
            {"latents": [torch.zeros(2)]},
            r"list of latents, as in \[arms.Bits\(logits\)\], got \[tensor\(\[0., 0.\]\)\]",
        ),
        (
            {"latents": [arms.Bits(torch.zeros(2, 2))]},
            r"axes, and from 1 to 65,536 joint states, got Bits with logits of shape \[2, 2\]",
        ),
        (
            {"latents": [arms.Bits(torch.zeros(0))]},
            r"axes, and from 1 to 65,536 joint states, got Bits with logits of shape \[0\]",
        ),
        (
            {"latents": [arms.Bits(torch.zeros(20))]},
            r"axes, and from 1 to 65,536 joint states, got Bits with logits of shape \[20\]",
        ),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        findings(arms.LOORF, **{"draws": 1000, **settings})
    if "num_samples" not in settings:
        with pytest.raises(ValueError, match=message):
            bias_finding(arms.LOORF(2), **{"draws": 1000, **settings})


def test_factories_that_make_no_estimators() -> None:
    with pytest.raises(ValueError, match="must return an estimator, got int"):
        findings(int, 1000)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError,
        match="or a function that makes estimators, got LeaveOneOut: pass a coupling, or",
    ):
        findings(arms.LOORF(2), 1000)  # type: ignore[arg-type]
