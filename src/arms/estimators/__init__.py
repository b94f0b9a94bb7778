"""Every estimator by name. One file here and one line in ESTIMATORS make a new one known everywhere.

Biased ones have a mapping of their own, so that nothing that runs over ESTIMATORS can pick one up.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping
from functools import partial

from arms.arguments import unknown_name
from arms.couplings import Dirichlet, Gaussian, Stratified, Systematic
from arms.estimators.arm import ARM
from arms.estimators.arms import ARMS
from arms.estimators.arms_ms import MultiSampleARMS
from arms.estimators.arms_taylor import ARMSTaylor
from arms.estimators.arts import ARTS
from arms.estimators.base import Draw, Estimate, Estimator, Objective, variance_loss
from arms.estimators.concrete import Concrete
from arms.estimators.disarm import DisARM
from arms.estimators.disarm_ms import MultiSampleDisARM
from arms.estimators.disarm_tree import TreeDisARM
from arms.estimators.double_cv import DoubleCV
from arms.estimators.exact import Exact
from arms.estimators.gapped_st import GappedStraightThrough
from arms.estimators.loorf import LOORF
from arms.estimators.loorf_ms import MultiSampleLOORF
from arms.estimators.midpoint import Midpoint
from arms.estimators.midpoint_ms import MultiSampleMidpoint, tried_in_every_slot
from arms.estimators.pipeline import Options, estimate
from arms.estimators.rebar import REBAR, Relaxation
from arms.estimators.reinforce import Reinforce
from arms.estimators.reinforce_ms import MultiSampleReinforce
from arms.estimators.reinmax import ReinMax
from arms.estimators.relax import RELAX, relax_control
from arms.estimators.repaired import Repaired
from arms.estimators.rodeo import RODEO, SteinControl
from arms.estimators.st import StraightThrough
from arms.estimators.st_gumbel import GumbelStraightThrough
from arms.estimators.st_sigmoid import SigmoidStraightThrough
from arms.estimators.unord import Unordered
from arms.estimators.vimco import VIMCO
from arms.estimators.wrappers import ExtraSample, Stacked

__all__ = [
    "ALIASES",
    "ALL_ESTIMATORS",
    "ARM",
    "ARMS",
    "ARTS",
    "BIASED_ESTIMATORS",
    "DEFAULT_NUM_SAMPLES",
    "ESTIMATORS",
    "LOORF",
    "REBAR",
    "RELAX",
    "RODEO",
    "VIMCO",
    "ARMSTaylor",
    "Concrete",
    "DisARM",
    "DoubleCV",
    "Draw",
    "Estimate",
    "Estimator",
    "Exact",
    "ExtraSample",
    "GappedStraightThrough",
    "GumbelStraightThrough",
    "Midpoint",
    "MultiSampleARMS",
    "MultiSampleDisARM",
    "MultiSampleLOORF",
    "MultiSampleMidpoint",
    "MultiSampleReinforce",
    "Objective",
    "Options",
    "ReinMax",
    "Reinforce",
    "Relaxation",
    "Repaired",
    "SigmoidStraightThrough",
    "Stacked",
    "SteinControl",
    "StraightThrough",
    "TreeDisARM",
    "Unordered",
    "as_estimator",
    "estimate",
    "relax_control",
    "variance_loss",
]

DEFAULT_NUM_SAMPLES = 8

ESTIMATORS: Mapping[str, Callable[[int], Estimator]] = {
    "reinforce": Reinforce,
    "loorf": LOORF,
    "arm": ARM,
    "disarm": DisARM,
    "arts": ARTS,
    "arms-d": partial(ARMS, coupling=Dirichlet()),
    "arms-n": partial(ARMS, coupling=Gaussian()),
    "arms-s": partial(ARMS, coupling=Systematic()),
    "arms-strat": partial(ARMS, coupling=Stratified()),
    "disarm-tree": TreeDisARM,
    "disarm-sb": partial(TreeDisARM, tree="stick"),
    "unord": Unordered,
    "midpoint": Midpoint,
    "midpoint-single": partial(Midpoint, pairs=1),
    "repaired": Repaired,
    "arms-s-taylor": partial(ARMSTaylor, coupling=Systematic()),
    "rebar": REBAR,
    "relax": RELAX,
    "double-cv": DoubleCV,
    "rodeo": RODEO,
    "exact": Exact,
    "reinforce-ms": MultiSampleReinforce,
    "vimco": VIMCO,
    "disarm-ms": MultiSampleDisARM,
    "loorf-ms": MultiSampleLOORF,
    "arms-ms-d": partial(MultiSampleARMS, coupling=Dirichlet()),
    "arms-ms-n": partial(MultiSampleARMS, coupling=Gaussian()),
    "arms-ms-s": partial(MultiSampleARMS, coupling=Systematic()),
    "midpoint-ms": MultiSampleMidpoint,
    "midpoint-ms-tried": tried_in_every_slot,
    "disarm-ms-paper": partial(MultiSampleDisARM, folded=False),
    "loorf-ms-paper": partial(MultiSampleLOORF, folded=False),
    "arms-ms-d-paper": partial(MultiSampleARMS, coupling=Dirichlet(), folded=False),
    "arms-ms-n-paper": partial(MultiSampleARMS, coupling=Gaussian(), folded=False),
    "arms-ms-s-paper": partial(MultiSampleARMS, coupling=Systematic(), folded=False),
}
"""The unbiased ones: name to a function of `num_samples`."""

BIASED_ESTIMATORS: Mapping[str, Callable[[int], Estimator]] = {
    "st": StraightThrough,
    "st-sigmoid": SigmoidStraightThrough,
    "concrete": Concrete,
    "gumbel-softmax": Concrete,
    "st-gumbel": GumbelStraightThrough,
    "gapped-st": GappedStraightThrough,
    "reinmax": ReinMax,
}
"""The biased ones, to compare with: name to a function of `num_samples`."""

ALL_ESTIMATORS: Mapping[str, Callable[[int], Estimator]] = ChainMap(BIASED_ESTIMATORS, ESTIMATORS)  # type: ignore[arg-type]
"""Every name, the unbiased first; a view of both mappings, which sees what a user adds to them."""

ALIASES: Mapping[str, str] = {"rloo": "loorf"}
"""Other names of estimators, as papers have them."""


def as_estimator(name: str | Estimator, num_samples: int | None = None) -> Estimator:
    """Return the estimator of that name with that budget; an estimator object is returned as it is.

    Args:
        name: A name in `arms.ESTIMATORS` or `arms.BIASED_ESTIMATORS`, or an estimator.
        num_samples: The budget; 8 unless given.

    >>> as_estimator("arms-s", num_samples=4)
    ARMS(num_samples=4, coupling=Systematic())
    """
    if isinstance(name, Estimator):
        if num_samples not in (None, name.num_samples):
            raise ValueError(
                f"num_samples={num_samples} contradicts {name}: give the number to one of them, not to both"
            )
        return name
    if not isinstance(name, str):
        raise ValueError(f"estimator must be a name or an Estimator, got {name!r}")
    name = ALIASES.get(name, name)
    if name not in ALL_ESTIMATORS:
        raise unknown_name("estimator", name, ESTIMATORS, BIASED_ESTIMATORS)
    return ALL_ESTIMATORS[name](DEFAULT_NUM_SAMPLES if num_samples is None else num_samples)
