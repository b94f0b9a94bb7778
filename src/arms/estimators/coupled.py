"""Estimators that draw from a coupling: it is checked once, and says which latents it takes."""

from arms.couplings import Coupling
from arms.couplings.base import check_coupling_object
from arms.estimators.base import Estimator
from arms.latents import Latent


class Coupled(Estimator):
    """An estimator with a field `coupling`, each with a default of its own."""

    coupling: Coupling

    def __post_init__(self) -> None:
        super().__post_init__()
        check_coupling_object(self.coupling)

    @property
    def latents(self) -> tuple[type[Latent], ...]:  # type: ignore[override]
        return self.coupling.latents
