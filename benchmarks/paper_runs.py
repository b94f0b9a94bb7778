"""Full runs of the paper's tables, one ensemble at a time: for a GPU machine that has torch, numpy and little else.

    python benchmarks/paper_runs.py table2 --network linear --num-samples 4 --estimators vimco \\
        --output runs --pack new.json

It trains what `arms experiments run table2 --scale paper --precision medium` would, restricted to one network, one n
and some estimators and data sets, skips what `--results` holds, and writes the finished runs as one pack. Several
processes share a GPU well under NVIDIA's MPS, since one ensemble of small networks does not fill it. Take a pack into
the committed results by `arms pack results/X.json new.json -o results/X.json`.
"""

import argparse
from pathlib import Path

from arms.bench.experiments import configs
from arms.bench.runs.packs import write_pack
from arms.bench.runs.pipeline import train_together
from arms.bench.sweeps.jobs import plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table")
    parser.add_argument("--network", required=True)
    parser.add_argument("--num-samples", type=int, required=True)
    parser.add_argument("--estimators", nargs="+", required=True)
    parser.add_argument("--datasets", nargs="+", default=["dynamic-mnist", "fashion-mnist", "omniglot"])
    parser.add_argument("--results", nargs="*", type=Path, default=[Path("results")])
    parser.add_argument("--output", type=Path, required=True, help="folder of the run directories")
    parser.add_argument("--pack", type=Path, required=True, help="file for the finished runs")
    parser.add_argument("--precision", default="medium")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    wanted = [
        config
        for config in configs(args.table, "paper")
        if (config.network, config.num_samples) == (args.network, args.num_samples)
        and config.estimator in args.estimators
        and config.dataset in args.datasets
    ]
    jobs = plan(wanted, args.output, results=args.results, precision=args.precision, on_gpu=True)
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
            write_pack(args.pack, runs)
            print(f"wrote {args.pack}", flush=True)


if __name__ == "__main__":
    main()
