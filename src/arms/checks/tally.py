"""Running mean and variance of an estimator's gradient, and its times."""

from collections.abc import Sequence
from time import perf_counter

import torch
from torch import Generator, Tensor

from arms.estimate import estimate
from arms.estimators import Estimator, Objective
from arms.latents import Latent
from arms.objective import Options


class Tally:
    """Mean and variance of an estimator by Welford's recurrence, which keeps only two arrays.

    What each estimate adds to the sum of squares has the variance as its expectation, so the
    spread of these terms gives the standard error of the variance.
    """

    def __init__(self, estimator: Estimator, logits: Tensor) -> None:
        self.estimator = estimator
        self.mean = torch.zeros_like(logits, dtype=torch.float64)
        self.squares = torch.zeros_like(self.mean)
        self.added: list[Tensor] = []
        self.seconds: list[float] = []

    def add(self, objective: Objective, latent: Latent, generator: Generator | None) -> None:
        """Make one more estimate."""
        start = perf_counter()
        grad: Tensor = estimate(self.estimator, objective, latent, generator, Options()).grad
        if grad.is_cuda:
            torch.cuda.synchronize(grad.device)  # a GPU works on after the call has returned
        self.seconds.append(perf_counter() - start)
        delta = grad.double() - self.mean
        self.mean += delta / len(self.seconds)
        added = delta * (grad.double() - self.mean)
        self.squares += added
        self.added.append(added.mean())

    def variance(self) -> Tensor:
        """Return the variance of one estimate of every logit's gradient."""
        return self.squares / (len(self.seconds) - 1)

    def variance_error(self) -> float:
        """Return the standard error of the mean variance; NaN if there are only two estimates."""
        added = torch.stack(self.added[1:])  # the first adds nothing
        return (added.std() / len(added) ** 0.5).item() if len(added) > 1 else float("nan")


def measure(
    estimators: Sequence[Estimator],
    objective: Objective,
    latent: Latent,
    repeats: int,
    generator: Generator | None,
) -> list[Tally]:
    """Make estimates in turn, after one of each that does not count, because it is slower."""
    for one in estimators:
        estimate(one, objective, latent, generator, Options())
    tallies = [Tally(one, latent.logits) for one in estimators]
    for _ in range(repeats):
        for tally in tallies:
            tally.add(objective, latent, generator)
    return tallies
