"""Random numbers from an explicit generator, and generators that differ between ranks."""

import os
import warnings
from functools import cache
from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist
from torch import Generator, Tensor

from arms.arguments import as_count, in_function_transform


def explain_randomness(error: RuntimeError) -> None:
    """If `error` says that vmap refuses random numbers, raise an error that says what to do."""
    if "randomness" in str(error) and in_function_transform():
        remedy = 'pass randomness="different" to vmap or jacfwd'
        hessian = "hessian cannot work, because an estimate has no second derivatives"
        raise ValueError(f"vmap refuses random numbers by default: {remedy}; {hessian}") from None


def uniform(n: int, like: Tensor, generator: Generator | None) -> Tensor:
    """Draw `[n, *like.shape]` uniform numbers on [0, 1), in the dtype of `like`."""
    return torch.rand(n, *like.shape, **_options(like, generator))


def normal(n: int, like: Tensor, generator: Generator | None) -> Tensor:
    """Draw `[n, *like.shape]` standard normal numbers, in the dtype of `like`."""
    return torch.randn(n, *like.shape, **_options(like, generator))


def _options(like: Tensor, generator: Generator | None) -> dict[str, Any]:
    # torch.compile specializes on a single batch size if it sees `generator=None`.
    if generator is None:
        return {"dtype": like.dtype, "device": like.device}
    return {"dtype": like.dtype, "device": like.device, "generator": generator}


def indicator_below(noise: Tensor, threshold: Tensor) -> Tensor:
    """Return 1 where noise < threshold and 0 elsewhere. The noise may be overwritten."""
    if torch.compiler.is_compiling() or in_function_transform():
        return (noise < threshold).to(noise.dtype)
    return noise.lt_(threshold)  # needs no conversion and no further tensor


def indicator(x: Tensor) -> Tensor:
    """Return 1 where x > 0 and 0 elsewhere, in the dtype of x."""
    if torch.compiler.is_compiling():
        return (x > 0).to(x.dtype)
    return x.sign().relu_()  # a comparison and a conversion take three times as long on a CPU


def rank_generator(
    seed: int, device: torch.device | str = "cpu", rank: int | None = None
) -> Generator:
    """Return a generator that draws different random numbers on every rank.

    Pass it as the argument `generator` of any function of this library.

    Args:
        seed: The seed, the same number on all ranks.
        device: The device of the logits.
        rank: The rank of this process. The default is the rank in PyTorch's process group. Without
            a group, the default is the environment variable RANK, or 0.

    >>> generators = [rank_generator(0, rank=rank) for rank in (0, 0, 1)]
    >>> same, again, other = (torch.rand(1, generator=one).item() for one in generators)
    >>> same == again, same == other
    (True, False)
    """
    if rank is None:
        grouped = dist.is_available() and dist.is_initialized()
        # torchrun sets RANK before the process group exists.
        rank = dist.get_rank() if grouped else int(os.environ.get("RANK", "0"))
    key = f"{as_count(seed, 0, 'seed')}/{as_count(rank, 0, 'rank')}"
    digest = sha256(key.encode()).digest()
    return Generator(device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)


GlobalStates = dict[torch.device, Tensor]


def global_states(device: torch.device) -> GlobalStates:
    """Return the states of PyTorch's global generators for the CPU and for `device`."""
    cpu = torch.device("cpu")
    # The state cannot be read while a CUDA graph is captured.
    captured = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    every = {cpu} if captured else {cpu, device}
    return {one: _global_generator(one).get_rng_state(*_which(one)) for one in every}


def restore_global_states(states: GlobalStates) -> None:
    """Set PyTorch's global generators to states that `global_states` returned."""
    for device, state in states.items():
        _global_generator(device).set_rng_state(state, *_which(device))


def _global_generator(device: torch.device) -> Any:
    return torch if device.type == "cpu" else torch.get_device_module(device)


def _which(device: torch.device) -> list[torch.device]:
    return [] if device.type in ("cpu", "mps") else [device]  # there is only one CPU and one MPS


HAS_RANKS = dist.is_available()


def warn_if_ranks_share_noise(device: torch.device) -> None:
    """Warn, once per process, if two ranks have global generators in the same state."""
    if HAS_RANKS and dist.is_initialized() and not torch.compiler.is_compiling():
        _compare(device.type)


@cache
def _compare(device: str) -> None:
    store_of = getattr(dist.distributed_c10d, "_get_default_store", None)
    unreadable = device == "cuda" and torch.cuda.is_current_stream_capturing()
    if store_of is None or dist.get_world_size() == 1 or unreadable:
        return
    state = _global_generator(torch.device(device)).get_rng_state()
    key = f"arms/noise/{device}/{sha256(state.numpy().tobytes()).hexdigest()}"
    if store_of().add(key, 1) > 1:  # another rank has added this key; no rank waits
        problem = f"rank {dist.get_rank()} draws the same random numbers as another rank"
        advice = "pass generator=arms.rank_generator(seed, device)"
        warnings.warn(f"{problem}: {advice}", stacklevel=6)  # points to the user's call
