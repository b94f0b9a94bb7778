"""An estimator with a parameter, as a user would write it."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Generator, Tensor, nn

from arms.arguments import as_count
from arms.designs import Draw, Independent
from arms.estimators.base import Learnable, set_design


@dataclass(frozen=True)
class Scaled(Learnable):
    """LOORF plus a learned multiple of the mean score, whose expectation is zero."""

    num_samples: int
    factor: nn.Parameter = field(default_factory=lambda: nn.Parameter(torch.zeros(())))

    def __post_init__(self) -> None:
        count = as_count(self.num_samples, 2, "num_samples of Scaled")
        set_design(self, Independent(count))

    def parameters(self) -> Iterator[nn.Parameter]:
        yield self.factor

    def prepare(
        self, logits_shape: torch.Size, context_shape: torch.Size, generator: Generator
    ) -> Self:
        ones = [1] * (len(logits_shape) - 1)  # one factor per replica
        factor = torch.zeros(logits_shape[0], *ones, device=generator.device)
        return replace(self, factor=nn.Parameter(factor))

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        score = draw.latent.score(draw.points)
        centered = values - values.mean(0)
        signal = draw.latent.with_event_axes(centered / (len(values) - 1))
        return (signal * score).sum(0) + self.factor.to(score) * score.mean(0)
