"""The random numbers of a run, separate from all others in the process."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Generator, Tensor

from arms.bench.models import seeded_generator


class Noise:
    """The generator of a run; on a GPU it lives in the device's default generator during a step.

    Compiled code and CUDA graphs draw from the default generator alone. `active()` puts this run's
    state there, and the user's back afterwards: a trainer changes no other random numbers, not even
    those of another trainer on the same GPU.
    """

    def __init__(self, own: Generator, default: Generator | None = None) -> None:
        """`default` is the generator that draws must come from, None where any will do."""
        self._own, self._default = own, default
        # Of a run that is not active; where any generator will do, `own` holds it.
        self._state = own.get_state()
        self._is_active = False

    @classmethod
    def of(cls, seed: int, device: torch.device) -> "Noise":
        """Return the noise of a run with this seed."""
        own = seeded_generator(seed, "train", device=str(device))
        if device.type != "cuda":
            return cls(own)
        index = torch.cuda.current_device() if device.index is None else device.index
        return cls(own, torch.cuda.default_generators[index])

    @property
    def generator(self) -> Generator | None:
        """What to draw with while active; None is the device's default."""
        return self._own if self._default is None else None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Run the body with this run's random numbers wherever `generator` is given."""
        if self._default is None or self._is_active:
            yield
            return
        # A CUDA generator's state is 16 bytes in main memory, and a replayed graph reads seed and
        # offset from it: no copy to the device, nothing to wait for.
        users = self._default.get_state()
        self._default.set_state(self._state)
        self._is_active = True
        try:
            yield
        finally:
            self._state = self._default.get_state()
            self._default.set_state(users)
            self._is_active = False

    def get_state(self) -> Tensor:
        """Return where the run stands in its random numbers, as bytes."""
        holder = self._holder()
        return self._state if holder is None else holder.get_state()

    def set_state(self, state: Tensor) -> None:
        """Go to where `get_state` was called."""
        holder = self._holder()
        if holder is None:
            self._state = state.cpu()
        else:
            holder.set_state(state.cpu())

    def _holder(self) -> Generator | None:
        """Return the generator that holds the run's state at the moment, if one does."""
        if self._default is None:
            return self._own
        return self._default if self._is_active else None
