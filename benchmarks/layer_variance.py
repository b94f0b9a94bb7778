"""Gradient variance of two layers of bits, with chains and nested samples, at eight evaluations of the objective.

    python benchmarks/layer_variance.py
    python benchmarks/layer_variance.py --markdown

b1 has d bits, and the d bits of b2 have logits W b1 + c. The objective is h1(b1) + h2(b1, b2), where both terms are
quadratic losses of random networks with one hidden layer. Variances are for the gradients with respect to the logits of
b1 and to c, summed over bits. The results are geometric means over random problems, relative to chains with `loorf`
whose layers learn from the whole objective. `midpoint` has n = 6 and makes seven evaluations. --markdown reads the file
of results.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Generator, Tensor

import arms

ROWS = 4000
"""The number of independent estimates of one problem, in one batch."""
PROBLEMS = 8
WIDTHS = (10, 50, 200)
RESULTS = Path(__file__).parent / "results" / "layer_variance.json"


class Problem:
    """A random network, and estimates of its gradient for every row of a batch."""

    def __init__(self, width: int, seed: int) -> None:
        generator = Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        self.first = normal(width).expand(ROWS, -1).clone().requires_grad_()
        self.weight = 2 / math.sqrt(width) * normal(width, width)
        self.second = (
            (normal(width) - self.weight.sum(0) / 2).expand(ROWS, -1).clone().requires_grad_()
        )
        self.of_first, self.of_both = (
            normal(width, 8) / math.sqrt(width),
            normal(2 * width, 8) / math.sqrt(2 * width),
        )
        self.wanted = normal(2, 8)
        self.generator = generator

    def logits(self, b1: Tensor) -> Tensor:
        return b1 @ self.weight + self.second

    def terms(self, b1: Tensor, b2: Tensor) -> list[Tensor]:
        both = torch.cat([b1.expand_as(b2), b2], -1)
        inputs = ((b1, self.of_first, self.wanted[0]), (both, self.of_both, self.wanted[1]))
        return [
            -(torch.tanh((2 * b - 1) @ matrix) - goal).square().sum(-1)
            for b, matrix, goal in inputs
        ]

    def chained(self, name: str, n: int, to_go: bool) -> Tensor:
        q1 = arms.draw(self.first, name, n, self.generator)
        q2 = arms.draw(self.logits(q1.points), given=q1, generator=self.generator)
        terms = self.terms(q1.points, q2.points)
        return arms.attach([q1, q2], terms if to_go else terms[0] + terms[1], validate=False)

    def nested(self, name: str, outer: int, inner: int) -> Tensor:
        def mean_of_children(b1: Tensor) -> Tensor:
            def objective(b2: Tensor) -> Tensor:
                first, second = self.terms(b1, b2)
                return first + second

            return arms.expectation(
                objective, self.logits(b1), name, inner, self.generator, validate=False
            )

        return arms.expectation(
            mean_of_children, self.first, name, outer, self.generator, validate=False
        )

    def separate(self, name: str, n: int) -> Tensor:
        """DisARM's scheme: separate samples for every layer, given one independent chain."""

        def finished(b1: Tensor) -> Tensor:
            with torch.no_grad():
                b2 = arms.Bits(self.logits(b1)).sample(1, self.generator)[0]
                return torch.stack(self.terms(b1, b2)).sum(0)

        of_first = arms.expectation(finished, self.first, name, n, self.generator, validate=False)
        free = arms.Bits(self.first).sample(1, self.generator)[0]
        of_second = arms.expectation(
            lambda b2: self.terms(free, b2)[1],
            self.logits(free),
            name,
            n,
            self.generator,
            validate=False,
        )
        return of_first + of_second

    def variances(self, value: Tensor) -> tuple[float, float]:
        grads = torch.autograd.grad(value.sum(), [self.first, self.second])
        first, second = (grad.double().var(0).sum().item() for grad in grads)
        return first, second


SCHEMES: dict[str, Callable[[Problem], Tensor]] = {
    "chains, loorf, whole objective": lambda problem: problem.chained("loorf", 8, False),
    "chains, loorf": lambda problem: problem.chained("loorf", 8, True),
    "chains, arms": lambda problem: problem.chained("arms", 8, True),
    "chains, midpoint": lambda problem: problem.chained("midpoint", 6, True),
    "nested, arms, 4 x 2": lambda problem: problem.nested("arms", 4, 2),
    "nested, arms, 2 x 4": lambda problem: problem.nested("arms", 2, 4),
    "nested, midpoint-single, 3 x 3": lambda problem: problem.nested("midpoint-single", 2, 2),
    "separate samples, disarm, 4 + 4": lambda problem: problem.separate("disarm", 4),
}
Rows = list[dict[str, object]]


def measure(width: int) -> Rows:
    logs: dict[str, list[tuple[float, float]]] = {}
    for seed in range(PROBLEMS if width < 200 else PROBLEMS // 2):
        problem = Problem(width, seed)
        unit: tuple[float, float] | None = None
        for name, scheme in SCHEMES.items():
            found = problem.variances(scheme(problem))
            unit = unit or found
            logs.setdefault(name, []).append(
                (math.log(found[0] / unit[0]), math.log(found[1] / unit[1]))
            )
    return [
        {"width": width, "scheme": name}
        | {
            f"layer {layer + 1}": round(math.exp(sum(pair[layer] for pair in of) / len(of)), 3)
            for layer in range(2)
        }
        for name, of in logs.items()
    ]


def markdown(rows: Rows) -> str:
    lines = [
        "| variance of layer 1, layer 2 | "
        + " | ".join(f"2 x {width} bits" for width in WIDTHS)
        + " |"
    ]
    lines.append("|---|" + "---|" * len(WIDTHS))
    for scheme in SCHEMES:
        mine = {row["width"]: row for row in rows if row["scheme"] == scheme}
        cells = [f"{mine[width]['layer 1']:.2f}, {mine[width]['layer 2']:.2f}" for width in WIDTHS]
        lines.append(f"| {scheme} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument(
        "--markdown", action="store_true", help="print the table of the existing results"
    )
    options = parser.parse_args()
    if not options.markdown:
        rows = [row for width in WIDTHS for row in measure(width)]
        result = {
            "command": " ".join(["python", *sys.argv]),
            "torch": torch.__version__,
            "rows_of_a_problem": ROWS,
        }
        lines = ",\n  ".join(json.dumps(row) for row in rows)
        options.output.write_text(
            f'{json.dumps(result, indent=1)[:-2]},\n "rows": [\n  {lines}\n ]\n}}\n'
        )
    print(markdown(json.loads(options.output.read_text())["rows"]))


if __name__ == "__main__":
    main()
