"""One file and one line make an estimator known; nothing public goes without words; budgets are what they say."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable

import pytest
import torch
from instances import INSTANCES, Instance, couplings, parts
from torch import Tensor

import arms
import arms.checks
import arms.estimators
from arms.estimators import ALL_ESTIMATORS
from arms.targets import Target

NO_ALGORITHM = {
    "attachment",
    "base",
    "biased",
    "chained",
    "controls",
    "coupled",
    "multi_sample",
    "pipeline",
    "wrappers",
}
FILES = [module.name for module in pkgutil.iter_modules(arms.estimators.__path__) if module.name not in NO_ALGORITHM]


def test_every_file_contributes_an_entry() -> None:
    contributed = {type(factory(4)).__module__ for factory in ALL_ESTIMATORS.values()}
    assert contributed == {f"arms.estimators.{name}" for name in FILES}


def test_the_label_decides_in_which_mapping_an_entry_stands() -> None:
    assert not set(arms.ESTIMATORS) & set(arms.BIASED_ESTIMATORS)
    assert all(factory(4).unbiased for factory in arms.ESTIMATORS.values())
    assert not any(factory(4).unbiased for factory in arms.BIASED_ESTIMATORS.values())
    assert all(arms.as_estimator(name, 4) == factory(4) for name, factory in arms.BIASED_ESTIMATORS.items())


@pytest.mark.parametrize("file", FILES)
def test_every_file_states_its_formula_its_reason_and_its_reference(file: str) -> None:
    module = importlib.import_module(f"arms.estimators.{file}")
    words = module.__doc__ or ""
    made = [
        kind
        for kind in vars(module).values()
        if inspect.isclass(kind) and issubclass(kind, arms.Estimator) and kind.__module__ == module.__name__
    ]
    assert made
    assert words.count("$$") >= 2, "the module docstring must hold the formula"
    assert "Reference:" in words
    for kind in made:
        assert ("nbiased because" if kind.unbiased else "Biased because") in words
        assert ">>>" in (kind.__doc__ or "")


@pytest.mark.parametrize("name", ALL_ESTIMATORS)
def test_every_entry_has_a_line_for_tables(name: str) -> None:
    estimator = ALL_ESTIMATORS[name](4)
    assert estimator.formula
    assert estimator.reference


# --- The list of instances is complete --------------------------------------------------------------------------------


def kinds_of(name: str) -> set[type[arms.Latent]]:
    return {kind for kind in (arms.Bernoulli, arms.OneHot) if issubclass(kind, arms.as_estimator(name, 4).latents)}


def signature(estimator: arms.Estimator) -> tuple[object, ...]:
    return (type(estimator), *(type(coupling) for coupling in couplings(estimator)))


@pytest.mark.parametrize("name", ALL_ESTIMATORS)
def test_generic_tests_run_on_every_entry_and_every_latent_it_takes(name: str) -> None:
    wanted = signature(arms.as_estimator(name, 4))
    tried = {one.kind for one in INSTANCES if signature(one.estimator) == wanted}
    assert tried == kinds_of(name)


def test_generic_tests_run_on_every_coupling_latent_target_and_wrapper() -> None:
    every = {type(coupling) for one in INSTANCES for coupling in couplings(one.estimator)}
    assert every == {type(factory()) for factory in arms.COUPLINGS.values()}
    assert {one.kind for one in INSTANCES} == subclasses(arms.Latent)
    assert {type(one.estimator.target) for one in INSTANCES} == subclasses(Target)
    assert {arms.ExtraSample, arms.Stacked} <= {type(one.estimator) for one in INSTANCES}
    assert all(issubclass(one.kind, one.estimator.latents) for one in INSTANCES)


def subclasses(contract: type) -> set[type]:
    kinds: list[type] = type.__subclasses__(contract)
    return {kind for kind in kinds if kind.__module__.startswith("arms.")}


def test_every_public_estimator_has_an_entry_or_is_a_wrapper() -> None:
    public: set[type] = {thing for name in arms.__all__ if inspect.isclass(thing := getattr(arms, name))}
    estimators = {kind for kind in public if issubclass(kind, arms.Estimator) and not inspect.isabstract(kind)}
    made = {type(factory(4)) for factory in ALL_ESTIMATORS.values()}
    assert estimators == made | {arms.ExtraSample, arms.Stacked}
    assert {type(part) for one in INSTANCES for part in parts(one.estimator)} == made


# --- Budgets ----------------------------------------------------------------------------------------------------------


class Counted(torch.autograd.Function):
    """The identity, which notes how many of the points it is asked the derivative at."""

    @staticmethod
    def forward(ctx: object, b: Tensor, note: Callable[[Tensor], None]) -> Tensor:
        ctx.note = note  # type: ignore[attr-defined]
        return b.clone()

    @staticmethod
    def backward(ctx: object, *upstream: Tensor) -> tuple[Tensor, None]:
        ctx.note(upstream[0])  # type: ignore[attr-defined]
        return upstream[0], None


@pytest.mark.parametrize("instance", INSTANCES, ids=str)
def test_budget_counts_evaluations_and_derivatives(instance: Instance) -> None:
    seen, asked = [], []

    def objective(b: Tensor) -> Tensor:
        seen.append(len(b))
        counted = Counted.apply(  # type: ignore[no-untyped-call]
            b, lambda grad: asked.append(int((grad != 0).flatten(1).any(1).sum()))
        )
        values: Tensor = (counted * torch.arange(1.0, 4)).sum((-1, -2) if instance.kind is arms.OneHot else -1)
        return values

    estimator = instance.fitted(3)
    logits = torch.zeros(3, *((3,) if instance.kind is arms.Bernoulli else (2, 3)))
    estimator(objective, instance.kind(logits), validate=False)  # whoever validates differentiates once more
    states = 2**3 if instance.kind is arms.Bernoulli else 3**2
    extra = int(isinstance(estimator, arms.ExtraSample))
    assert seen == [states + extra if estimator.evaluations is None else estimator.evaluations]
    assert sum(asked) == estimator.derivatives
    assert len(asked) <= 1


@pytest.mark.parametrize("name", ALL_ESTIMATORS)
def test_evaluations_of_the_registry(name: str) -> None:
    estimator = arms.as_estimator(name, 8)
    counts = (estimator.evaluations, estimator.derivatives, estimator.slopes)
    special = {
        "exact": (None, 0, "none"),
        "rebar": (12, 8, "twice"),
        "relax": (12, 8, "twice"),
        "midpoint": (10, 10, "all"),
        "midpoint-single": (12, 4, "extra"),
        "arms-s-taylor": (9, 1, "extra"),
        "midpoint-ms": (12, 4, "extra"),
        "midpoint-ms-tried": (10, 2, "extra"),
    }
    usual = (8, 8, "all") if name in {*arms.BIASED_ESTIMATORS, "double-cv", "rodeo", "repaired"} else (8, 0, "none")
    assert counts == special.get(name, usual)
    assert estimator.target.direct == (name == "vimco" or "-ms" in name)


# --- Words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [arms, arms.checks])
def test_public_names_are_documented(module: object) -> None:
    for name in module.__all__:  # type: ignore[attr-defined]
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__doc__, f"{name} has no docstring"
