"""What a trainer is built of: the noise and the estimator of a run, and a model that fits it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Generator, Tensor

from arms.bench.config import TrainConfig
from arms.bench.models import DiscreteVAE, seeded_generator
from arms.estimators import Estimator, ExtraSample, Learnable


class Noise:
    """The generator of a run; on a GPU it lives in the device's default generator during a step.

    Compiled code and CUDA graphs draw from the default generator alone. `active()` puts this run's
    state there, and the user's back afterwards: a trainer changes no other random numbers, not even
    those of another trainer on the same GPU.
    """

    def __init__(self, own: Generator, default: Generator | None = None) -> None:
        self._own = own
        self._default = default  # what draws must come from, None where any generator will do
        self._state = own.get_state()  # of a run that is not active, unless `own` holds it
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
        return holder.get_state() if holder else self._state

    def set_state(self, state: Tensor) -> None:
        """Go to where `get_state` was called."""
        if holder := self._holder():
            holder.set_state(state.cpu())
        else:
            self._state = state.cpu()

    def _holder(self) -> Generator | None:
        """Return the generator that holds the run's state at the moment, if one does."""
        if self._default is None:
            return self._own
        return self._default if self._is_active else None


def prepared_estimator(
    config: TrainConfig,
    event: torch.Size,
    pixels: int,
    device: str,
    estimator: Estimator | None = None,
) -> Estimator:
    """Return the estimator of a run, by default its configuration's, with fresh parameters."""
    generator = seeded_generator(config.seed, "estimator", device=device)
    batch = (config.replicas, config.batch_size)
    prepared = chosen = estimator or config.make_estimator()
    if isinstance(chosen, Learnable):
        shapes = torch.Size([*batch, *event]), torch.Size([*batch, pixels])
        prepared = chosen.prepare(*shapes, generator)
    for parameter in prepared.parameters():
        if parameter.ndim == 0 or len(parameter) != config.replicas:
            got = f"shape {list(parameter.shape)} from {type(chosen).__name__}"
            raise ValueError(
                f"every parameter of an estimator must have a leading axis of {config.replicas}, "
                f"one per replica, got {got}: make them in its method prepare"
            )
    # The bound always trains its decoder on its own samples.
    extra = config.decoder_samples == "extra" and not prepared.target.subtracts_log_q
    return ExtraSample(prepared) if extra else prepared


def check_replicas(model: DiscreteVAE, replicas: int) -> None:
    """Raise if a model does not have that many replicas."""
    if model.replicas != replicas:
        got = f"got {model.replicas}"
        raise ValueError(f"the model must have {replicas} replicas, as the configuration, {got}")
    if replicas == 1:
        return
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0 or len(parameter) != replicas:
            raise ValueError(
                f"with {replicas} replicas every parameter must have a leading axis of {replicas}, "
                f"got {name} of shape {list(parameter.shape)}: give a function that makes a model "
                "of one replica, as model=, or layers such as arms.bench.models.ReplicaLinear"
            )


def check_kind(model: DiscreteVAE, config: TrainConfig) -> None:
    """Raise if a model that was given is not what the configuration says of it."""
    if config.categories not in (2, model.categories):
        raise ValueError(
            f"the configuration says {config.categories} categories, and the model has "
            f"{model.categories}: give one of them only"
        )
    if len(model.layers) > 1 and not config.layers:
        raise ValueError("a model of several layers needs TrainConfig(layers=...), got no layers")
