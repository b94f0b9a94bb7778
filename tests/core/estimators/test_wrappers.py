"""Wrappers: the gradient comes from the inner estimator, and the value from the wrapper."""

from dataclasses import dataclass

import pytest
import torch
from seeds import seeded
from torch import Tensor

import arms
from arms import (
    ARM,
    ARMS,
    LOORF,
    REBAR,
    DisARM,
    Estimator,
    Exact,
    ExtraSample,
    OneHot,
    Reinforce,
    Stacked,
)
from arms.designs import Gaussian, Independent
from arms.estimate import draw_points, takes
from arms.estimators.registry import label
from arms.targets import Target


def quadratic(b: Tensor) -> Tensor:
    return (b * torch.linspace(-1, 2, b.shape[-1], dtype=b.dtype)).sum(-1).square()


LOGITS = torch.linspace(-2, 2, 30).view(5, 2, 3)


@pytest.mark.parametrize("inner", [LOORF(4), ARM(4), ARMS(3), REBAR(4), Exact()], ids=label)
def test_extra_sample_changes_the_value_and_nothing_else(inner: Estimator) -> None:
    """The inner estimator draws first, so that the same generator gives it the same noise."""
    plain, extra = (
        inner(quadratic, LOGITS, seeded()),
        ExtraSample(inner)(quadratic, LOGITS, seeded()),
    )
    torch.testing.assert_close(extra.grad, plain.grad)
    torch.testing.assert_close(extra.values[1:], plain.values)
    first = draw_points(ExtraSample(inner), arms.Bits(LOGITS), seeded()).points[0]
    assert torch.equal(extra.value, quadratic(first))
    assert torch.equal(extra.values[0], quadratic(first))
    assert not torch.equal(extra.value, plain.value)


def test_only_the_extra_sample_reaches_the_objectives_parameters() -> None:
    weights = torch.ones(3, requires_grad=True)
    wrapped = ExtraSample(LOORF(4))
    value = arms.expectation(
        lambda b: (b @ weights).square(), LOGITS.clone().requires_grad_(), wrapped, None, seeded()
    )
    value.sum().backward()
    first = draw_points(wrapped, arms.Bits(LOGITS), seeded()).points[0]
    torch.testing.assert_close(weights.grad, 2 * (first.sum(-1, keepdim=True) * first).sum((0, 1)))
    assert wrapped.target.num_attached(wrapped.design.num_samples) == 1


@pytest.mark.parametrize(
    "inners",
    [
        [LOORF(4), ARM(4), ARMS(4)],
        [arms.VIMCO(4), arms.VIMCO(4, "none")],
        [arms.OnBound(LOORF(2), 2), arms.DisARMOnBound(4), arms.OnBound(ARMS(2), 2)],
        [ExtraSample(LOORF(2)), ExtraSample(DisARM(2))],
    ],
    ids=str,
)
def test_stacked_estimators_are_those_side_by_side(inners: list[Estimator]) -> None:
    widths = [1] * (len(inners) - 1) + [6 - len(inners)]
    generator = seeded()
    whole = Stacked(inners, widths)(quadratic, LOGITS, seeded())
    for inner, part, start in zip(
        inners,
        LOGITS.split(widths),
        torch.tensor([0, *widths]).cumsum(0)[:-1].tolist(),
        strict=True,
    ):
        own, rows = inner(quadratic, part, generator), slice(start, start + len(part))
        assert torch.equal(whole.grad[rows], own.grad)
        assert torch.equal(whole.value[rows], own.value)
        assert torch.equal(whole.values[:, rows], own.values)


@pytest.mark.parametrize("latent", [arms.Bits(LOGITS[:2]), OneHot(LOGITS[:2])], ids=repr)
def test_wrappers_take_what_all_they_hold_take(latent: arms.Latent) -> None:
    for inner in (LOORF(2), ARM(2), ARMS(2), ARMS(2, Gaussian())):
        for wrapped in (ExtraSample(inner), arms.OnBound(inner, 2)):
            assert takes(wrapped, latent) == takes(inner, latent)
        stacked = Stacked([Reinforce(2), inner], [1, 1])
        assert takes(stacked, latent) == takes(inner, latent)
        if isinstance(latent, OneHot) and not takes(inner, latent):
            for refused in (ExtraSample(inner), stacked):
                with pytest.raises(ValueError, match="accepts any latent, such as loorf"):
                    refused(lambda b: b.sum((-1, -2)), latent)


@pytest.mark.parametrize(
    ("inners", "words"),
    [
        (
            [LOORF(4), LOORF(3)],
            "must make the same evaluations of the objective, got .* .4 evaluations.* .3 evaluations",
        ),
        ([LOORF(4), arms.VIMCO(4)], "must make the same.*expectation.*4-sample bound"),
        ([LOORF(4), Exact()], "Exact enumerates all states"),
        ([REBAR(4), REBAR(4)], "RELAX has learned parameters"),
        ([], "Stacked needs at least one estimator and one width for each"),
    ],
)
def test_what_cannot_be_stacked(inners: list[Estimator], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Stacked(inners, [1] * 2)


def test_one_sample_cannot_stand_for_a_bound() -> None:
    with pytest.raises(ValueError, match="ExtraSample needs an inner estimator of the expectation"):
        ExtraSample(arms.VIMCO(4))


@dataclass(frozen=True)
class LargerOfTwo(Target):
    """The larger value at two samples, which is not an expectation of single values."""

    @property
    def size(self) -> int:
        return 2

    def value(self, values: Tensor, weights: Tensor | None = None) -> Tensor:
        return values[:2].amax(0)

    def num_attached(self, n: int) -> int:
        return 2


class OfAnotherTarget(arms.LeaveOneOut):
    target = LargerOfTwo()


def test_what_relies_on_the_expectation_refuses_other_targets() -> None:
    estimator = OfAnotherTarget(Independent(2))
    with pytest.raises(ValueError, match="ExtraSample needs an inner estimator of the expectation"):
        ExtraSample(estimator)
    with pytest.raises(ValueError, match="needs an unbiased inner estimator of the expectation"):
        arms.WithTaylor(estimator)
    with pytest.raises(ValueError, match="OnBound needs an inner estimator of the expectation"):
        arms.OnBound(estimator, 2)
    with pytest.raises(
        ValueError, match=r"arms\.variance compares estimators of the gradient of an expectation"
    ):
        arms.variance(lambda b: b.sum(-1), torch.zeros(3), ["loorf", estimator], repeats=3)
    first = arms.draw(torch.zeros(3), estimator)
    with pytest.raises(ValueError, match="cannot be used for several layers"):
        arms.draw(torch.zeros(2, 3), given=first)
