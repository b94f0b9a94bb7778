"""Train on the bound without the direct term, -sum_k (w_k / sum w) grad log q(b_k), which is biased.

    python benchmarks/direct_term.py train --runs direct_term
    python benchmarks/direct_term.py show
    python benchmarks/direct_term.py linear --device cuda
    python benchmarks/direct_term.py show --result benchmarks/results/direct_term_linear.json

The released function for multi-sample ARMS returns the score part only, so training with this function alone omits the
direct term. `train` trains nonlinear VAEs on dynamic MNIST with n = 4, a cosine schedule from 1e-3, and one run per
seed, in about ten minutes per run on one core. Finished runs are not trained again. With `--only`, several processes
share the work, and a last call without it writes the result. Use a separate folder for these runs, because the
config.json of a run named `-score` does not show the missing term.

`linear` trains linear VAEs for 30,000 steps with three seeds, and keeps no runs. It adds estimators that include the
direct term by folding. They are unbiased and have less noise, which separates the effects of noise and bias.
"""

import argparse
import json
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from arms.bench.config import TrainConfig
from arms.bench.data import load
from arms.bench.evaluation import final_bounds
from arms.bench.output import format_mean_std
from arms.bench.training.engine import advance_to
from arms.bench.training.trainer import Trainer
from arms.designs import Draw
from arms.estimators import Estimator
from arms.estimators.bound.slots import direct_term

RESULT = Path(__file__).parent / "results" / "direct_term.json"
LINEAR = RESULT.with_name("direct_term_linear.json")
ESTIMATORS = ("vimco", "disarm-ms", "arms-ms-dirichlet")
N = 4
SHOWN = {
    "train K = 1": ("train", 1),
    f"train K = {N}": ("train", N),
    f"test K = {N}": ("test", N),
    "test K = 100": ("test", 100),
}


@contextmanager
def without_direct_term(config: TrainConfig) -> Iterator[None]:
    """Make an estimator return only its score part."""
    kind: Any = type(config.make_estimator())
    combine = kind.combine

    def score_alone(
        self: Estimator, draw: Draw, values: Tensor, derivatives: Tensor | None = None
    ) -> Tensor:
        bound = self.target.size
        shares = values[:bound].float().softmax(0)
        whole: Tensor = combine(self, draw, values, derivatives)
        return whole - direct_term(draw.latent, draw.points[:bound], shares)

    kind.combine = score_alone
    try:
        yield
    finally:
        kind.combine = combine


def contenders() -> dict[str, tuple[str, bool]]:
    """Return the estimator, and whether it has a direct term, for the name of a folder."""
    return {
        f"{name}{'' if whole else '-score'}": (name, whole)
        for name in ESTIMATORS
        for whole in (True, False)
    }


FOLDED = {f"{name}-folded": (name, True) for name in ESTIMATORS if name != "vimco"}
"""Further contenders of `linear`; VIMCO has nothing to fold."""


def configured(key: str, network: str, steps: int, **fields: Any) -> TrainConfig:
    """Return the configuration of one of the contenders."""
    name, _ = (contenders() | FOLDED)[key]
    return TrainConfig(
        dataset="dynamic-mnist",
        network=network,
        estimator=name,
        num_samples=N,
        steps=steps,
        learning_rate=1e-3,
        schedule="cosine",
        report_every=max(1, steps // 6),
        folded=name == "vimco" or key in FOLDED,
        **fields,
    )


def trained(folder: Path, key: str, seed: int, steps: int, images: int) -> dict[str, object]:
    """Train a run, unless it exists, and return its final bounds."""
    _, whole = contenders()[key]
    from arms.bench.runs.train import train  # imported here, because it needs further packages

    config = configured(key, "nonlinear", steps, seed=seed)
    with nullcontext() if whole else without_direct_term(config):
        run = train(
            config,
            folder / f"{key}-{seed}",
            device="cpu",
            progress=False,
            evaluate=images,
            notify=print,
        )
    result = run.result()
    assert result is not None
    return {
        "estimator": config.label,
        "direct term": whole,
        "seed": seed,
        "bounds": result["bounds"],
    }


def train_linear(args: argparse.Namespace) -> None:
    """Train every contender with the linear network, and write the result."""
    data, rows = load("dynamic-mnist"), []
    known = contenders() | FOLDED
    for key in args.only or known:
        _, whole = known[key]
        config = configured(key, "linear", args.steps, replicas=args.replicas)
        with nullcontext() if whole else without_direct_term(config):
            trainer = Trainer(config, data, args.device)
            for _ in advance_to(trainer, config.steps, config.report_every):
                pass
        bounds = final_bounds(trainer.model, data, config, args.images)["bounds"]
        variance = trainer.gradient_variance().tolist()
        row = {"estimator": config.label, "direct term": whole, "variance": variance}
        rows.append(row | {"seeds": args.replicas, "bounds": bounds})
        print(key, bounds["train"][str(N)], flush=True)
        command = "python benchmarks/direct_term.py " + " ".join(sys.argv[1:])
        content = {"command": command, "steps": args.steps, "device": args.device, "rows": rows}
        args.result.write_text(json.dumps(content, indent=1) + "\n")


def show(result: Path) -> None:
    """Print the table."""
    rows = json.loads(result.read_text())["rows"]
    base = [
        value for row in rows if row["estimator"] == "vimco" for value in row.get("variance", [])
    ]
    more = ["gradient variance relative to VIMCO"] if base else []
    print(f"| n = {N} | direct term | seeds | {' | '.join([*SHOWN, *more])} |")
    print("|---|---|--:|" + "--:|" * len([*SHOWN, *more]))
    labels = dict.fromkeys((row["estimator"], row["direct term"]) for row in rows)
    for name, whole in labels:
        same = [row for row in rows if (row["estimator"], row["direct term"]) == (name, whole)]
        cells = [
            format_mean_std([value for one in same for value in one["bounds"][split][str(k)]])
            for split, k in SHOWN.values()
        ]
        if base:
            own = fmean(value for one in same for value in one["variance"])
            cells.append(f"{own / fmean(base):.2f}")
        seeds = sum(len(one["bounds"]["train"]["1"]) for one in same)
        print(f"| `{name}` | {'yes' if whole else 'no: biased'} | {seeds} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    shown = verbs.add_parser("show")
    shown.add_argument("--result", type=Path, default=RESULT)
    linear = verbs.add_parser("linear")
    linear.add_argument("--result", type=Path, default=LINEAR)
    linear.add_argument("--only", nargs="+", choices=contenders() | FOLDED)
    linear.add_argument("--steps", type=int, default=30_000)
    linear.add_argument("--replicas", type=int, default=3, help="seeds")
    linear.add_argument("--images", type=int, help="number of images per split; all by default")
    linear.add_argument("--device", default="cpu")
    training = verbs.add_parser("train")
    training.add_argument("--runs", type=Path, required=True)
    training.add_argument("--only", nargs="+", choices=contenders())
    training.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    training.add_argument("--steps", type=int, default=60_000)
    training.add_argument(
        "--images", type=int, default=5_000, help="number of images per split in the final bounds"
    )
    args = parser.parse_args()
    if args.verb == "show":
        show(args.result)
        return
    torch.set_num_threads(1)
    if args.verb == "linear":
        train_linear(args)
        return
    rows = [
        trained(args.runs, key, seed, args.steps, args.images)
        for seed in args.seeds
        for key in args.only or contenders()
    ]
    if args.only:
        return
    content = {
        "command": "python benchmarks/direct_term.py " + " ".join(sys.argv[1:]),
        "machine": f"{platform.machine()}, one thread, torch {torch.__version__}",
        "rows": rows,
    }
    RESULT.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
