"""Noise of the ranks of a distributed training: each must have its own, or averaging over them averages nothing."""

import os
import warnings
from functools import cache
from hashlib import sha256

import torch
import torch.distributed as dist
from torch import Generator

from arms.arguments import as_count

__all__ = ["rank_generator", "warn_if_ranks_share_noise"]


def rank_generator(seed: int, device: torch.device | str = "cpu", rank: int | None = None) -> Generator:
    """Return a generator whose noise differs from rank to rank, for the `generator` of any call.

    Args:
        seed: One number for all ranks; another number is other noise for each.
        device: Where the logits are.
        rank: Of this process; unless given, that of PyTorch's process group, or RANK of the environment, or 0.

    >>> generators = [rank_generator(0, rank=rank) for rank in (0, 0, 1)]
    >>> same, again, other = (torch.rand(1, generator=generator).item() for generator in generators)
    >>> same == again, same == other
    (True, False)
    """
    own = _rank() if rank is None else as_count(rank, 0, "rank")
    digest = sha256(f"{as_count(seed, 0, 'seed')}/{own}".encode()).digest()
    return Generator(device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def _rank() -> int:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ.get("RANK", "0"))  # torchrun sets it before there is a group


def warn_if_ranks_share_noise(device: torch.device) -> None:
    """Warn, once per process, if another rank has PyTorch's global generator in the state in which it is here.

    It waits for no other rank: whoever comes second to the store of the process group sees it.

    Args:
        device: On which noise is about to be drawn.
    """
    if dist.is_available() and dist.is_initialized() and not torch.compiler.is_compiling():
        _compare(device.type)


@cache
def _compare(device: str) -> None:
    store_of = getattr(dist.distributed_c10d, "_get_default_store", None)
    if store_of is None or dist.get_world_size() == 1:
        return
    if device == "cuda" and torch.cuda.is_current_stream_capturing():  # the state cannot be read now
        return
    state = torch.get_rng_state() if device == "cpu" else torch.get_device_module(device).get_rng_state()
    if store_of().add(f"arms/noise/{device}/{sha256(state.numpy().tobytes()).hexdigest()}", 1) > 1:
        warnings.warn(
            f"rank {dist.get_rank()} draws the same noise as another rank, as both were seeded alike: averaged over "
            "ranks, gradients are as noisy as those of one; give generator=arms.rank_generator(seed, device)",
            stacklevel=6,  # whoever called arms.expectation
        )
