"""A new estimator needs one file and one entry. Every public name is documented, and budgets hold."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import fields

import pytest
import torch
from instances import INSTANCES, JOINT_LATENTS, Instance, parts
from torch import Tensor

import arms
import arms.checks
import arms.estimators
from arms.checks.bias import takes_kind
from arms.designs import COUPLINGS, Coupling, Design
from arms.designs.wrappers import Composite
from arms.estimators import ALIASES, ALL_ESTIMATORS, ENTRIES, resolve
from arms.estimators.registry import PAPER_FORMS
from arms.targets import Target

NO_ALGORITHM = {"biased.path", "bound.slots"}
FILES = [
    f"{folder}.{module.name}"
    for folder in ("score", "derivative", "bound", "biased")
    for module in pkgutil.iter_modules([f"{arms.estimators.__path__[0]}/{folder}"])
    if f"{folder}.{module.name}" not in NO_ALGORITHM
]
WRAPPERS = {arms.ExtraSample, arms.Stacked, arms.OnBound, arms.WithTaylor}


def test_every_file_contributes_an_entry() -> None:
    contributed = {type(factory(4)).__module__ for factory in ALL_ESTIMATORS.values()}
    assert contributed == {f"arms.estimators.{name}" for name in FILES}


def test_the_label_decides_in_which_mapping_an_entry_stands() -> None:
    assert not set(arms.ESTIMATORS) & set(arms.BIASED_ESTIMATORS)
    assert set(ENTRIES) == set(ALL_ESTIMATORS)
    assert all(factory(4).unbiased for factory in arms.ESTIMATORS.values())
    assert not any(factory(4).unbiased for factory in arms.BIASED_ESTIMATORS.values())
    assert all(
        arms.as_estimator(name, 4) == factory(4) for name, factory in arms.BIASED_ESTIMATORS.items()
    )


@pytest.mark.parametrize("file", FILES)
def test_every_file_states_its_formula_its_reason_and_its_reference(file: str) -> None:
    module = importlib.import_module(f"arms.estimators.{file}")
    words = module.__doc__ or ""
    made = [
        kind
        for kind in vars(module).values()
        if inspect.isclass(kind)
        and issubclass(kind, arms.Estimator)
        and kind.__module__ == module.__name__
    ]
    assert made
    assert words.count("$$") >= 2, "the module docstring must hold the formula"
    assert "Reference:" in words
    for kind in made:
        reason = "nbiased because" if kind.unbiased is not False else "Biased because"
        assert reason in " ".join(words.split())
        assert ">>>" in (kind.__doc__ or "")


@pytest.mark.parametrize("name", ENTRIES)
def test_every_entry_has_a_reference_and_a_tier(name: str) -> None:
    entry = ENTRIES[name]
    assert entry.reference
    assert entry.tier in ("recommended", "published", "experimental")


def test_few_entries_are_recommended() -> None:
    assert sum(entry.tier == "recommended" for entry in ENTRIES.values()) <= 12


def test_every_earlier_name_still_makes_an_estimator() -> None:
    names = [*ENTRIES, *ALIASES, *PAPER_FORMS]
    assert len(names) == len(set(names))
    for alias, name in ALIASES.items():
        assert resolve(alias) == (name, {})
        # Learnable parameters are compared by identity, so estimators are compared by their words.
        assert repr(arms.as_estimator(alias, 4)) == repr(arms.as_estimator(name, 4))
    for alias, name in PAPER_FORMS.items():
        assert arms.as_estimator(alias, 4) == arms.as_estimator(name, 4, folded=False)
    earlier = """arms-s arms-d arms-n arms-strat arts disarm-tree disarm-sb unord repaired rloo
    arms-s-taylor arms-ms-s arms-ms-d arms-ms-n midpoint-ms-tried concrete disarm-ms-paper
    loorf-ms-paper arms-ms-d-paper arms-ms-n-paper arms-ms-s-paper"""
    assert set(earlier.split()) <= {*ALIASES, *PAPER_FORMS}


# --- The list of instances is complete ------------------------------------------------------------


def couplings(design: Design) -> Iterator[Coupling]:
    """Yield the couplings in a design and in its inner designs."""
    for field in fields(design):
        value = getattr(design, field.name)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, Coupling):
                yield one
            elif isinstance(one, Design):
                yield from couplings(one)


def signature(estimator: arms.Estimator) -> tuple[object, ...]:
    """Return what distinguishes entries: the rule, inner rules, designs and couplings."""
    every = (estimator, *parts(estimator))
    designs = [type(one.design) for one in every]
    return (*map(type, every), *designs, *map(type, couplings(estimator.design)))


@pytest.mark.parametrize("name", ALL_ESTIMATORS)
def test_generic_tests_run_on_every_entry_and_every_latent_it_takes(name: str) -> None:
    estimator = arms.as_estimator(name, 4)
    tried = {one.kind for one in INSTANCES if signature(one.estimator) == signature(estimator)}
    assert tried == {kind for kind in (arms.Bits, arms.OneHot) if takes_kind(estimator, kind)}


def test_generic_tests_run_on_every_coupling_latent_target_and_wrapper() -> None:
    every = {type(coupling) for one in INSTANCES for coupling in couplings(one.estimator.design)}
    # A coupling of up to four samples that only flips uses has no name.
    assert every == {type(factory()) for factory in COUPLINGS.values()} | {arms.designs.Cyclic}
    # Indices are one-hot samples that only the objective receives in another form.
    tried = {arms.Indices, *(one.kind for one in INSTANCES), *map(type, JOINT_LATENTS)}
    assert tried == {kind for kind in subclasses(arms.Latent) if not inspect.isabstract(kind)}
    assert {type(one.estimator.target) for one in INSTANCES} == subclasses(Target)
    assert {type(one.estimator) for one in INSTANCES} >= WRAPPERS
    assert all(takes_kind(one.estimator, one.kind) for one in INSTANCES)


def test_generic_tests_run_on_every_design() -> None:
    """A design that only occurs inside another design is tested there."""

    def inside(design: Design) -> Iterator[type]:
        yield type(design)
        for field in fields(design):
            value = getattr(design, field.name)
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, Design):
                    yield from inside(one)

    tried = {kind for one in INSTANCES for kind in inside(one.estimator.design)}
    every = {kind for kind in subclasses(Design) if not inspect.isabstract(kind)}
    assert tried == every - {Composite}  # the base class of those made of others


def subclasses(contract: type) -> set[type]:
    kinds: list[type] = type.__subclasses__(contract)
    found = set(kinds).union(*map(subclasses, kinds))
    return {kind for kind in found if kind.__module__.startswith("arms.")}


def test_every_public_estimator_has_an_entry_or_is_a_wrapper() -> None:
    public: set[type] = {
        thing for name in arms.__all__ if inspect.isclass(thing := getattr(arms, name))
    }
    estimators = {
        kind for kind in public if issubclass(kind, arms.Estimator) and not inspect.isabstract(kind)
    }
    made = {name: type(factory(4)) for name, factory in ALL_ESTIMATORS.items()}
    settled = {kind for name, kind in made.items() if ENTRIES[name].tier != "experimental"}
    assert settled | WRAPPERS <= estimators <= {*made.values(), *WRAPPERS}
    assert {type(part) for one in INSTANCES for part in parts(one.estimator)} == {
        *made.values()
    } - WRAPPERS


# --- Budgets --------------------------------------------------------------------------------------


class Counted(torch.autograd.Function):
    """The identity, which records at how many points its derivative is requested."""

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
        values: Tensor = (counted * torch.arange(1.0, 4)).sum(
            (-1, -2) if instance.kind is arms.OneHot else -1
        )
        return values

    estimator = instance.fitted(3)
    logits = torch.zeros(3, *((3,) if instance.kind is arms.Bits else (2, 3)))
    # Validation would differentiate once more.
    estimator(objective, instance.kind(logits), validate=False)
    states = 2**3 if instance.kind is arms.Bits else 3**2
    extra = int(isinstance(estimator, arms.ExtraSample))
    needs = estimator.design.needs
    assert seen == [states + extra if needs.evaluations is None else needs.evaluations]
    assert sum(asked) == needs.derivatives
    assert len(asked) <= 1


@pytest.mark.parametrize("name", ALL_ESTIMATORS)
def test_evaluations_of_the_registry(name: str) -> None:
    """The budgets of published estimators are written out; new ones are measured elsewhere."""
    if ENTRIES[name].tier == "experimental":
        return
    estimator = arms.as_estimator(name, 8)
    special = {
        "exact": (None, 0, False),
        "rebar": (12, 8, True),
        "relax": (12, 8, True),
        "flips": (12, 12, False),
        "flips-ms": (16, 16, False),
        "midpoint": (10, 10, False),
        "midpoint-single": (12, 4, False),
        "arms-taylor": (9, 1, False),
    }
    usual = (
        (8, 8, False)
        if name in {*arms.BIASED_ESTIMATORS, "double-cv", "rodeo", "cross-paired"}
        else (8, 0, False)
    )
    needs = estimator.design.needs
    found = (needs.evaluations, needs.derivatives, needs.second_order)
    assert found == special.get(name, usual)
    assert estimator.target.subtracts_log_q == (name == "vimco" or "-ms" in name)


# --- Words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [arms, arms.checks])
def test_public_names_are_documented(module: object) -> None:
    for name in module.__all__:  # type: ignore[attr-defined]
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__doc__, f"{name} has no docstring"
