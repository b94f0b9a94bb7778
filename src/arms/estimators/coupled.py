"""Estimators that draw from a coupling: it is checked once, and says which latents it takes."""

from arms.arguments import as_count
from arms.couplings import Coupling
from arms.couplings.base import check_coupling_object
from arms.estimators.base import Estimator
from arms.latents import Bernoulli, Latent, OneHot


class Coupled(Estimator):
    """An estimator with a field `coupling`, each with a default of its own."""

    coupling: Coupling

    def __post_init__(self) -> None:
        super().__post_init__()
        check_coupling_object(self.coupling)
        if getattr(self.coupling, "even_samples", False):  # a coupling need not be a subclass
            as_count(self.num_samples, 2, f"num_samples of {self.coupling!r}", even=True)

    @property
    def latents(self) -> tuple[type[Latent], ...]:  # type: ignore[override]
        return self.coupling.latents


class CoupledPairs(Coupled):
    """A coupled estimator that exchanges single variables within pairs, which bits and categories allow."""

    @property
    def latents(self) -> tuple[type[Latent], ...]:  # type: ignore[override]
        return tuple(kind for kind in (Bernoulli, OneHot) if issubclass(kind, self.coupling.latents))
