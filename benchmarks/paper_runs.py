"""Full runs of the paper's tables, one ensemble after the other: for a GPU machine with torch, numpy and little else.

    python benchmarks/paper_runs.py table2 --networks nonlinear --num-samples 4 10 \\
        --estimators vimco disarm-ms-paper arms-ms-d-paper --output runs --packs new

It trains what `arms experiments run table2 --scale paper --precision medium` would, restricted to some networks, n,
estimators and data sets, skips what `--results` holds, and after every ensemble writes what is finished as packs, one
per data set and network. Take a pack into the committed results by `arms pack results/X.json new/X.json -o
results/X.json`. Two processes on one GPU, one for each n under NVIDIA's MPS, gain
little more than that one compiles and evaluates while the other trains; more of them gain hardly anything.
"""

import argparse
from pathlib import Path

from arms.bench.experiments import configs
from arms.bench.runs.directory import Run
from arms.bench.runs.packs import write_pack
from arms.bench.runs.pipeline import train_together
from arms.bench.sweeps.jobs import plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table")
    parser.add_argument("--networks", nargs="+", required=True)
    parser.add_argument("--num-samples", type=int, nargs="+", required=True)
    parser.add_argument("--estimators", nargs="+", required=True)
    parser.add_argument("--datasets", nargs="+", default=["dynamic-mnist", "fashion-mnist", "omniglot"])
    parser.add_argument("--results", nargs="*", type=Path, default=[Path("results")])
    parser.add_argument("--output", type=Path, required=True, help="folder of the run directories")
    parser.add_argument("--packs", type=Path, required=True, help="folder for the packs of finished runs")
    parser.add_argument("--precision", default="medium")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    wanted = [
        config
        for config in configs(args.table, "paper")
        if config.network in args.networks
        and config.num_samples in args.num_samples
        and config.estimator in args.estimators
        and config.dataset in args.datasets
    ]
    jobs = plan(wanted, args.output, results=args.results, precision=args.precision, on_gpu=True)
    args.packs.mkdir(parents=True, exist_ok=True)
    finished: dict[str, list[Run]] = {}
    for job in jobs:
        print(job.line(), flush=True)
        tasks = job.rest
        if tasks:
            runs = train_together(
                [task.config for task in tasks],
                [task.path for task in tasks],
                device=args.device,
                checkpoint_seconds=300,
                progress=False,
                notify=lambda line: print(line, flush=True),
            )
            for task, run in zip(tasks, runs, strict=True):
                finished.setdefault(f"{task.config.dataset}-{task.config.network}", []).append(run)
            for name, own in finished.items():
                write_pack(args.packs / f"{name}.json", own)


if __name__ == "__main__":
    main()
