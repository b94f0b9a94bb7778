"""What an estimator of the bound learns without the direct term, -sum_k (w_k / sum w) grad log q(b_k), which is biased.

    python benchmarks/direct_term.py train --runs direct_term
    python benchmarks/direct_term.py show

The released function for multi-sample ARMS returns the score part alone; whoever differentiates nothing else trains
like that. Nonlinear VAEs on dynamic MNIST with n = 4, a cosine from 1e-3, one run per seed: about ten minutes each on a
core. Runs that are finished are not trained again; with `--only`, several processes share the work, and a last call
without it writes the result. Keep the folder of these runs apart: what says `-score` is not what its config.json says.
"""

import argparse
import json
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arms.bench.config import TrainConfig
from arms.bench.output import format_mean_std
from arms.bench.runs.train import train
from arms.designs import Draw
from arms.estimators import Estimator
from arms.estimators.bound.slots import direct_term

RESULT = Path(__file__).parent / "results" / "direct_term.json"
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
    """Have an estimator return its score part alone."""
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
    """Return estimator and whether it has its direct term, by the name of a folder."""
    return {
        f"{name}{'' if whole else '-score'}": (name, whole)
        for name in ESTIMATORS
        for whole in (True, False)
    }


def trained(folder: Path, key: str, seed: int, steps: int, images: int) -> dict[str, object]:
    """Train a run, unless it is there; return its final bounds."""
    name, whole = contenders()[key]
    config = TrainConfig(
        dataset="dynamic-mnist",
        network="nonlinear",
        estimator=name,
        num_samples=N,
        steps=steps,
        seed=seed,
        learning_rate=1e-3,
        schedule="cosine",
        report_every=steps // 6,
        folded=name == "vimco",
    )
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


def show() -> None:
    """Print the table."""
    rows = json.loads(RESULT.read_text())["rows"]
    print(f"| n = {N} | direct term | seeds | {' | '.join(SHOWN)} |")
    print("|---|---|--:|" + "--:|" * len(SHOWN))
    labels = dict.fromkeys((row["estimator"], row["direct term"]) for row in rows)
    for name, whole in labels:
        same = [
            row["bounds"] for row in rows if (row["estimator"], row["direct term"]) == (name, whole)
        ]
        if same:
            cells = [
                format_mean_std([one[split][str(k)][0] for one in same])
                for split, k in SHOWN.values()
            ]
            print(
                f"| `{name}` | {'yes' if whole else 'no: biased'} | {len(same)} | {' | '.join(cells)} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("show")
    training = verbs.add_parser("train")
    training.add_argument("--runs", type=Path, required=True)
    training.add_argument("--only", nargs="+", choices=contenders())
    training.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    training.add_argument("--steps", type=int, default=60_000)
    training.add_argument(
        "--images", type=int, default=5_000, help="of each split in the final bounds"
    )
    args = parser.parse_args()
    if args.verb == "show":
        show()
        return
    torch.set_num_threads(1)
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
