"""Learning rates and how they change: computed on the device, so that a CUDA graph moves along by itself."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from arms.bench.config import TrainConfig

RATE_FIELDS = (
    "learning_rate",
    "prior_learning_rate",
    "schedule",
    "warmup_steps",
    "decay_every",
    "decay_factor",
)
"""What of a configuration says how fast a run learns: runs of one ensemble may differ in it."""


def factor(
    steps_done: Tensor,
    *,
    steps: Tensor,
    warmup: Tensor,
    cosine: Tensor,
    decay_every: Tensor,
    decay_factor: Tensor,
) -> Tensor:
    """Return what a schedule multiplies the rate of the next step by: a rise, a fall, and cuts, each 1 where unused.

    min(1, (t + 1) / warmup) · (1 - cosine · (1 - cos(pi (t - warmup) / (steps - warmup))) / 2)
    · decay_factor ^ floor(t / decay_every)

    Args:
        steps_done: t, a whole number on the device.
        steps: of the whole run; half a cosine ends there.
        warmup: steps of the rise, 0 for none.
        cosine: how far the fall goes: 1 down to nothing, 0 for none.
        decay_every: steps between two cuts.
        decay_factor: of a cut, 1 for none.

    >>> one, none = torch.ones(2), torch.zeros(2)
    >>> cosine = torch.tensor([0.0, 1.0])  # the first of two replicas keeps its rate
    >>> factor(5 * one[0], steps=10 * one, warmup=none, cosine=cosine, decay_every=one, decay_factor=one)
    tensor([1.0000, 0.5000])
    """
    rise = ((steps_done + 1) / warmup.clamp(min=1)).clamp(max=1)
    progress = ((steps_done - warmup) / (steps - warmup)).clamp(0, 1)
    fall = 1 - cosine * (1 - torch.cos(math.pi * progress)) / 2
    return rise * fall * decay_factor ** torch.floor(steps_done / decay_every)


class LearningRates:
    """The rates of runs side by side, each for its own replicas, at any step: Adam's and the prior's.

    Rates are `[R]`, or `[]` where all replicas share them, for which optimisers have a faster path.
    """

    def __init__(self, configs: Sequence[TrainConfig], device: str | torch.device) -> None:
        self._device = torch.device(device)
        self._configs = [config for config in configs for _ in range(config.replicas)]
        self._is_common = (
            len({tuple(getattr(config, name) for name in RATE_FIELDS) for config in configs}) == 1
        )
        self._changes = any(c.schedule != "constant" or c.warmup_steps for c in configs)
        self._rate = self._column(lambda config: config.learning_rate)
        self._prior_rate = self._column(lambda config: config.prior_learning_rate)
        self._shape = {
            "steps": self._column(lambda config: config.steps),
            "warmup": self._column(lambda config: config.warmup_steps),
            "cosine": self._column(lambda config: config.schedule == "cosine"),
            "decay_every": self._column(lambda config: max(1, config.decay_every)),
            "decay_factor": self._column(
                lambda config: config.decay_factor if config.schedule == "step" else 1
            ),
        }

    def after(self, steps_done: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rates of the next step, Adam's and the prior's; how many are done is a number on the device."""
        if not self._changes:
            return self._rate, self._prior_rate
        # The prior's descent follows the same curve: otherwise it would be the only part still moving at the end.
        now = factor(steps_done, **self._shape)
        return self._rate * now, self._prior_rate * now

    def _column(self, value: Callable[[TrainConfig], float]) -> Tensor:
        """Return a number of every replica's configuration, or the one that they share."""
        found = [value(config) for config in self._configs]
        # A CPU's fused Adam takes the rate in double precision, as it would a Python number; a GPU's in single.
        dtype = torch.float64 if self._device.type == "cpu" else torch.float32
        return torch.tensor(
            found[0] if self._is_common else found, dtype=dtype, device=self._device
        )
