"""Variance of estimators on small and difficult objectives, relative to LOORF with the same number of evaluations.

    python benchmarks/small_problems.py
    python benchmarks/small_problems.py --markdown

Rows of a batch have independent standard normal logits, times a scale, and one objective. The variance is summed over
all logits. `tail` is the share of the largest hundredth of a row's estimates in the variance, averaged over rows.
Objectives of d bits, with 20 units and normal weights:

    smooth:  v . tanh(2 W b / sqrt(d) + c)
    kinked:  the same with ReLUs of 4 (W (b - 1/2)) / sqrt(d) + c
    steep:   like smooth, with the factor 20 instead of 2
    b^10:    like smooth, as a function of b^10: derivatives are ten times too large at 1, and 0 at 0
    table:   a random value for each state of the first twelve bits, without derivatives
    steep 8, table 8: functions of the first eight of fifty bits
"""

import argparse
import json
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor
from trained_models import quotient, rounded, tail_share, variance, write

import arms

KINDS = ["smooth", "kinked", "steep", "b^10", "table"]
LATENTS = [1, 2, 5, 12, 50]
USED = 8
CASES = [*product(KINDS, LATENTS), (f"steep {USED}", 50), (f"table {USED}", 50)]
ROWS = [64, 8]
CONTENDERS = [
    ("flips", 6),
    ("flips, safe=False", 6),
    ("midpoint", 6),
    ("arms", 6),
    ("arms-taylor", 6),
]
BETWEEN = ("midpoint", "arms-taylor")
"""Estimators that differentiate between states, where the table is undefined."""
AT_ONCE = 20
RESULTS = Path(__file__).parent / "results" / "small_problems.json"


def make_objective(kind: str, d: int) -> Callable[[Tensor], Tensor]:
    name, *of_first = kind.split()
    if of_first:
        some = make_objective(name, USED)
        return lambda b: some(b[..., :USED])
    generator = Generator().manual_seed(d)
    inner, outer, shift = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((d, 20), (20,), (20,))
    )
    inner = inner / d**0.5
    used = min(d, 12)
    table = torch.randn(2**used, generator=generator, dtype=torch.float64)
    powers = 2.0 ** torch.arange(used, dtype=torch.float64)
    return {
        "smooth": lambda b: torch.tanh(2 * b @ inner + shift) @ outer,
        "kinked": lambda b: torch.relu(4 * (b - 0.5) @ inner + shift) @ outer,
        "steep": lambda b: torch.tanh(20 * b @ inner + shift) @ outer,
        "b^10": lambda b: torch.tanh(2 * b**10 @ inner + shift) @ outer,
        "table": lambda b: table[(b[..., :used].detach() @ powers).round().long()] + 0 * b.sum(-1),
    }[kind]


def draw(name: str, evaluations: int, f: Any, logits: Tensor, draws: int, g: Generator) -> Tensor:
    plain, *unsafe = name.split(", ")
    options = {"safe": False} if unsafe else {}
    estimator = arms.as_estimator(plain, evaluations=evaluations, **options)
    batch = logits.expand(AT_ONCE, *logits.shape)
    with torch.no_grad():
        calls = [estimator(f, batch, g, validate=False).grad for _ in range(draws // AT_ONCE)]
    return torch.cat(calls)


def measure(kind: str, d: int, rows: int, draws: int, scale: float) -> list[dict[str, Any]]:
    g = Generator().manual_seed(1000 * d + rows)
    logits = scale * torch.randn(rows, d, generator=g, dtype=torch.float64)
    f, units, found = make_objective(kind, d), {}, []
    for name, evaluations in CONTENDERS:
        if kind.startswith("table") and name in BETWEEN:
            continue
        made = arms.as_estimator(
            name.split(",")[0], evaluations=evaluations
        ).design.needs.evaluations
        assert made is not None
        if made not in units:
            units[made] = variance(draw("loorf", made, f, logits, 4 * draws, g))
        estimates = draw(name, evaluations, f, logits, draws, g)
        of_name = variance(estimates)
        ratio = quotient(of_name, units[made]) if of_name.value > 1e-25 else None
        found.append(
            {
                "objective": kind, "latents": d, "rows": rows, "estimator": name, "evaluations": made,
                "ratio": rounded(ratio.value) if ratio else 0.0, "ratio_error": rounded(ratio.error) if ratio else 0.0,
                "tail": rounded(tail_share(estimates)) if ratio else None,
            }
        )  # fmt: skip
    return found


def markdown(result: dict[str, Any]) -> str:
    """Return a table for each number of rows: ratios at every d."""
    names = [name for name, _ in CONTENDERS]
    lines = []
    for rows in ROWS:
        lines += [f"{rows} rows: variance / LOORF's, d = {' / '.join(map(str, LATENTS))}", ""]
        lines += [f"| | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
        for kind in dict.fromkeys(kind for kind, _ in CASES):
            cells = []
            for name in names:
                mine = {
                    row["latents"]: row["ratio"]
                    for row in result["rows"]
                    if (row["objective"], row["rows"], row["estimator"]) == (kind, rows, name)
                }
                cells.append(" / ".join(f"{one:.2g}" for one in mine.values()) if mine else "-")
            lines.append(f"| {kind} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=400, help=f"a multiple of {AT_ONCE}")
    parser.add_argument("--scale", type=float, default=1.0, help="of the logits")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument(
        "--markdown", action="store_true", help="print the tables of the existing results"
    )
    options = parser.parse_args()
    if options.markdown:
        print(markdown(json.loads(options.output.read_text())))
        return
    if options.draws < 2 * AT_ONCE or options.draws % AT_ONCE:
        parser.error(f"--draws must be a multiple of {AT_ONCE}, got {options.draws}")
    torch.set_num_threads(1)
    result: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]), "torch": torch.__version__,
        "draws": options.draws, "scale": options.scale, "rows": [],
    }  # fmt: skip
    for rows, (kind, d) in product(ROWS, CASES):
        draws = options.draws * (4 if rows < 20 else 1)
        for row in measure(kind, d, rows, draws, options.scale):
            result["rows"].append(row)
            print(
                f"{rows:>3} {kind:<8} d={d:<3}{row['estimator']:<19}{row['ratio']:8.3g} ± {row['ratio_error']:.2g}"
                f"  tail {row['tail']}",
                flush=True,
            )
    write(result, options.output)


if __name__ == "__main__":
    main()
