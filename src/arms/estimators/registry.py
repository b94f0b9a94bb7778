"""Every estimator by name: one table that tests, documentation, command line and users share.

To add an estimator, write its file, import it here, and add one entry to `TABLE`.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from arms.arguments import as_count, unknown_name
from arms.designs import Coupling, Dirichlet, Gaussian, Stratified
from arms.estimators.base import Estimator
from arms.estimators.biased.gapped import GappedStraightThrough
from arms.estimators.biased.gumbel_softmax import GumbelSoftmax
from arms.estimators.biased.reinmax import ReinMax
from arms.estimators.biased.straight_through import StraightThrough
from arms.estimators.bound.disarm import DisARMOnBound
from arms.estimators.bound.midpoint import MidpointOnBound, shared_midpoints
from arms.estimators.bound.on_bound import OnBound, half_and_half
from arms.estimators.bound.vimco import VIMCO
from arms.estimators.derivative.double_cv import DoubleCV
from arms.estimators.derivative.midpoint import Midpoint, cross_paired
from arms.estimators.derivative.relax import REBAR, RELAX
from arms.estimators.derivative.rodeo import RODEO
from arms.estimators.derivative.taylor import WithTaylor
from arms.estimators.score.arm import ARM
from arms.estimators.score.disarm import DisARM
from arms.estimators.score.exact import Exact
from arms.estimators.score.leave_one_out import ARMS, LOORF
from arms.estimators.score.reinforce import Reinforce
from arms.estimators.score.unordered_set import UnorderedSet

Factory = Callable[..., Estimator]
"""Returns an estimator for a number of samples; some take options, such as `folded`."""
Tier = Literal["recommended", "published", "experimental"]

DEFAULT_NUM_SAMPLES = 8


@dataclass(frozen=True)
class Entry:
    """One line of the table."""

    name: str
    make: Factory
    tier: Tier
    """Recommended for use; published elsewhere; or new here and little used."""
    reference: str
    aliases: tuple[str, ...] = ()
    """Other names, as in papers and in earlier versions."""


def loorf_ms(num_samples: int, folded: bool = True) -> OnBound:
    """Return LOORF on the bound, with K = n/2."""
    half = half_and_half(num_samples, 4, "loorf-ms")
    return OnBound(LOORF(half), half, folded)


def arms_ms(num_samples: int, coupling: Coupling | None = None, folded: bool = True) -> OnBound:
    """Return multi-sample ARMS: ARMS on the bound, with K = n/2."""
    half = half_and_half(num_samples, 4, "arms-ms")
    return OnBound(ARMS(half, coupling), half, folded)


def arms_taylor(num_samples: int) -> WithTaylor:
    """Return ARMS with a first-order control variate at the mean."""
    return WithTaylor(ARMS(num_samples))


KOOL = "Kool, van Hoof & Welling"
ZHOU = "Dimitriev & Zhou 2021"
DONG = "Dong, Mnih & Tucker"
OURS = "this project"

TABLE: tuple[Entry, ...] = (
    Entry("reinforce", Reinforce, "published", "Williams 1992"),
    Entry("loorf", LOORF, "recommended", f"{KOOL} 2019", ("rloo",)),
    Entry("arm", ARM, "published", "Yin & Zhou 2019"),
    Entry("disarm", DisARM, "published", f"{DONG} 2020; Yin et al. 2020", ("arts", "disarm-tree")),
    Entry(
        "disarm-stick", partial(DisARM, tree="stick"), "published", f"{DONG} 2021", ("disarm-sb",)
    ),
    Entry("arms", ARMS, "recommended", f"{ZHOU}; coupling: {OURS}", ("arms-s",)),
    Entry("arms-dirichlet", partial(ARMS, coupling=Dirichlet()), "published", ZHOU, ("arms-d",)),
    Entry("arms-gaussian", partial(ARMS, coupling=Gaussian()), "published", ZHOU, ("arms-n",)),
    Entry(
        "arms-stratified",
        partial(ARMS, coupling=Stratified()),
        "experimental",
        OURS,
        ("arms-strat",),
    ),
    Entry("unordered-set", UnorderedSet, "recommended", f"{KOOL} 2020", ("unord",)),
    Entry("midpoint", Midpoint, "recommended", OURS),
    Entry("midpoint-single", partial(Midpoint, pairs=1), "recommended", OURS),
    Entry("cross-paired", cross_paired, "recommended", OURS, ("repaired",)),
    Entry(
        "arms-taylor",
        arms_taylor,
        "recommended",
        f"{OURS}, after Gu et al. 2016",
        ("arms-s-taylor",),
    ),
    Entry("rebar", REBAR, "published", "Tucker et al. 2017"),
    Entry("relax", RELAX, "published", "Grathwohl et al. 2018"),
    Entry("double-cv", DoubleCV, "published", "Titsias & Shi 2022"),
    Entry("rodeo", RODEO, "published", "Shi et al. 2022"),
    Entry("exact", Exact, "recommended", "the definition"),
    Entry("reinforce-ms", partial(VIMCO, baseline="none"), "published", "Mnih & Rezende 2016"),
    Entry("vimco", VIMCO, "recommended", "Mnih & Rezende 2016"),
    Entry("disarm-ms", DisARMOnBound, "recommended", f"{DONG} 2020; folding: {OURS}"),
    Entry("loorf-ms", loorf_ms, "published", f"{ZHOU}; folding: {OURS}"),
    Entry("arms-ms", arms_ms, "published", f"{ZHOU}; coupling, folding: {OURS}", ("arms-ms-s",)),
    Entry(
        "arms-ms-dirichlet",
        partial(arms_ms, coupling=Dirichlet()),
        "published",
        ZHOU,
        ("arms-ms-d",),
    ),
    Entry(
        "arms-ms-gaussian", partial(arms_ms, coupling=Gaussian()), "published", ZHOU, ("arms-ms-n",)
    ),
    Entry("midpoint-ms", MidpointOnBound, "experimental", OURS),
    Entry("midpoint-ms-shared", shared_midpoints, "experimental", OURS, ("midpoint-ms-tried",)),
    Entry("st", StraightThrough, "published", "Bengio et al. 2013"),
    Entry("st-sigmoid", partial(StraightThrough, scaled=True), "published", "Bengio et al. 2013"),
    Entry(
        "gumbel-softmax",
        GumbelSoftmax,
        "published",
        "Jang et al. 2017; Maddison et al. 2017",
        ("concrete",),
    ),
    Entry("st-gumbel", partial(GumbelSoftmax, hard=True), "published", "Jang et al. 2017"),
    Entry("gapped-st", GappedStraightThrough, "published", "Fan et al. 2022"),
    Entry("reinmax", ReinMax, "published", "Liu et al. 2023"),
)

ENTRIES: Mapping[str, Entry] = {entry.name: entry for entry in TABLE}
"""The table by name."""
ALIASES: Mapping[str, str] = {alias: entry.name for entry in TABLE for alias in entry.aliases}
"""Other names of estimators."""
PAPER_FORMS: Mapping[str, str] = {
    f"{name}-paper": ALIASES.get(name, name)
    for name in ("disarm-ms", "loorf-ms", "arms-ms-d", "arms-ms-n", "arms-ms-s")
}
"""Earlier names of the estimators of a bound with `folded=False`."""

_UNBIASED = {entry.name: entry.make(DEFAULT_NUM_SAMPLES).unbiased for entry in TABLE}
ESTIMATORS: dict[str, Factory] = {one.name: one.make for one in TABLE if _UNBIASED[one.name]}
"""The unbiased estimators: name to a function of `num_samples`."""
BIASED_ESTIMATORS: dict[str, Factory] = {
    one.name: one.make for one in TABLE if not _UNBIASED[one.name]
}
"""The biased estimators, for comparison: name to a function of `num_samples`."""
ALL_ESTIMATORS: Mapping[str, Factory] = ChainMap(BIASED_ESTIMATORS, ESTIMATORS)
"""Every name, the unbiased first: a view of both mappings."""


def resolve(name: str) -> tuple[str, dict[str, Any]]:
    """Return the name in the table behind a name or alias, and the options that it implies.

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
    """Return the estimator of a name with a budget; an estimator object is returned as it is.

    Args:
        name: A name or alias in `arms.ESTIMATORS` or `arms.BIASED_ESTIMATORS`, or an estimator.
        num_samples: The number of samples, 8 by default.
        evaluations: The most evaluations of the objective, instead of `num_samples`.
        options: Further arguments of the estimator, such as `folded=False`.

    >>> as_estimator("arms", num_samples=4)
    LeaveOneOut(design=Coupled(num_samples=4, coupling=Systematic()))
    """
    if isinstance(name, Estimator):
        return _as_it_is(name, num_samples, evaluations, options)
    if not isinstance(name, str):
        raise ValueError(f"estimator must be a name or an Estimator, got {name!r}")
    known, implied = resolve(name)
    if known not in ALL_ESTIMATORS:
        raise unknown_name("estimator", name, ESTIMATORS, BIASED_ESTIMATORS)
    make = partial(ALL_ESTIMATORS[known], **implied, **options)
    if evaluations is None:
        return make(DEFAULT_NUM_SAMPLES if num_samples is None else num_samples)
    if num_samples is not None:
        raise ValueError(
            f"num_samples and evaluations exclude each other, got {num_samples} and {evaluations}: "
            "pass num_samples for a number of samples, or evaluations for a budget"
        )
    return _largest_within(name, make, as_count(evaluations, 1, "evaluations"))


def _as_it_is(
    estimator: Estimator,
    num_samples: int | None,
    evaluations: int | None,
    options: Mapping[str, Any],
) -> Estimator:
    own = num_samples_of(estimator)
    if num_samples not in (None, own) or options:
        given = f"num_samples={num_samples}" if num_samples not in (None, own) else f"{options}"
        raise ValueError(
            f"{given} contradicts {estimator}: pass it to the estimator or to the call, not to both"
        )
    needed = estimator.design.needs.evaluations
    if evaluations is not None and (needed is None or needed > evaluations):
        raise ValueError(
            f"{estimator} makes {'as many evaluations as there are states' if needed is None else needed} "
            f"evaluations, more than evaluations={evaluations}: pass its name, or a smaller one"
        )
    return estimator


def _largest_within(name: str, make: Factory, evaluations: int) -> Estimator:
    """Return the estimator with the most samples that makes no more than these evaluations."""
    for n in range(evaluations, 0, -1):
        try:
            found = make(n)
        except ValueError:  # a number of samples that this estimator does not take
            continue
        if found.design.needs.evaluations is None or found.design.needs.evaluations <= evaluations:
            return found
    raise ValueError(
        f"{name} cannot be used with at most evaluations={evaluations} of the objective: allow more "
        "evaluations, or choose another estimator"
    )


def num_samples_of(estimator: Estimator) -> int:
    """Return the number of samples an estimator was made with."""
    return int(getattr(estimator, "num_samples", estimator.design.num_samples))
