r"""Leave-one-out REINFORCE: the baseline of each sample is the mean of f over the other samples.

$$ r = \frac{1}{n-1} \sum_i \Big(f(b_i) - \frac{1}{n}\sum_j f(b_j)\Big)\,\nabla \log p(b_i) $$

With independent samples, g = r. This is LOORF, also called RLOO. With coupled samples, r is biased.
ARMS removes this bias by a correction that depends on the coupling. For bits, ARMS is
g = r / (1 - rho), where rho is the correlation of two samples of the same bit.

Unbiased because two facts hold for bits. First, r is the average of (f(b_i) - f(b_j)) (b_i - b_j) /
2 over all pairs of samples. Second, given all other latents, this term has the expectation (f(1) -
f(0)) P(b_i = 1, b_j = 0), and the probability equals p (1-p) (1-rho). The gradient is (f(1) - f(0))
p (1-p), so r must be divided by 1 - rho. All pairs must have the same correlation.

The target `arms.BestOf(k)`, the expected best of k values, needs independent samples.
`arms.weights` computes the weights w_i:

$$ g = \sum_i w_i \, \nabla \log p(b_i), \qquad
   w_i = \frac{1}{\binom{n}{k}} \sum_{S \ni i} \big(\max_{S} f - \max_{S \setminus i} f\big) $$

The sum is over all subsets S of k samples that contain sample i. The subtracted maximum does not
depend on sample i, so it is a valid baseline.
Reference: Kool, van Hoof & Welling, "Buy 4 REINFORCE samples, get a baseline for free!", 2019;
Dimitriev & Zhou, "ARMS: Antithetic-REINFORCE-Multi-Sample Gradient for Binary Variables", 2021;
Walder & Karkhanis, "Pass@K policy optimization", 2025.
"""

from dataclasses import dataclass, field

from torch import Tensor

from arms.arguments import as_count
from arms.designs import Coupled, Coupling, Design, Draw, Independent, Systematic
from arms.estimators.base import Estimator, set_design
from arms.latents import Latent
from arms.rewards import best_of_weights
from arms.targets import BestOf, Expectation, Target


@dataclass(frozen=True)
class LeaveOneOut(Estimator):
    """The leave-one-out REINFORCE estimator, for any design whose samples are exchangeable.

    Args:
        design: `Independent(n)` for LOORF, or `Coupled(n, coupling)` for ARMS.
        best_of: k. If given, the target is the expected best of k values instead of the
            expectation, and the samples must be independent.

    >>> import torch
    >>> constant = lambda b: torch.full(b.shape[:-1], 7.0)
    >>> LeaveOneOut(Independent(4))(constant, torch.zeros(3)).grad  # zero in every draw
    tensor([0., 0., 0.])
    """

    design: Design
    best_of: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.best_of is None:
            return
        target = BestOf(self.best_of)
        if type(self.design) is not Independent:
            what = f"best_of={target.k} needs independent samples, got {self.design}"
            raise ValueError(f"{what}: use arms.LOORF(n, {target})")
        least, n = max(2, target.k), self.design.num_samples
        if n < least:
            raise ValueError(
                f"{target!r} needs at least {least} samples, got {n}: increase num_samples"
            )
        set_design(self, self.design, target=target)

    def __repr__(self) -> str:
        best_of = "" if self.best_of is None else f", best_of={self.best_of}"
        return f"{type(self).__name__}(design={self.design!r}{best_of})"

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        if self.best_of is not None:
            signal = draw.latent.with_event_axes(best_of_weights(values, None, self.best_of))
            return draw.latent.score(draw.points).mul_(signal).sum(0)
        found = leave_one_out(draw.latent, draw.points, values)
        return self.design.correct(draw.latent, found)


def LOORF(num_samples: int, target: Target | None = None) -> LeaveOneOut:
    """Return the leave-one-out REINFORCE estimator (RLOO), which uses n independent samples.

    Args:
        num_samples: n, at least 2.
        target: `arms.BestOf(k)` for the expected best of k values; the expectation by default.

    >>> LOORF(4)
    LeaveOneOut(design=Independent(num_samples=4, differentiated=False))
    """
    design = Independent(as_count(num_samples, 2, "num_samples of LOORF"))
    if target is None or target == Expectation():
        return LeaveOneOut(design)
    if not isinstance(target, BestOf):
        wanted = "arms.Expectation() or arms.BestOf(k)"
        raise ValueError(f"target must be {wanted}, got {target!r}")
    return LeaveOneOut(design, best_of=target.k)


def ARMS(num_samples: int, coupling: Coupling | None = None) -> LeaveOneOut:
    """Return the ARMS estimator, which uses n coupled samples. With n = 2, ARMS is DisARM.

    Args:
        num_samples: n, at least 2.
        coupling: How the n samples depend on each other; `Systematic()` by default.

    >>> import torch
    >>> ARMS(2)(lambda b: b[..., 0], torch.zeros(1)).grad  # an antithetic pair is exact here
    tensor([0.2500])
    """
    count = as_count(num_samples, 2, "num_samples of ARMS")
    return LeaveOneOut(Coupled(count, Systematic() if coupling is None else coupling))


def leave_one_out(latent: Latent, samples: Tensor, values: Tensor) -> Tensor:
    centered = (values - values.mean(0)) / (values.shape[0] - 1)
    # Multiply in place, because allocating another tensor would add a tenth to the time.
    return latent.score(samples).mul_(latent.with_event_axes(centered)).sum(0)
