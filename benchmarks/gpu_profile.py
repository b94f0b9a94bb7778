"""Profile one compiled training step on a GPU: list its kernels, the slowest first.

    python benchmarks/gpu_profile.py linear,arms-dirichlet,10,75,medium,all nonlinear,loorf+disarm,10,50,medium,extra

A run is network, estimators joined by +, n, replicas, precision, decoder rule. Images are random, in MNIST's shape.
"""

import sys
from collections import defaultdict

import torch
from gpu_step import build, measure
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from arms.bench.training.engine import Engine, free_memory

STEPS = 20
SHOWN = 40


def kernels(engine: Engine) -> dict[str, list[float]]:
    """Microseconds of every launch, by kernel."""
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        engine.advance(STEPS)
        torch.cuda.synchronize()
    times: dict[str, list[float]] = defaultdict(list)
    for event in recorded.events() or []:
        if event.device_type == DeviceType.CUDA:
            times[event.name].append(event.device_time_total)
    return times


def main() -> None:
    if not sys.argv[1:] or not all(run.count(",") == 5 for run in sys.argv[1:]):
        raise SystemExit(__doc__)
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU, got a machine without one")
    for run in sys.argv[1:]:
        network, estimators, n, replicas, precision, rule = run.split(",")
        engine = build(network, estimators, int(n), int(replicas), precision, rule)
        step = measure(engine, 0.3)
        print(f"{run}: {1e6 * step:.1f} us/step, {int(replicas) / step:.0f} run-steps/s")
        found = kernels(engine)
        total, count = (sum(map(of, found.values())) / STEPS for of in (sum, len))
        print(f"  {total:8.2f} us in {count:.0f} kernels")
        for name, times in sorted(found.items(), key=lambda item: -sum(item[1]))[:SHOWN]:
            print(f"  {sum(times) / STEPS:8.2f} us {len(times) / STEPS:5.1f} x  {name[:100]}")
        del engine
        free_memory()


if __name__ == "__main__":
    main()
