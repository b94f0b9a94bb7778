"""Full runs by the paper's protocol, all estimators of one network and n packed into one ensemble.

ARMS_DATA_DIR=... python benchmarks/gpu_paper.py --network linear --num-samples 4 --output runs/paper
"""

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import mean
from time import perf_counter

from arms.bench.config import TrainConfig, run_name
from arms.bench.formatting import format_mean_std
from arms.bench.metrics import Record, surviving
from arms.bench.runs.pipeline import train_packed

ESTIMATORS = ("loorf", "disarm", "arms-d", "arms-n", "arms-s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", nargs="+", default=["dynamic-mnist"], help="several are packed together too")
    parser.add_argument("--network", default="linear")
    parser.add_argument("--num-samples", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--decoder-samples", default="extra", help="extra is the paper's rule")
    parser.add_argument("--precision", default="highest", choices=["highest", "high", "medium"])
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    config = TrainConfig(
        network=options.network,
        num_samples=options.num_samples,
        replicas=5,
        steps=options.steps,
        decoder_samples=options.decoder_samples,
        precision=options.precision,
        report_every=10_000,
        evaluate_every=100_000,
        evaluate_images=1000,
    )
    configs = [replace(config, estimator=one, dataset=data) for one in ESTIMATORS for data in options.datasets]
    start = perf_counter()

    def watch(config: TrainConfig, record: Record) -> None:
        if record["step"] % 50_000 == 0 and (elbo := surviving(record["train_elbo"])):
            elapsed = f"{perf_counter() - start:.0f} s"
            print(record["step"], elapsed, config.dataset, config.estimator, f"ELBO {mean(elbo):.2f}", flush=True)

    runs = train_packed(configs, [options.output / run_name(one) for one in configs], watch=watch, tell=print)
    for run in runs:
        result = run.result()
        assert result is not None
        cells = [
            f"{split} K={count} {format_mean_std(values)}"
            for split in ("train", "test")
            for count, values in result["bounds"][split].items()
        ]
        print(options.network, run.config().dataset, run.config().estimator, *cells, sep="  ")
    print(f"done in {perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
