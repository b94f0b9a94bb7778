"""The schema of a checkpoint."""

from collections.abc import Mapping

from torch import Tensor


def step_of(state: Mapping[str, Tensor]) -> int:
    """Return the step at which a checkpoint was made."""
    return int(state["counts"][0])


def part_of_state(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors of a state whose name begins so, by the rest of their name."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
