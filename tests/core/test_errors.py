"""Bad input raises a clear ValueError, before anything changes."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor
from torch.distributions import Bernoulli, Normal
from torch.distributions import Independent as IndependentDistribution

import arms
from arms.arguments import as_positive, described, unknown_name


def total(b: Tensor) -> Tensor:
    return b.sum(-1)


def nothing(b: Tensor) -> Any:
    """An objective without a return statement."""


class WrongShape(arms.designs.Systematic):
    def sample_bits(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        return super().sample_bits(logits, n + 1, generator)


class WrongDebias(arms.designs.Systematic):
    def debias(self, logits: Tensor, n: int) -> Tensor:
        return torch.ones(n)


def call(
    logits: object = None,
    estimator: object = "arms",
    n: object = 4,
    objective: object = total,
    generator: object = None,
) -> Tensor:
    phi = torch.zeros(3, 2, requires_grad=True) if logits is None else logits
    return arms.expectation(objective, phi, estimator, n, generator)  # type: ignore[arg-type]


CASES: list[tuple[Callable[[], object], str]] = [
    (lambda: call(n=1), r"num_samples of ARMS must be an integer >= 2, got 1"),
    (
        lambda: call(n=0, estimator="reinforce"),
        r"num_samples of Reinforce must be an integer >= 1, got 0",
    ),
    (lambda: call(n=2.5), r"num_samples of ARMS must be an integer >= 2, got 2.5"),
    (lambda: call(n=3, estimator="disarm"), r"num_samples of DisARM must be even.*got 3: try 4"),
    (lambda: call(n=3, estimator="arm"), r"num_samples of ARM must be even"),
    (
        lambda: call(estimator="arns"),
        r"there is no estimator named 'arns': did you mean arms\? Otherwise choose one of",
    ),
    (
        lambda: call(generator=0),
        r"generator must be a torch.Generator or None, got int: .*manual_seed\(0\)",
    ),
    (lambda: call(generator="x"), r"generator must be a torch.Generator or None, got str"),
    (
        lambda: call(generator=np.random.default_rng()),
        r"generator must be a torch.Generator or None, got Generator",
    ),
    (
        lambda: arms.draw(torch.zeros(2), "loorf", 4, 7),  # type: ignore[arg-type]
        r"try torch.Generator\(\).manual_seed\(7\)",
    ),
    (
        lambda: arms.variance(total, torch.zeros(2), "loorf", 4, 7),  # type: ignore[arg-type]
        r"generator must be a torch.Generator",
    ),
    (
        lambda: call(torch.zeros(3, 2).to_sparse()),
        "logits must be an ordinary dense tensor, got a tensor of layout torch.sparse_coo",
    ),
    (
        lambda: call(torch.zeros(3, 2).to(torch.float8_e4m3fn)),
        r"logits must be floating-point numbers, got torch.float8_e4m3fn: call .float\(\)",
    ),
    (lambda: call(objective=None), r"the objective must be a function, got NoneType"),
    (
        lambda: call(n=10**30),
        r"num_samples of ARMS must be an integer >= 2 and below 2\*\*63, got 10000",
    ),
    (
        lambda: arms.variance(total, torch.zeros(3, 0)),
        r"logits must not be empty, got shape \[3, 0\]",
    ),
    (
        lambda: arms.variance(total, torch.zeros(0, 3)),
        r"logits must not be empty, got shape \[0, 3\]",
    ),
    (
        lambda: arms.DisARM(4, "a"),  # type: ignore[arg-type]
        "correlation must be a number that is at least -1 and below 1, got 'a'",
    ),
    (
        lambda: arms.REBAR(4, 0.1),  # type: ignore[arg-type]
        r"relaxation must be an arms.Relaxation, got 0.1",
    ),
    (
        lambda: arms.RELAX(4, control=7),  # type: ignore[arg-type]
        "control must be an nn.Module or None, got 7",
    ),
    (
        lambda: arms.RELAX(4, relaxation=None, control=None),
        "RELAX needs a relaxation, a control, or both, got neither",
    ),
    (
        lambda: arms.RELAX(4, control=arms.relax_control(5))(total, torch.zeros(3, 2)),
        r"the control must accept a tensor of shape \[4, 3, 2\], but raised: mat1 and",
    ),
    (
        lambda: arms.designs.Systematic().count_distribution(
            torch.zeros(2),
            2.5,  # type: ignore[arg-type]
        ),
        r"n must be an integer >= 1, got 2.5",
    ),
    (lambda: arms.LOORF(True), r"num_samples of LOORF must be an integer >= 2, got True"),
    (lambda: call(estimator=7), "estimator must be a name or an arms.Estimator, got 7"),
    (
        lambda: call(estimator=arms.LOORF(3)),
        "num_samples=4 cannot be combined with the estimator object",
    ),
    (
        lambda: call(torch.zeros(3, 2, dtype=torch.int64)),
        r"logits must be floating-point numbers, got torch.int64: call .float\(\)",
    ),
    (
        lambda: call(torch.tensor([0.0, torch.nan])),
        r"logits contain NaN or do not define a distribution \(infinite logits are",
    ),
    (lambda: call(torch.tensor(0.0)), r"shape \[\*batch, d\].*got a scalar"),
    (lambda: call([0.0, 1.0]), r"logits must be a tensor.*got list"),
    (
        lambda: call(Normal(0.0, 1.0)),
        r"must be a Bernoulli, a Categorical or a OneHotCategorical, got Normal",
    ),
    (
        lambda: call(IndependentDistribution(Bernoulli(logits=torch.zeros(3, 2)), 2)),
        r"= 1, as in Independent\(Bernoulli\(...\), 1\), got 2",
    ),
    (lambda: call(objective=lambda b: b), r"one value per sample, shape \[4, 3\], got \[4, 3, 2\]"),
    (lambda: call(objective=lambda b: b.sum()), r"shape \[4, 3\], got a scalar"),
    (
        lambda: call(objective=lambda b: "a string"),
        r"the objective must return a tensor of shape \[4, 3\], got str",
    ),
    (
        lambda: call(objective=lambda b: b.sum(-1) * torch.nan),
        "the objective must return finite values, got NaN or infinity: check its",
    ),
    (
        lambda: call(objective=lambda b: b.sum(-1) / 0),
        "the objective must return finite values, got NaN or infinity: check its",
    ),
    (
        lambda: call(estimator=arms.ARMS(4, WrongShape())),
        r"samples of shape \[4, 3, 2\], got \[5, 3, 2\]",
    ),
    (
        lambda: call(estimator=arms.ARMS(4, WrongDebias())),
        r"WrongDebias\(\).debias must return shape \[3, 2\], got \[4\]",
    ),
    (
        lambda: arms.ARMS(4, "dirichlet"),  # type: ignore[arg-type]
        r"coupling must be a BitCoupling or a CategoryCoupling",
    ),
    (
        lambda: arms.DisARM(2, correlation=1.0),
        "correlation must be a number that is at least -1 and below 1, got 1.0",
    ),
    (
        lambda: call(torch.zeros(17), estimator="exact"),
        r"most 65536 joint states can be enumerated, got logits of shape \[17\], which have",
    ),
    (
        lambda: arms.expectation(total, torch.zeros(2), chunk=0),
        r"chunk must be an integer >= 1, got 0",
    ),
    (
        lambda: arms.expectation(lambda b: b.sum(), torch.zeros(2), chunk=2),
        r"shape \[2\], got a scalar",
    ),
    (
        lambda: arms.expectation(nothing, torch.zeros(3), chunk=2),
        r"the objective must return a tensor of shape \[2\], got NoneType",
    ),
    (
        lambda: arms.variance(total, torch.zeros(2), repeats=1),
        r"repeats must be an integer >= 2, got 1",
    ),
    (
        lambda: arms.variance(total, torch.zeros(2), None, 0),
        r"num_samples must be an integer >= 1, got 0",
    ),
    (lambda: arms.variance(total, torch.zeros(2), estimators=[]), r"a sequence of these, got \[\]"),
    (
        lambda: arms.variance(total, torch.zeros(2), 4, ["loorf"]),  # type: ignore[arg-type]
        r"estimators must be a name, an estimator or a sequence of these, got 4",
    ),
    (
        lambda: arms.variance(total, torch.zeros(2), 0.5),  # type: ignore[arg-type]
        r"a sequence of these, got 0.5",
    ),
    (
        lambda: arms.variance(total, torch.zeros(2), [7]),  # type: ignore[list-item]
        "estimator must be a name or an arms.Estimator, got 7",
    ),
    (
        lambda: arms.variance(total, torch.zeros(2), "loof"),
        r"there is no estimator named 'loof': did you mean loorf or loorf-ms\? Otherwise",
    ),
    (
        lambda: arms.variance(total, torch.zeros(2), "loof", evaluations=4),
        r"there is no estimator named 'loof': did you mean loorf or loorf-ms\? Otherwise",
    ),
    (lambda: arms.variance(total, torch.zeros(2), "disarm", 3), r"must be even.*got 3: try 4"),
    (
        lambda: arms.variance(total, torch.zeros(2), None, 4, evaluations=6),
        "got both num_samples=4 and evaluations=6: pass only one of them",
    ),
    (
        lambda: arms.variance(total, torch.zeros(2), evaluations=0),
        r"evaluations must be an integer >= 1, got 0",
    ),
    (
        lambda: arms.variance(total, torch.zeros(2), "rebar", evaluations=2),
        "rebar needs more than 2 evaluations: increase evaluations=2",
    ),
    (
        lambda: arms.variance(total, torch.zeros(5), "exact", evaluations=31),
        "exact makes 32 evaluations, more than evaluations=31: remove exact from the",
    ),
    (
        lambda: arms.variance(total, arms.OneHot(torch.zeros(2, 3)), "arms-gaussian"),
        r"the design Coupled\(num_samples=8, coupling=Gaussian\(\)\) cannot draw OneHot",
    ),
]


@pytest.mark.parametrize(("provoke", "message"), CASES, ids=[message for _, message in CASES])
def test_message(provoke: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        provoke()


@pytest.mark.parametrize("n", [1, 2.5])
def test_refused_budget_leaves_the_generator_alone(n: object) -> None:
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    with pytest.raises(ValueError, match="num_samples"):
        arms.expectation(total, torch.zeros(3), "arms", n, generator)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="NaN"):
        arms.expectation(total, torch.tensor([torch.nan]), "arms", 4, generator)
    assert torch.equal(state, generator.get_state())


def test_validation_can_be_switched_off() -> None:
    value = arms.expectation(
        lambda b: b.sum(-1) * torch.nan, torch.zeros(2), "loorf", 4, validate=False
    )
    assert value.isnan().all()


def test_names_of_papers_are_names_too() -> None:
    assert arms.as_estimator("rloo", 4) == arms.LOORF(4)


@pytest.mark.parametrize("name", ["arms", "rebar", "relax", "midpoint"])
def test_values_in_inference_mode(name: str) -> None:
    with torch.inference_mode():
        value = arms.expectation(lambda b: (b - 0.3).square().sum(-1), torch.zeros(3, 4), name, 4)
    assert value.shape == (3,)


def test_one_name_needs_no_list() -> None:
    table = arms.variance(total, torch.zeros(3, 2), "loorf", 4, repeats=20)
    assert [row.estimator for row in table.rows] == ["loorf"]
    assert table._repr_html_().startswith("<table><thead><tr><th>estimator</th>")


def test_exceptions_and_unknown_names_in_words() -> None:
    assert described(KeyError("a")) == "KeyError: 'a'"
    assert described(MemoryError()) == "MemoryError"
    words = "there is no coupling named 'gausian': did you mean gaussian? Otherwise choose one of gaussian, pairs"
    assert str(unknown_name("coupling", "gausian", ["gaussian", "pairs"])) == words


@pytest.mark.parametrize("value", [0, -1.0, True, "1", None, torch.inf, torch.nan, 10**400])
def test_numbers_that_are_not_positive(value: object) -> None:
    assert as_positive(2, "temperature") == 2.0
    with pytest.raises(ValueError, match="temperature must be a positive, finite number, got"):
        as_positive(value, "temperature")


def test_a_fraction_below_the_smallest_float_is_not_positive() -> None:
    with pytest.raises(ValueError, match=r"must be a positive, finite number, got Fraction\(1,"):
        as_positive(Fraction(1, 10**400), "temperature")


def test_swapped_arguments_are_recognized() -> None:
    with pytest.raises(ValueError, match="got function: pass the objective first"):
        arms.expectation(torch.zeros(3, 4), lambda b: b.sum(-1))  # type: ignore[arg-type]
