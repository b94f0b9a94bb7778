"""The table of all estimators by name, and labels for estimator objects.

To add an estimator, write its file, import it here, and add an entry to `TABLE`. `arms.estimators`
exports the names in `__all__`.
"""

from collections import ChainMap, Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from arms.arguments import as_count, unknown_name
from arms.designs import (
    Coupled,
    Coupling,
    Cyclic,
    Design,
    Dirichlet,
    Gaussian,
    Independent,
    Stratified,
)
from arms.estimators.base import Estimate, Estimator, variance_loss
from arms.estimators.biased.gapped import GappedStraightThrough
from arms.estimators.biased.gumbel_softmax import GumbelSoftmax
from arms.estimators.biased.reinmax import ReinMax
from arms.estimators.biased.straight_through import StraightThrough
from arms.estimators.bound.disarm import DisARMOnBound
from arms.estimators.bound.flips import FlipsOnBound
from arms.estimators.bound.midpoint import MidpointOnBound, shared_midpoints
from arms.estimators.bound.on_bound import OnBound
from arms.estimators.bound.vimco import VIMCO
from arms.estimators.combinators import ExtraSample, Stacked
from arms.estimators.derivative.double_cv import DoubleCV
from arms.estimators.derivative.flips import Flips
from arms.estimators.derivative.midpoint import Midpoint, cross_paired
from arms.estimators.derivative.relax import REBAR, RELAX, Relaxation, relax_control
from arms.estimators.derivative.rodeo import RODEO, SteinControl
from arms.estimators.derivative.taylor import WithTaylor
from arms.estimators.score.arm import ARM
from arms.estimators.score.disarm import DisARM
from arms.estimators.score.exact import Exact
from arms.estimators.score.leave_one_out import ARMS, LOORF, LeaveOneOut
from arms.estimators.score.reinforce import Reinforce
from arms.estimators.score.unordered_set import UnorderedSet

# The names that `arms` exports.
__all__ = ["BIASED_ESTIMATORS", "ESTIMATORS", "Estimate", "Estimator", "as_estimator"]
__all__ += ["ARM", "ARMS", "LOORF", "DisARM", "Exact", "LeaveOneOut", "Reinforce", "UnorderedSet"]
__all__ += [
    "REBAR",
    "RELAX",
    "RODEO",
    "DoubleCV",
    "Flips",
    "Midpoint",
    "Relaxation",
    "SteinControl",
]
__all__ += ["DisARMOnBound", "ExtraSample", "FlipsOnBound", "MidpointOnBound", "OnBound"]
__all__ += ["Stacked", "WithTaylor"]
__all__ += ["VIMCO", "GappedStraightThrough", "GumbelSoftmax", "ReinMax", "StraightThrough"]
__all__ += ["relax_control", "variance_loss"]

DEFAULT_NUM_SAMPLES = 8
Factory = Callable[..., Estimator]
"""A function that makes an estimator from `num_samples`, and perhaps options like `folded`."""
Tier = Literal["recommended", "published", "experimental"]
"""Whether an estimator is recommended, published elsewhere, or new and little used."""
LONGEST, LONGEST_VALUE = 60, 24  # most characters of a label, and of a value in a label


@dataclass(frozen=True)
class Entry:
    """One line of the table of estimators. `make(num_samples)` returns the estimator."""

    tier: Tier
    name: str
    make: Factory
    reference: str
    aliases: tuple[str, ...] = ()


recommended = partial(Entry, "recommended")
published = partial(Entry, "published")
experimental = partial(Entry, "experimental")


def on_bound(rule: Factory, num_samples: int, folded: bool = True, **options: Any) -> OnBound:
    """Return an `OnBound` estimator, whose inner estimator is made by the function `rule`.

    Half of the `num_samples` samples form the bound. The inner estimator draws the other half.
    """
    half = as_count(num_samples, 4, "num_samples on the bound", even=True) // 2
    return OnBound(rule(half, **options), half, folded)


def flips(num_samples: int, **options: Any) -> Flips:
    """Return a `Flips` estimator.

    The default coupling is created in this function, so that torch.compile can trace the creation.
    """
    return Flips(num_samples, **{"coupling": Cyclic(), **options})


arms_ms = partial(on_bound, ARMS)

KOOL = "Kool, van Hoof & Welling"
ZHOU = "Dimitriev & Zhou 2021"
DONG = "Dong, Mnih & Tucker"
OURS = "this project"
MUPROP = f"{OURS}, after Gu et al. 2016"
CONCRETE = "Jang et al. 2017; Maddison et al. 2017"

TABLE: tuple[Entry, ...] = (
    published("reinforce", Reinforce, "Williams 1992"),
    recommended("loorf", LOORF, f"{KOOL} 2019", ("rloo",)),
    published("arm", ARM, "Yin & Zhou 2019"),
    published("disarm", DisARM, f"{DONG} 2020; Yin et al. 2020", ("arts", "disarm-tree")),
    published("disarm-stick", partial(DisARM, tree="stick"), f"{DONG} 2021", ("disarm-sb",)),
    recommended("arms", ARMS, f"{ZHOU}; coupling: {OURS}", ("arms-s",)),
    published("arms-dirichlet", partial(ARMS, coupling=Dirichlet()), ZHOU, ("arms-d",)),
    published("arms-gaussian", partial(ARMS, coupling=Gaussian()), ZHOU, ("arms-n",)),
    experimental("arms-stratified", partial(ARMS, coupling=Stratified()), OURS, ("arms-strat",)),
    recommended("unordered-set", UnorderedSet, f"{KOOL} 2020", ("unord",)),
    recommended("flips", flips, OURS),
    recommended("midpoint", Midpoint, OURS),
    recommended("midpoint-single", partial(Midpoint, pairs=1), OURS),
    recommended("cross-paired", cross_paired, OURS, ("repaired",)),
    recommended("arms-taylor", lambda n: WithTaylor(ARMS(n)), MUPROP, ("arms-s-taylor",)),
    published("rebar", REBAR, "Tucker et al. 2017"),
    published("relax", RELAX, "Grathwohl et al. 2018"),
    published("double-cv", DoubleCV, "Titsias & Shi 2022"),
    published("rodeo", RODEO, "Shi et al. 2022"),
    recommended("exact", Exact, "the definition"),
    published("reinforce-ms", partial(VIMCO, baseline="none"), "Mnih & Rezende 2016"),
    recommended("vimco", VIMCO, "Mnih & Rezende 2016"),
    recommended("disarm-ms", DisARMOnBound, f"{DONG} 2020; folding: {OURS}"),
    published("loorf-ms", partial(on_bound, LOORF), f"{ZHOU}; folding: {OURS}"),
    published("arms-ms", arms_ms, f"{ZHOU}; coupling, folding: {OURS}", ("arms-ms-s",)),
    published("arms-ms-dirichlet", partial(arms_ms, coupling=Dirichlet()), ZHOU, ("arms-ms-d",)),
    published("arms-ms-gaussian", partial(arms_ms, coupling=Gaussian()), ZHOU, ("arms-ms-n",)),
    recommended("flips-ms", FlipsOnBound, OURS),
    experimental("midpoint-ms", MidpointOnBound, OURS),
    experimental("midpoint-ms-shared", shared_midpoints, OURS, ("midpoint-ms-tried",)),
    published("st", StraightThrough, "Bengio et al. 2013"),
    published("st-sigmoid", partial(StraightThrough, scaled=True), "Bengio et al. 2013"),
    published("gumbel-softmax", GumbelSoftmax, CONCRETE, ("concrete",)),
    published("st-gumbel", partial(GumbelSoftmax, hard=True), "Jang et al. 2017"),
    published("gapped-st", GappedStraightThrough, "Fan et al. 2022"),
    published("reinmax", ReinMax, "Liu et al. 2023"),
)

ENTRIES: Mapping[str, Entry] = {entry.name: entry for entry in TABLE}
ALIASES: Mapping[str, str] = {alias: entry.name for entry in TABLE for alias in entry.aliases}
_UNFOLDED = ("disarm-ms", "loorf-ms", "arms-ms-d", "arms-ms-n", "arms-ms-s")
PAPER_FORMS: Mapping[str, str] = {f"{name}-paper": ALIASES.get(name, name) for name in _UNFOLDED}
"""A second name for some estimators of a bound. It implies `folded=False`, as in the paper."""


def _makers(unbiased: bool) -> dict[str, Factory]:
    made = ((one, one.make(DEFAULT_NUM_SAMPLES)) for one in TABLE)
    return {one.name: one.make for one, estimator in made if estimator.unbiased is unbiased}


ESTIMATORS: dict[str, Factory] = _makers(unbiased=True)
"""The unbiased estimators by name. Each value is a function from n to an estimator."""
BIASED_ESTIMATORS: dict[str, Factory] = _makers(unbiased=False)
"""The biased estimators by name. Each value is a function from n to an estimator."""
ALL_ESTIMATORS: Mapping[str, Factory] = ChainMap(BIASED_ESTIMATORS, ESTIMATORS)
"""All estimators by name, the unbiased ones first."""


MOST_SHARED = 1000
_SHARED: dict[tuple[str, int], Estimator] = {}
"""A cache of estimators by name and number of samples; estimators are immutable."""


def resolve(name: str) -> tuple[str, dict[str, Any]]:
    """Return the registered name of an estimator, and the options that `name` implies.

    `name` may be a registered name or an alias. Only some aliases imply options.

    >>> resolve("arms-s"), resolve("disarm-ms-paper")
    (('arms', {}), ('disarm-ms', {'folded': False}))
    """
    if name in PAPER_FORMS:
        return PAPER_FORMS[name], {"folded": False}
    return ALIASES.get(name, name), {}


def as_estimator(
    name: str | Estimator,
    num_samples: int | None = None,
    evaluations: int | None = None,
    **options: Any,
) -> Estimator:
    """Return the estimator with this name and budget. An estimator object is returned unchanged.

    Args:
        name: A name or alias in `arms.ESTIMATORS` or `arms.BIASED_ESTIMATORS`, or an estimator.
        num_samples: As for `arms.expectation`.
        evaluations: As for `arms.expectation`.
        options: Further arguments of the estimator, such as `folded=False`.

    >>> as_estimator("arms", num_samples=4)
    LeaveOneOut(design=Coupled(num_samples=4, coupling=Systematic()))
    """
    if not isinstance(name, str):
        if not isinstance(name, Estimator):
            raise ValueError(f"estimator must be a name or an arms.Estimator, got {name!r}")
        if num_samples not in (None, num_samples_of(name)):
            options = {"num_samples": num_samples, **options}
        _check_budget(name, evaluations, options)
        return name
    if evaluations is None:
        count = DEFAULT_NUM_SAMPLES if num_samples is None else num_samples
        return _factory(name)(count, **options) if options else _shared_or_new(name, count)
    make = partial(_factory(name), **options)
    if num_samples is not None:
        what = f"got both num_samples={num_samples} and evaluations={evaluations}"
        raise ValueError(f"{what}: pass only one of them")
    return _largest_within(name, make, as_count(evaluations, 1, "evaluations"))


def _factory(name: str) -> Factory:
    known, implied = resolve(name)
    if known not in ALL_ESTIMATORS:
        raise unknown_name("estimator", name, ESTIMATORS, BIASED_ESTIMATORS)
    return partial(ALL_ESTIMATORS[known], **implied)


def _shared_or_new(name: str, num_samples: int) -> Estimator:
    """Return the estimator with this name from the cache, or else a new estimator.

    New estimators are added to the cache, unless they have parameters.
    """
    if torch.compiler.is_compiling() or type(num_samples) is not int:
        return _factory(name)(num_samples)
    found = _SHARED.get((name, num_samples))
    if found is None:
        found = _factory(name)(num_samples)
        if next(found.parameters(), None) is None and len(_SHARED) < MOST_SHARED:
            _SHARED[name, num_samples] = found
    return found


def _check_budget(estimator: Estimator, evaluations: int | None, options: dict[str, Any]) -> None:
    if options:
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        what = f"{given} cannot be combined with the estimator object {estimator}"
        raise ValueError(f"{what}: pass options when you create the object")
    needed = estimator.design.needs.evaluations
    if evaluations is not None and (needed is None or needed > evaluations):
        cost = "one evaluation per state" if needed is None else f"{needed} evaluations"
        what = f"{estimator} makes {cost}, more than evaluations={evaluations}"
        raise ValueError(f"{what}: allow more evaluations, or use fewer samples")


def _largest_within(name: str, make: Factory, evaluations: int) -> Estimator:
    for n in range(evaluations, 0, -1):
        try:
            found = make(n)
        except ValueError:  # this estimator does not accept n samples
            continue
        if found.design.needs.evaluations is None or found.design.needs.evaluations <= evaluations:
            return found
    what = f"{name} needs more than {evaluations} evaluations"
    raise ValueError(f"{what}: increase evaluations={evaluations}")


def num_samples_of(estimator: Estimator) -> int:
    return int(getattr(estimator, "num_samples", estimator.design.num_samples))


def label(estimator: Estimator) -> str:
    """Return a short text with an estimator's class and settings.

    The text does not contain `num_samples` or learned parameters.

    >>> from arms import ARMS, LOORF, REBAR, DisARM
    >>> [label(one) for one in (LOORF(4), ARMS(4), DisARM(4, correlation=-0.5), REBAR(4))]
    ['LOORF', 'ARMS(Systematic())', 'DisARM(correlation=-0.5)', 'REBAR']
    """
    name, design = type(estimator).__name__, type(estimator.design)
    if type(estimator) is LeaveOneOut and design in (Independent, Coupled):
        name = "LOORF" if design is Independent else "ARMS"
    hidden = {"num_samples"}
    if type(estimator) is RELAX and estimator.control is None:
        name, hidden = "REBAR", {"num_samples", "control"}
    parts = []
    known: tuple[Field[object], ...] = fields(estimator) if is_dataclass(estimator) else ()
    for field in known:
        value = getattr(estimator, field.name)
        if field.name in hidden or isinstance(value, Independent):
            continue
        if isinstance(value, Coupling | Estimator | Design):
            parts.append(_text(value.coupling if isinstance(value, Coupled) else value))
        elif field.repr and not _is_default(field, value):
            parts.append(f"{field.name}={_text(value)}")
    return _shortened(name + (f"({', '.join(parts)})" if parts else ""), LONGEST)


def deduplicate_labels(labels: Sequence[str]) -> list[str]:
    """Return the labels. Labels that occur more than once get numbers.

    >>> deduplicate_labels(["LOORF", "ARM", "LOORF"])
    ['LOORF #1', 'ARM', 'LOORF #2']
    """
    total = Counter(labels)
    places = [labels[: at + 1].count(one) for at, one in enumerate(labels)]
    numbered = zip(labels, places, strict=True)
    return [f"{one} #{place}" if total[one] > 1 else one for one, place in numbered]


def _is_default(field: "Field[object]", value: object) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return True  # too long for a label
    if field.default is not MISSING:
        return bool(value == field.default)
    # Calling the factory could advance the global generator, so only the classes are compared.
    return isinstance(value, nn.Module) and type(value) is field.default_factory


def _text(value: object) -> str:
    if isinstance(value, Estimator):
        return label(value)
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, nn.Module):
        return type(value).__name__
    if type(value).__repr__ is object.__repr__:  # the default repr contains an address
        return f"{type(value).__name__}()"
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    return _shortened(repr(value), LONGEST_VALUE)


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
