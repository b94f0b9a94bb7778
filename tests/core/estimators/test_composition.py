"""Every estimator on every kind of latent: exact, tested by draws, or rejected by a one-sentence error."""

from collections.abc import Callable

import pytest
import torch
from instances import JOINT_LATENTS
from sabotage import NoCorrection, StraightThrough
from seeds import seeded
from torch import Tensor

import arms
from arms import Bits, Estimator, Joint, Latent, OneHot, Subset
from arms.checks import bias_finding, exact_value, expected_estimate, smooth_objective
from arms.checks.oracle import exact_target_gradient
from arms.designs import Coupled, Systematic
from arms.estimate import takes
from arms.estimators import ALL_ESTIMATORS
from arms.latents import Enumerable

FAILURE_RATE = 1e-6 / 50
LATENTS: list[Latent] = [
    *JOINT_LATENTS,
    Joint(
        mask=torch.tensor([0.4, -0.9], dtype=torch.float64),
        gate=torch.tensor([1.3], dtype=torch.float64),
    ),
]
MISSING = (
    r"needs a latent with the capability \w+, and .*\w+ does not have it: use an estimator that"
)
UNCOUPLED = r"coupling=Gaussian\(\)\)+ cannot draw Joint latents: use an estimator that"


def smallest(name: str, least: int = 2) -> Estimator:
    """Return the estimator with the smallest accepted number of samples that is at least `least`."""
    for n in range(least, 5):
        try:
            return ALL_ESTIMATORS[name](n)
        except ValueError:
            continue
    raise AssertionError(f"{name} accepts no few samples")


def describe(latent: object) -> str:
    parts = latent.parts.values() if isinstance(latent, Joint) else []
    inside = f"({', '.join(type(part).__name__ for part in parts)})" if parts else ""
    return f"{type(latent).__name__}{inside}"


def bias(estimator: Estimator, latent: Latent) -> tuple[float, float] | None:
    """Return the largest errors of the exact mean gradient and value; None for continuous noise."""
    objective = smooth_objective(latent, seeded(1))
    found = expected_estimate(estimator, objective, latent)
    if found is None:
        return None
    truth = exact_target_gradient(objective, latent, estimator.target)
    value = exact_value(objective, latent, estimator.target)
    return (found[0] - truth).abs().max().item(), (found[1] - value).abs().item()


@pytest.mark.parametrize("latent", LATENTS, ids=describe)
@pytest.mark.parametrize("least", [2, 4])
@pytest.mark.parametrize("name", ALL_ESTIMATORS)
def test_every_estimator_is_right_or_refuses(name: str, least: int, latent: Latent) -> None:
    estimator = smallest(name, least)
    if not takes(estimator, latent):
        check_refusal(estimator, latent)
        return
    assert isinstance(latent, Enumerable)
    if name == "unordered-set" and latent.count_states() < least:
        with pytest.raises(ValueError, match=r"at most 3, the number of joint states, .*, got 4"):
            estimator(smooth_objective(latent), latent)
        return
    found = bias(estimator, latent)
    if found is None:
        finding = bias_finding(estimator, 20_000, FAILURE_RATE, latents=[latent])
        assert finding.verdict == ("pass" if estimator.unbiased else "biased"), finding.figure
    elif estimator.unbiased:
        assert max(found) < 1e-12
    else:
        assert found[0] > 1e-3


def check_refusal(estimator: Estimator, latent: Latent) -> None:
    """The error comes before any draw or evaluation."""

    def never(*_: Tensor, **__: Tensor) -> Tensor:
        raise AssertionError("the objective must not be called")

    generator = seeded()
    with pytest.raises(ValueError, match=f"{MISSING}|{UNCOUPLED}") as refused:
        estimator(never, latent, generator)
    assert "\n" not in str(refused.value)
    assert torch.equal(generator.get_state(), seeded().get_state())


def test_few_are_refused_and_for_these_reasons() -> None:
    refused = {
        describe(latent): {name for name in ALL_ESTIMATORS if not takes(smallest(name), latent)}
        for latent in LATENTS
    }
    for_bits = {"arm", "rebar", "relax", "rodeo", "gapped-st"}
    gaussian = {"arms-gaussian", "arms-ms-gaussian"}
    coupled = {name for name in ALL_ESTIMATORS if name.startswith(("arms", "disarm"))}
    relaxed = {"gumbel-softmax", "st-gumbel", "reinmax"}
    neighbors = {"flips", "flips-ms"}
    assert refused == {
        "Subset": for_bits | coupled | relaxed | neighbors,
        "Joint(Bits, Subset)": for_bits | coupled | relaxed | neighbors,
        "Joint(Bits, OneHot)": for_bits | gaussian,
        "Joint(Bits, Bits)": set(),
    }


@pytest.mark.parametrize(
    ("sabotaged", "latent"),
    [
        (NoCorrection(Coupled(2, Systematic())), LATENTS[2]),
        (StraightThrough(2), LATENTS[0]),
        (StraightThrough(2), LATENTS[3]),
    ],
    ids=str,
)
def test_sabotage_is_caught(sabotaged: Estimator, latent: Latent) -> None:
    found = bias(sabotaged, latent)
    assert found is not None
    assert found[0] > 1e-3
    assert bias_finding(sabotaged, 20_000, FAILURE_RATE, latents=[latent]).verdict == "FAIL"


# --- A joint latent is its parts ------------------------------------------------------------------

SINGLE: list[Latent] = [
    Bits(torch.tensor([[0.4, -1.1, 2.0], [0.0, 0.3, -0.6]], dtype=torch.float64)),
    OneHot(torch.linspace(-2, 2, 12, dtype=torch.float64).view(2, 2, 3)),
    Subset(torch.linspace(-2, 2, 8, dtype=torch.float64).view(2, 4), k=2),
]


@pytest.mark.parametrize("latent", SINGLE, ids=describe)
@pytest.mark.parametrize("name", ALL_ESTIMATORS)
def test_joint_of_one_is_itself(name: str, latent: Latent) -> None:
    """Both agree draw by draw, and are rejected in the same cases."""
    if not takes(smallest(name), latent):
        assert not takes(smallest(name), Joint(only=latent))
        return
    objective = smooth_objective(latent, seeded(1))
    alone = smallest(name)(objective, latent, seeded())

    def by_name(only: Tensor) -> Tensor:
        return objective(only)

    joint = smallest(name)(by_name, Joint(only=latent), seeded())
    assert list(joint.grad) == ["only"]
    torch.testing.assert_close(joint.grad["only"], alone.grad, rtol=0, atol=1e-13)
    torch.testing.assert_close(joint.value, alone.value, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["loorf", "arms", "midpoint", "exact", "vimco", "disarm-ms"])
def test_gradients_reach_every_part(name: str) -> None:
    """Through the public functions, to what produced the logits of each part."""
    mask = torch.tensor([0.4, -0.9], dtype=torch.float64, requires_grad=True)
    action = torch.tensor([[0.3, -0.5, 0.1]], dtype=torch.float64, requires_grad=True)
    latent = Joint(mask=2 * mask, action=OneHot(3 * action))
    objective = smooth_objective(latent.detach(), seeded(1))
    estimator = arms.as_estimator(name, 4)
    bound = estimator.target.subtracts_log_q
    function: Callable[..., Tensor] = arms.importance_bound if bound else arms.expectation
    function(objective, latent, estimator, generator=seeded()).backward()
    grad = estimator(objective, latent.detach(), seeded()).grad
    assert mask.grad is not None
    assert action.grad is not None
    torch.testing.assert_close(mask.grad, 2 * grad["mask"])
    torch.testing.assert_close(action.grad, 3 * grad["action"])
