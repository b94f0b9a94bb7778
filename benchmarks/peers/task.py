"""The task of all contenders, and how a worker process is driven: what is common to `make peers`.

A step: n = 10 samples of 200 bits for each of 50 binary images of 784 pixels, the ELBO, its gradient, Adam with rate
1e-4 for the networks and plain descent with rate 1e-2 for the logits of the prior.
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
    """One process: what it runs, on which network, and how many replicas of a model it trains at once."""

    name: str
    network: str
    replicas: int
    cores: tuple[int, ...]


def layer_sizes(network: str) -> tuple[list[int], list[int]]:
    """Return the widths of the encoder and of the decoder, inputs and outputs included."""
    hidden = SIZES[network]
    return [PIXELS, *hidden, LATENTS], [LATENTS, *hidden, PIXELS]


def contender() -> Contender:
    """Return the contender that this process is, pinned to its cores; to be called before any other import."""
    fields = json.loads(sys.argv[1])
    found = Contender(**fields | {"cores": tuple(fields["cores"])})
    os.sched_setaffinity(0, found.cores)
    return found


def argument(one: Contender) -> str:
    """Return what `contender` reads back."""
    return json.dumps(asdict(one))


def serve(step: Callable[[], object], finish: Callable[[], object], replicas: int) -> None:
    """Warm up, say so, then time as many steps as each line of the input asks for, per replica."""
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
