"""The schema of a checkpoint: its names, and how the states of runs are cut out and joined.

| name | what | replica axis |
|---|---|---|
| `model.*` | the model's own names | yes |
| `estimator.<i>` | the estimator's parameters | yes |
| `optimizer.<part>.<kind>.<i>` | what the optimiser of a part remembers | yes |
| `mean_grad.<i>` | moving average of the encoder's gradient | yes |
| `sum.<metric>` | of a metric since the last record | yes |
| `generator` | state of the noise, as bytes | no |
| `counts` | steps done, and those in the sums | no |

A user's own model of one replica need not have the axis: a run alone is never cut.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

State: TypeAlias = Mapping[str, Tensor]

MODEL, ESTIMATOR, OPTIMIZER, MEAN_GRADIENT = "model.", "estimator.", "optimizer.", "mean_grad."
SUM, GENERATOR, COUNTS = "sum.", "generator", "counts"


def step_of(state: State) -> int:
    """Return the step at which a checkpoint was made."""
    return int(state[COUNTS][0])


def model_of(state: State) -> dict[str, Tensor]:
    """Return the model's tensors, as its `state_dict` names them."""
    own = {name: tensor for name, tensor in state.items() if name.startswith(MODEL)}
    return {name.removeprefix(MODEL): tensor for name, tensor in own.items()}


def has_replica_axis(name: str) -> bool:
    """Whether the first axis of the tensor of that name is that of replicas; unknown ones raise."""
    if name in (GENERATOR, COUNTS):
        return False
    if name.startswith((MODEL, ESTIMATOR, OPTIMIZER, MEAN_GRADIENT, SUM)):
        return True
    raise ValueError(f"a checkpoint has nothing called {name!r}: another version wrote it")


def of_run(state: State, index: int, runs: int) -> dict[str, Tensor]:
    """Return the state of one of several runs of an ensemble, which could be resumed alone."""
    if runs == 1:  # its tensors may have no replica axis
        return dict(state)
    return {
        name: tensor.chunk(runs)[index] if has_replica_axis(name) else tensor
        for name, tensor in state.items()
    }


def joined(states: Sequence[State], fresh_noise: Callable[[int], Tensor]) -> dict[str, Tensor]:
    """Return the states of several runs, all at one step, as one.

    Runs that were not trained together so far have used different noise. They continue on noise
    that none has seen, `fresh_noise` of their step.
    """
    if len(states) == 1:
        return dict(states[0])
    noises = [state[GENERATOR] for state in states]
    if len({len(noise) for noise in noises}) > 1:
        what = "these runs were begun on different kinds of devices"
        raise ValueError(f"{what}: resume each where it was begun")
    # What has no replica axis is the same in all of them, except the noise.
    whole = {
        name: torch.cat([state[name] for state in states]) if has_replica_axis(name) else tensor
        for name, tensor in states[0].items()
    }
    if not all(torch.equal(noise, noises[0]) for noise in noises):
        whole[GENERATOR] = fresh_noise(step_of(whole))
    return whole


def joined_models(weights: Sequence[State]) -> dict[str, Tensor]:
    """Return the tensors of several built-in models as those of one wider model."""
    return {name: torch.cat([own[name] for own in weights]) for name in weights[0]}


def finite_replicas(weights: State, replicas: int) -> list[bool]:
    """Return of every replica whether all its numbers among a model's tensors are finite."""
    finite = [tensor.reshape(replicas, -1).isfinite().all(1) for tensor in weights.values()]
    found: list[bool] = torch.stack(finite).all(0).tolist()
    return found


def check_fits(state: State, own: State, device: torch.device) -> None:
    """Raise unless a state has all tensors of a trainer's state; sums of newer metrics may lack."""
    if lacking := {name for name in own.keys() - state.keys() if not name.startswith(SUM)}:
        names = ", ".join(sorted(lacking)[:3])
        what = "it is of another configuration or version; train again from the start"
        raise ValueError(f"the checkpoint lacks {names}: {what}")
    # Generators of a CPU and a GPU have states of different lengths, which say different things.
    if state[GENERATOR].shape != own[GENERATOR].shape:
        what = f"the checkpoint was made on another kind of device than {device}"
        raise ValueError(f"{what}: resume it there")
    for name, tensor in own.items():
        expected, got = list(tensor.shape), list(state.get(name, tensor).shape)
        if expected != got:
            raise ValueError(
                f"the checkpoint's {name} must be {expected}, as the model's, got {got}: it is of "
                "another model; train again from the start, or give that one"
            )
