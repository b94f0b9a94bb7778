"""Where a GPU's time goes: the kernels of one compiled step, longest first.

    python benchmarks/gpu_profile.py linear,arms-d,10,75,medium,all nonlinear,arms-d,10,75,medium,all

A run is network, estimator, n, replicas, precision, decoder rule. Made-up images of MNIST's shape.
"""

import sys
from collections import defaultdict
from time import perf_counter

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile
from train_step import grey_images

from arms.bench.config import TrainConfig
from arms.bench.training.engine import Engine
from arms.bench.training.trainer import Trainer

STEPS = 20
SHOWN = 30


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
        raise SystemExit("this measures a GPU, and there is none here")
    for run in sys.argv[1:]:
        network, estimator, n, replicas, precision, rule = run.split(",")
        config = TrainConfig(
            network=network,
            estimator=estimator,
            num_samples=int(n),
            replicas=int(replicas),
            precision=precision,  # type: ignore[arg-type]
            decoder_samples=rule,  # type: ignore[arg-type]
        )
        engine = Engine(Trainer(config, grey_images(), "cuda"))
        engine.advance(STEPS)
        torch.cuda.synchronize()
        start = perf_counter()
        engine.advance(50 * STEPS)
        torch.cuda.synchronize()
        step = (perf_counter() - start) / (50 * STEPS)
        print(f"{run}: {1e6 * step:.1f} us/step, {config.replicas / step:.0f} run-steps/s")
        for name, times in sorted(kernels(engine).items(), key=lambda item: -sum(item[1]))[:SHOWN]:
            print(f"  {sum(times) / STEPS:8.2f} us {len(times) / STEPS:5.1f} x  {name[:100]}")
        torch.compiler.reset()


if __name__ == "__main__":
    main()
