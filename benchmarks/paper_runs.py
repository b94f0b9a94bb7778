"""Full runs of the paper's tables, one ensemble after the other: for a GPU machine with torch, numpy and little else.

    python benchmarks/paper_runs.py table2 --networks nonlinear --num-samples 4 10 \\
        --estimators vimco disarm-ms arms-ms-dirichlet --output runs --archives new

It trains what `arms experiments run table2 --scale paper --precision medium` would, restricted to some networks, n,
estimators and data sets, skips what `--results` holds, and after every ensemble writes what has ended as archives, one
per data set and network; called again it resumes. Take an archive into the committed results by
`arms archive results/X.json new/X.json -o results/X.json`.
Two processes on one GPU, one for each n with folders of its own, under NVIDIA's MPS,
gain little more than that one compiles and evaluates while the other trains; more of them gain hardly anything.
"""

import argparse
from collections import defaultdict
from functools import partial
from pathlib import Path

from arms.bench import TrainConfig, sweep
from arms.bench.experiments import EXPERIMENTS, SCALES, configs
from arms.bench.runs.archives import find_runs, write_archive
from arms.bench.runs.ensemble import group_for_ensembles
from arms.bench.sweeps.engines import Here


def wanted_runs(args: argparse.Namespace) -> list[TrainConfig]:
    """Return the runs of the table that were asked for; a value that none of them has is an error."""
    found = configs(args.table, args.scale)
    for field in ("network", "num_samples", "estimator", "dataset"):
        option = field if field == "num_samples" else f"{field}s"
        asked, known = getattr(args, option), {getattr(config, field) for config in found}
        if asked and (unknown := [value for value in asked if value not in known]):
            raise SystemExit(
                f"no run of {args.table} has the {field} {unknown[0]}: choose of {sorted(known)}"
            )
        found = [config for config in found if not asked or getattr(config, field) in asked]
    return found


def write_archives(output: Path, archives: Path) -> None:
    """Write all that has ended in the folder of runs, also in an earlier call, an archive per data set and network."""
    ended = defaultdict(list)
    for run in find_runs(output):
        if run.has_ended():
            config = run.config()
            ended[f"{config.dataset}-{config.network}"].append(run)
    for name, runs in ended.items():
        write_archive(archives / f"{name}.json", runs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=[name for name in EXPERIMENTS if configs(name, "paper")])
    parser.add_argument("--networks", nargs="+", help="all unless given, as the following ones")
    parser.add_argument("--num-samples", type=int, nargs="+")
    parser.add_argument("--estimators", nargs="+")
    parser.add_argument("--datasets", nargs="+")
    parser.add_argument("--scale", choices=SCALES, default="paper")
    parser.add_argument("--results", nargs="*", type=Path, default=[Path("results")])
    parser.add_argument("--output", type=Path, required=True, help="folder of the run directories")
    parser.add_argument(
        "--archives",
        type=Path,
        required=True,
        help="folder for the archives of what has ended there",
    )
    parser.add_argument("--precision", default="medium")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    write_archives(args.output, args.archives)
    train = partial(
        sweep,
        output=args.output,
        engine=Here(args.device),
        results=args.results,
        precision=args.precision,
        checkpoint_seconds=300,
        progress=False,
        notify=partial(print, flush=True),
    )
    for together in group_for_ensembles(wanted_runs(args)):
        train(together)
        write_archives(args.output, args.archives)


if __name__ == "__main__":
    main()
