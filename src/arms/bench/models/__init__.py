"""The discrete VAE and its parts: layers with a replica axis, networks, likelihoods of pixels."""

from arms.bench.models.networks import (
    LIKELIHOODS,
    NETWORKS,
    ReplicaLinear,
    perceptron,
    seeded_generator,
)
from arms.bench.models.user_models import (
    PlainNetwork,
    check_finite,
    check_registered,
    check_savable,
    keep_replicas,
    name_of,
    replicated,
    structure_of,
)
from arms.bench.models.vae import DiscreteVAE, build_vae

__all__ = [
    "LIKELIHOODS",
    "NETWORKS",
    "DiscreteVAE",
    "PlainNetwork",
    "ReplicaLinear",
    "build_vae",
    "check_finite",
    "check_registered",
    "check_savable",
    "keep_replicas",
    "name_of",
    "perceptron",
    "replicated",
    "seeded_generator",
    "structure_of",
]
