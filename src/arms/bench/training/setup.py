"""What a trainer is built of: the estimator of a run, and a model that fits its configuration."""

import torch

from arms.bench.config import TrainConfig
from arms.bench.models import DiscreteVAE, seeded_generator
from arms.estimators import Estimator, ExtraSample, Learnable


def prepared_estimator(
    config: TrainConfig,
    event: torch.Size,
    pixels: int,
    device: str,
    estimator: Estimator | None = None,
) -> Estimator:
    """Return the estimator of a run, by default that of its configuration, with fresh parameters."""
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
