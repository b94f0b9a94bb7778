"""Time a training step of this package, hand-written loops, JAX and NumPyro, in wall milliseconds per replica.

    make peers

Every contender has a separate process, pinned to one or two cores. The contenders take turns: within a round, each
makes a few steps while the others wait. During every turn, the CPU use of other processes is measured. Disturbed turns
are repeated. If there are too many, no result is written. Times are medians over rounds.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter

from task import SIZES, Contender, argument

HERE = Path(__file__).parent
ONE, FIVE = (1,), (1, 5)
CONTENDERS: dict[str, tuple[int, ...]] = {
    "products": ONE,
    "products, torch.mm": ONE,
    "arms train: loorf": FIVE,
    "arms train: arms": FIVE,
    "arms train: midpoint": ONE,
    "arms.expectation: loorf": ONE,
    "arms.expectation: arms": ONE,
    "by hand, eager": ONE,
    "by hand, compiled": ONE,
    "JAX": FIVE,
    "NumPyro": FIVE,
}
"""The contenders, by number of replicas."""
TICKS = os.sysconf("SC_CLK_TCK")
SECONDS = 0.4
"""Duration of a turn; it must be long, because the system counts CPU time in hundredths of a second."""
MOST_TRIES = 4


class BusyError(Exception):
    """Other processes used the machine too much."""


@dataclass
class Worker:
    """A contender's process, and its times in seconds per step and replica."""

    contender: Contender
    process: "subprocess.Popen[str]"
    steps: int = 1
    times: list[float] = field(default_factory=list)
    disturbed: int = 0

    def read(self) -> str:
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            raise SystemExit(
                f"the process of {self.contender} ended: run its file alone to see why"
            )
        return line

    def run(self, steps: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return float(self.read())

    def calibrate(self) -> None:
        """Choose the number of steps per turn."""
        seconds = min(self.run(2) for _ in range(3)) * self.contender.replicas
        self.steps = max(2, round(SECONDS / seconds))

    def take_turn(self, most_foreign: float) -> None:
        """Time some steps, and repeat this if other processes used the machine."""
        for _ in range(MOST_TRIES):
            before, start = busy_seconds(self.process.pid), perf_counter()
            seconds = self.run(self.steps)
            after, wall = busy_seconds(self.process.pid), perf_counter() - start
            # CPU times are accurate to a hundredth of a second.
            if after - before <= most_foreign * wall + 2 / TICKS:
                self.times.append(seconds)
                return
            self.disturbed += 1


def busy_seconds(worker: int) -> float:
    """Return the CPU time so far of all processes except a worker and this process."""
    first = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _, _, interrupts, soft, stolen = (int(one) for one in first[:8])
    total = user + nice + system + interrupts + soft + stolen
    return (total - _ticks_of(worker) - _ticks_of(os.getpid())) / TICKS


def _ticks_of(process: int) -> int:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@contextmanager
def workers(contenders: Sequence[Contender]) -> Iterator[list[Worker]]:
    """Start all workers one after the other, and stop them at the end."""
    started: list[Worker] = []
    try:
        for one in contenders:
            own = "jax" if one.name in ("JAX", "NumPyro") else "torch"
            command = [sys.executable, str(HERE / f"{own}_worker.py"), argument(one)]
            environment = os.environ | {"OMP_NUM_THREADS": str(len(one.cores))}
            process = subprocess.Popen(  # noqa: S603
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
            started.append(Worker(one, process))
            started[-1].read()
            print(f"  {one.name}, R = {one.replicas}, is ready", flush=True)
        yield started
    finally:
        for worker in started:
            worker.process.kill()
            worker.process.wait()


def race(
    cores: tuple[int, ...], network: str, names: Sequence[str], rounds: int, most_foreign: float
) -> list[dict[str, object]]:
    """Return one row per contender on these cores and this network."""
    contenders = [
        Contender(name, network, replicas, cores) for name in names for replicas in CONTENDERS[name]
    ]
    with workers(contenders) as started:
        for worker in started:
            worker.calibrate()
        for _ in range(rounds):
            for worker in started:
                worker.take_turn(most_foreign)
    if too_few := [one.contender.name for one in started if len(one.times) < 0.75 * rounds]:
        raise BusyError(f"too many turns of {', '.join(dict.fromkeys(too_few))} were disturbed")
    floor = median(started[0].times)
    return [
        {
            "contender": worker.contender.name,
            "R": worker.contender.replicas,
            "network": network,
            "cores": len(cores),
            "ms": round(1e3 * median(worker.times), 4),
            "fastest ms": round(1e3 * min(worker.times), 4),
            "time / products": round(median(worker.times) / floor, 4),
            "rounds": len(worker.times),
            "disturbed turns": worker.disturbed,
        }
        for worker in started
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument(
        "--cores", type=int, nargs="+", default=[1, 2], help="numbers of cores to pin to"
    )
    parser.add_argument("--networks", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument(
        "--most-foreign",
        type=float,
        default=0.05,
        help="the share of one core that other processes may use during a turn",
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    names = ["products", *(name for name in options.contenders if name != "products")]
    here = sorted(os.sched_getaffinity(0))
    if len(here) < max(options.cores):
        raise SystemExit(
            f"--cores must be at most {len(here)}, the number of cores, got {max(options.cores)}"
        )
    rows: list[dict[str, object]] = []
    for network, count in product(options.networks, options.cores):
        print(f"{network}, {count} core{'s' * (count > 1)}", flush=True)
        cores = tuple(here[-count:])  # the first core serves most interrupts
        try:
            found = race(cores, network, names, options.rounds, options.most_foreign)
        except BusyError as error:
            print(f"no result was written, because the machine was busy: {error}", file=sys.stderr)
            raise SystemExit(2) from None
        for row in found:
            where = f"{row['contender']}, R = {row['R']}"
            print(f"  {where:<36} {row['ms']:>8} ms {row['time / products']:>8} x products")
        rows += found
    if options.output:
        packages = ("torch", "jax", "numpyro", "optax", "numpy")
        found_versions = {name: version(name) for name in packages}
        content = {
            "command": "make peers",
            "rounds": options.rounds,
            "processor": processor(),
            "python": platform.python_version(),
            **found_versions,
            "rows": rows,
        }
        options.output.write_text(json.dumps(content, indent=1) + "\n")


def processor() -> str:
    """Return the system's name of the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


if __name__ == "__main__":
    main()
