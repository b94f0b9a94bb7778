"""Overhead of a sweep in addition to training: seconds per run, and memory of the driver, for each engine.

    python benchmarks/sweep_overhead.py --runs 1000 --engine processes \\
        --output benchmarks/results/sweep_overhead_processes.json

and likewise with `ray`.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time

import torch

from arms.bench import TrainConfig, sweep
from arms.bench.sweeps.engines import make_engine

RESULTS = Path(__file__).parent / "results"


def megabytes() -> float:
    """Return the memory that this process uses now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def print_table() -> None:
    """Print a row for each engine."""
    print(
        "| engine | worker, per run | of which training | CPU of the driver, per run | memory of the driver |"
    )
    print("|---|---|---|---|---|")
    for engine in ("processes", "ray"):
        found = json.loads((RESULTS / f"sweep_overhead_{engine}.json").read_text())
        assert found["done"] == found["runs"] == 1000
        print(
            f"| {engine} | {found['seconds of a worker per run']:.3f} s "
            f"| {found['of which it trains, evaluates and writes']:.3f} s "
            f"| {1000 * found['CPU seconds of the driver per run']:.1f} ms "
            f"| {found['driver MB after a tenth']:.0f} MB, {found['driver MB at the end']:.0f} MB |"
        )


def main() -> None:
    """Train tiny runs, and write down times and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--engine", choices=["processes", "ray"], default="processes")
    parser.add_argument("--output", type=Path)
    parser.add_argument(
        "--markdown", action="store_true", help="print the table of the existing results"
    )
    chosen = parser.parse_args()
    if chosen.markdown:
        print_table()
        return
    wanted = [
        TrainConfig(latents=2, batch_size=2, steps=1, seed=seed) for seed in range(chosen.runs)
    ]
    memory: list[float] = []
    ends: list[float] = []

    def note(line: str) -> None:
        ends.append(perf_counter())
        memory.append(megabytes())

    with tempfile.TemporaryDirectory() as folder:
        with make_engine(chosen.engine, gpus_per_job=0) as engine:
            workers = engine.slots()
        engine, driver = make_engine(chosen.engine, gpus_per_job=0), process_time()
        done = sweep(wanted, folder, engine=engine, notify=note, progress=False)
        driver = process_time() - driver
        inside = sum(
            json.loads(path.read_text())["wall_seconds"]
            for path in Path(folder).glob("*/provenance.json")
        )
    # Measure after the first tenth of the runs, because workers start before.
    first = len(ends) // 10
    each = (ends[-1] - ends[first]) / (len(ends) - 1 - first)
    found = {
        "engine": chosen.engine,
        "runs": chosen.runs,
        "done": len(done),
        "workers": workers,
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "seconds per run": round(each, 4),
        "seconds of a worker per run": round(each * workers, 4),
        "of which it trains, evaluates and writes": round(inside / chosen.runs, 4),
        "CPU seconds of the driver per run": round(driver / chosen.runs, 4),
        "driver MB after a tenth": round(memory[first], 1),
        "driver MB at the end": round(memory[-1], 1),
        "command": " ".join(["python", *sys.argv]),
    }
    text = json.dumps(found, indent=1) + "\n"
    if chosen.output:
        chosen.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
