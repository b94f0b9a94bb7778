"""Code that all contenders of `make peers` share: the task, and the protocol of worker processes.

A step draws n = 10 samples of 200 bits for each of 50 binary images of 784 pixels, and computes the ELBO and its
gradient. The networks are updated by Adam with rate 1e-4, and the logits of the prior by SGD with rate 1e-2.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import perf_counter

SAMPLES, BATCH, PIXELS, LATENTS, SLOPE = 10, 50, 784, 200, 0.3
SIZES = {"linear": (), "nonlinear": (200, 200)}
"""Widths of the hidden layers of the encoder and of the decoder."""


@dataclass(frozen=True)
class Contender:
    """A process: its implementation, its network, and the number of replicas that it trains at once."""

    name: str
    network: str
    replicas: int
    cores: tuple[int, ...]


def layer_sizes(network: str) -> tuple[list[int], list[int]]:
    """Return the widths of the encoder and of the decoder, inputs and outputs included."""
    hidden = SIZES[network]
    return [PIXELS, *hidden, LATENTS], [LATENTS, *hidden, PIXELS]


def contender() -> Contender:
    """Pin this process to its cores, and return its contender. Call this function before other imports."""
    fields = json.loads(sys.argv[1])
    found = Contender(**fields | {"cores": tuple(fields["cores"])})
    os.sched_setaffinity(0, found.cores)
    return found


def argument(one: Contender) -> str:
    """Return the arguments that `contender` reads."""
    return json.dumps(asdict(one))


def serve(step: Callable[[], object], finish: Callable[[], object], replicas: int) -> None:
    """Warm up and report it, then time as many steps as each input line requests, per replica."""
    for _ in range(5):
        step()
    finish()
    print("ready", flush=True)
    for line in sys.stdin:
        count, start = int(line), perf_counter()
        for _ in range(count):
            step()
        finish()
        print((perf_counter() - start) / count / replicas, flush=True)
