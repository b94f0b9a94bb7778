r"""Leave-one-out REINFORCE: the baseline of every sample is the mean of the others.

$$ r = \frac{1}{n-1} \sum_i \Big(f(b_i) - \frac{1}{n}\sum_j f(b_j)\Big)\,\nabla \log p(b_i) $$

On independent samples this is LOORF (RLOO), whose baseline, the mean of the other values, is
independent of b_i. On coupled samples, correcting r for their dependence gives ARMS, for bits
g = r / (1 - rho). Unbiased because r is the average over pairs of (f(b_i) - f(b_j)) (b_i - b_j) / 2,
whose expectation is (f(1) - f(0)) P(b_i = 1, b_j = 0) = (f(1) - f(0)) p (1-p) (1-rho), the gradient
times 1 - rho if all pairs share the correlation rho, given all other variables.
Reference: Kool, van Hoof & Welling, "Buy 4 REINFORCE samples, get a baseline for free!", 2019;
Dimitriev & Zhou, "ARMS: Antithetic-REINFORCE-Multi-Sample Gradient for Binary Variables", 2021.
"""

from dataclasses import dataclass

from torch import Tensor

from arms.arguments import as_count
from arms.designs import Coupled, Coupling, Design, Draw, Independent, Systematic
from arms.estimators.base import Estimator
from arms.latents import Latent


@dataclass(frozen=True)
class LeaveOneOut(Estimator):
    """Leave-one-out REINFORCE on any design of exchangeable samples.

    Args:
        design: `Independent(n)` makes it LOORF, `Coupled(n, coupling)` ARMS.

    >>> import torch
    >>> constant = lambda b: torch.full(b.shape[:-1], 7.0)
    >>> LeaveOneOut(Independent(4))(constant, torch.zeros(3)).grad  # zero in every draw
    tensor([0., 0., 0.])
    """

    design: Design

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        found = leave_one_out(draw.latent, draw.points, values)
        return self.design.correct(draw.latent, found)


def LOORF(num_samples: int) -> LeaveOneOut:
    """Return leave-one-out REINFORCE (RLOO) on n independent samples.

    Args:
        num_samples: n, at least 2.

    >>> LOORF(4)
    LeaveOneOut(design=Independent(num_samples=4, differentiated=False))
    """
    return LeaveOneOut(Independent(as_count(num_samples, 2, "num_samples of LOORF")))


def ARMS(num_samples: int, coupling: Coupling | None = None) -> LeaveOneOut:
    """Return ARMS on n coupled samples. With n = 2 it is DisARM.

    Args:
        num_samples: n, at least 2.
        coupling: Of the n samples; `Systematic()` by default.

    >>> import torch
    >>> ARMS(2)(lambda b: b[..., 0], torch.zeros(1)).grad  # an antithetic pair is exact here
    tensor([0.2500])
    """
    count = as_count(num_samples, 2, "num_samples of ARMS")
    return LeaveOneOut(Coupled(count, Systematic() if coupling is None else coupling))


def leave_one_out(latent: Latent, samples: Tensor, values: Tensor) -> Tensor:
    centered = (values - values.mean(0)) / (len(values) - 1)
    # In place: another tensor of this size would take a tenth of the time.
    return latent.score(samples).mul_(latent.with_event_axes(centered)).sum(0)
