"""What training takes on a GPU, from committed measurements."""

from collections.abc import Mapping
from itertools import pairwise

from arms.bench.config import TrainConfig

__all__ = ["BUDGETS", "DIFFERENTIATED_TWICE", "RELAX", "RELAX_REPLICAS", "STEP", "step_microseconds"]

# Microseconds per step on one H200 at precision `medium`: {network: {replicas: (with n = 4, with n = 10)}}, arms-d of
# benchmarks/results/gpu_step_n4.json and gpu_step_n10.json. The other plain estimators and the bounds' are within a
# sixth of it (gpu_packs.json, gpu_estimators_r25.json). A test compares these numbers with the files.
STEP: Mapping[str, Mapping[int, tuple[float, float]]] = {
    "linear": {1: (49.51, 52.88), 5: (78.89, 96.75), 25: (226.69, 236.97), 75: (467.33, 561.34)},
    "nonlinear": {1: (117.19, 122.16), 5: (168.89, 197.53), 25: (382.16, 439.08), 75: (809.79, 1027.56)},
}
# The same for relax with 15 replicas (gpu_packs.json), which differentiates twice.
RELAX_REPLICAS = 15
RELAX: Mapping[str, tuple[float, float]] = {"linear": (445.29, 693.99), "nonlinear": (708.29, 1004.84)}
DIFFERENTIATED_TWICE = ("rebar", "relax")
BUDGETS = (4, 10)


def step_microseconds(config: TrainConfig, replicas: int) -> float | None:
    """Return about how long a step of an ensemble takes on a GPU, None for a model of another size than was measured.

    Args:
        config: One of the ensemble's runs.
        replicas: Replicas of the whole ensemble.
    """
    if (config.latents, config.batch_size, config.layers) != (200, 50, ()) or config.dataset == "digits":
        return None
    at = [_at_replicas(config.network, replicas, column) for column in range(2)]
    if config.estimator in DIFFERENTIATED_TWICE:
        measured = [_at_replicas(config.network, RELAX_REPLICAS, column) for column in range(2)]
        at = [RELAX[config.network][column] * at[column] / measured[column] for column in range(2)]
    low, high = BUDGETS
    return at[0] + (at[1] - at[0]) * (config.num_samples - low) / (high - low)


def _at_replicas(network: str, replicas: int, column: int) -> float:
    """Interpolate between measured numbers of replicas; beyond the most, a step takes as much longer as it is wider."""
    points = [(count, times[column]) for count, times in STEP[network].items()]
    if replicas >= points[-1][0]:
        return points[-1][1] * replicas / points[-1][0]
    (left, fast), (right, slow) = next(pair for pair in pairwise(points) if pair[0][0] <= replicas < pair[1][0])
    return fast + (slow - fast) * (replicas - left) / (right - left)
