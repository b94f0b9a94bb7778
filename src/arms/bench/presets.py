"""Presets of `arms train`: the protocols of papers, and the best recipe found here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from arms.bench.config import TrainConfig

Fields: TypeAlias = Mapping[str, Any]
"""Fields of a configuration, by name."""
MNIST = "dynamic-mnist"

PAPER: Fields = {"steps": 1_000_000, "replicas": 5, "decoder_samples": "extra"}
"""The paper's protocol: a million steps, five seeds, and the paper's decoder rule."""

FAST: Fields = {
    "estimator": "flips",
    "num_samples": 4,
    "steps": 100_000,
    "replicas": 5,
    "schedule": "cosine",
}
"""The best recipe found: flips, large initial weights, and a large learning rate with a cosine
schedule."""
FAST_SHORT_STEPS = 50_000
FAST_STARTS: Mapping[tuple[str, bool], Fields] = {
    ("linear", True): {"encoder_scale": 4.0, "learning_rate": 0.015},
    ("linear", False): {"encoder_scale": 32.0, "learning_rate": 0.006},
    ("nonlinear", True): {"encoder_scale": 16.0, "learning_rate": 0.005},
    ("nonlinear", False): {"encoder_scale": 1.0, "learning_rate": 0.002},
}
"""The factor on initial weights, and the learning rate, for the estimator flips.

A key is (network, whether training has fewer than FAST_SHORT_STEPS steps).
benchmarks/recipe.py chose the values with one layer of bits. Short training had 10,000 steps
(nonlinear) or 30,000 steps (linear), and long training had 100,000 steps.
"""
FAST_RATES = {"linear": 6e-3, "nonlinear": 3e-3}
"""{network: learning rate} for all estimators except flips, chosen by benchmarks/time_to_bound.py.
"""

_PUBLISHED: Fields = {"batch_size": 100, "inputs": "raw", "prior_learning_rate": 0.0}
RODEO: Fields = {
    **_PUBLISHED,
    "dataset": MNIST,
    "network": "nonlinear",
    "estimator": "rodeo",
    "num_samples": 3,
    "steps": 1_000_000,
    "replicas": 5,
    "learning_rate": 1e-3,
}
"""RODEO's protocol (docs/rodeo.md) for binary pixels and one layer of 200 bits."""
RODEO_LAYERS: Fields = {"network": "linear", "estimator": "disarm", "num_samples": 2}
"""Changes to RODEO for several stochastic layers. The networks then have no hidden layers."""
RODEO_FASHION: Fields = {"learning_rate": 3e-4}
"""Changes to RODEO for binary pixels of Fashion MNIST."""
RODEO_GAUSSIAN: Fields = {"learning_rate": 1e-4}
"""Changes to RODEO for Gaussian pixels."""

REINMAX: Fields = {
    **_PUBLISHED,
    "dataset": MNIST,
    "network": "pyramid",
    "likelihood": "gray",
    "kl": "analytic",
    "estimator": "reinmax",
    "num_samples": 1,
    "steps": 96_000,
    "replicas": 10,
    "learning_rate": 5e-4,
    "categories": 8,
    "latents": 4,
}
"""ReinMax's protocol (docs/reinmax.md)."""
_WARMED: Fields = {"warmup_steps": 2000}
REINMAX_SHAPES: Mapping[tuple[int, int], Fields] = {
    (8, 4): {"learning_rate": 5e-4},
    (4, 24): {"learning_rate": 5e-4, **_WARMED},
    (8, 16): {"learning_rate": 7e-4, **_WARMED},
    (16, 12): {"learning_rate": 7e-4, **_WARMED},
    (64, 8): {"learning_rate": 5e-4, **_WARMED},
    (10, 30): {"learning_rate": 5e-4, **_WARMED},
}
"""Learning rates of ReinMax's scripts, by (categories, latents). Adam with warmup replaces the
scripts' RAdam."""
REINMAX_TEMPERATURES = {(8, 4): 1.3, (10, 30): 1.3}
"""Temperatures of the estimator reinmax, by (categories, latents), where ReinMax's scripts do not
use 1.5."""


def _fast_start(known: Fields) -> Fields:
    network = known["network"] if known["network"] in FAST_RATES else "nonlinear"
    estimator = {"estimator": "midpoint"} if known["layers"] else {}  # flips needs a single layer
    if known["layers"] or known["estimator"] not in ("flips", "flips-ms"):
        return {**estimator, "learning_rate": FAST_RATES[network]}
    start = FAST_STARTS[network, known["steps"] < FAST_SHORT_STEPS]
    return start if known["categories"] == 2 else {**start, "encoder_scale": 1.0}


def _rodeo_variant(known: Fields) -> Fields:
    found = dict(RODEO_LAYERS) if known["layers"] else {}
    if known["likelihood"] == "scaled-gaussian":
        return {**found, **RODEO_GAUSSIAN}
    return {**found, **RODEO_FASHION} if known["dataset"] == "fashion-mnist" else found


def _reinmax_shape(known: Fields) -> Fields:
    shape = known["categories"], known["latents"]
    found = REINMAX_SHAPES.get(shape, {})
    if known["estimator"] != "reinmax":
        return found
    return {**found, "temperature": REINMAX_TEMPERATURES.get(shape, 1.5)}


@dataclass(frozen=True)
class Preset:
    """A preset of `arms train`.

    `base` has the fields with fixed values. `adapt` is a function that takes all fields, and
    returns further fields whose values depend on them.
    """

    base: Fields
    adapt: Callable[[Fields], Fields] = lambda known: {}


PRESETS: Mapping[str, Preset] = {
    "paper": Preset(PAPER),
    "fast": Preset(FAST, _fast_start),
    "rodeo": Preset(RODEO, _rodeo_variant),
    "reinmax": Preset(REINMAX, _reinmax_shape),
}
DEFAULTS: Fields = {field.name: field.default for field in fields(TrainConfig)}


def apply_preset(name: str, given: Fields | None = None) -> TrainConfig:
    """Return the configuration of a preset, with the fields in `given` replaced.

    The fields in `given` override the preset. The preset overrides the defaults of `TrainConfig`.

    >>> config = apply_preset("rodeo", {"dataset": "fashion-mnist", "estimator": "flips"})
    >>> config.learning_rate, config.estimator
    (0.0003, 'flips')
    """
    preset, own = PRESETS[name], given or {}
    return TrainConfig(**{**preset.base, **preset.adapt({**DEFAULTS, **preset.base, **own}), **own})
