"""One file and one line make an estimator known; nothing public goes without words."""

import importlib
import inspect
import pkgutil

import pytest
import torch
from instances import ESTIMATORS as INSTANCES

import arms
import arms.checks
import arms.estimators

CONTRACTS = {"base", "multi_sample"}
FILES = [module.name for module in pkgutil.iter_modules(arms.estimators.__path__) if module.name not in CONTRACTS]


def test_every_file_contributes_an_entry() -> None:
    contributed = {type(factory(4)).__module__ for factory in arms.ESTIMATORS.values()}
    assert contributed == {f"arms.estimators.{name}" for name in FILES}


@pytest.mark.parametrize("name", arms.ESTIMATORS)
def test_every_entry_states_formula_and_reference(name: str) -> None:
    estimator = arms.ESTIMATORS[name](4)
    assert estimator.formula
    assert estimator.reference
    words = importlib.import_module(type(estimator).__module__).__doc__ or ""
    assert "$$" in words, "the module docstring must hold the formula"
    assert "nbiased because" in words
    assert "Reference:" in words
    assert ">>>" in (type(estimator).__doc__ or "")


def test_generic_tests_run_on_every_kind_of_estimator() -> None:
    # The multi-sample bound and the relaxed estimators have suites of their own, over the registry.
    made = [factory(4) for factory in arms.ESTIMATORS.values()]
    plain = {type(e) for e in made if e.objective == "expectation" and not e.relaxes}
    assert {type(instance) for instance in INSTANCES} == plain
    couplings = {type(e.coupling) for e in INSTANCES if isinstance(e, arms.ARMS)}
    assert couplings == {type(factory()) for factory in arms.COUPLINGS.values()}


@pytest.mark.parametrize("name", arms.ESTIMATORS)
def test_budget_counts_evaluations(name: str) -> None:
    seen = []

    def objective(b: torch.Tensor) -> torch.Tensor:
        seen.append(len(b))
        return b.sum(-1)

    estimator = arms.estimator(name, 4)
    estimator(objective, torch.zeros(3))
    # enumeration sees every state; relaxed estimators count n/2 samples, each with f(b), c(z) and c(z~)
    assert sum(seen) == (2**3 if name == "exact" else 6 if estimator.relaxes else 4)


@pytest.mark.parametrize("module", [arms, arms.checks])
def test_public_names_are_documented(module: object) -> None:
    for name in module.__all__:  # type: ignore[attr-defined]
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__doc__, f"{name} has no docstring"


def test_readme_names_every_estimator() -> None:
    from pathlib import Path

    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for name in arms.ESTIMATORS:
        assert f"`{name}`" in readme
