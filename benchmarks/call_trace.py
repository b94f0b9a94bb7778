"""How many named Python calls into the package lie between an objective and its gradient.

    python benchmarks/call_trace.py
    python benchmarks/call_trace.py --estimators midpoint --list

Counted are the calls of functions and methods of the package, from `arms.expectation(f, logits,
name)` to the end of `.backward()`; for estimators of a bound, from `arms.importance_bound`. Lambdas,
comprehensions and generator expressions have no name and do not count, nor do methods that
`dataclass` generates. Every estimator is called once before, so that nothing is imported in between.
The aim is at most 80 calls for `midpoint`.
"""

import argparse
import json
import platform
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor

import arms

NAMES = [
    "loorf", "arms", "arms-gaussian", "disarm", "unordered-set", "midpoint", "midpoint-single",
    "cross-paired", "arms-taylor", "relax", "exact", "vimco", "disarm-ms", "arms-ms", "midpoint-ms",
    "st", "gumbel-softmax", "reinmax",
]  # fmt: skip
AIM = {"midpoint": 80}
SHAPE = (5, 3)
"""Of the logits; the number of calls does not depend on it."""
PACKAGE = Path(arms.__file__).parent
RESULTS = Path(__file__).parent / "results" / "call_trace.json"


def objective(b: Tensor) -> Tensor:
    return (b - 0.45).square().sum(-1)


def differentiate(name: str) -> Tensor:
    """Return the gradient of the logits by one estimator."""
    logits = torch.zeros(SHAPE, requires_grad=True)
    on_bound = arms.as_estimator(name).target.subtracts_log_q
    entry = arms.importance_bound if on_bound else arms.expectation
    entry(objective, logits, name).sum().backward()
    assert logits.grad is not None
    return logits.grad


def calls_of(name: str) -> list[str]:
    """Return the named calls into the package, in their order, as module.function."""
    found: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and not code.co_name.startswith("<"):
            file = Path(code.co_filename)
            if file.is_relative_to(PACKAGE):
                module = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
                found.append(f"{module}.{code.co_qualname}")

    differentiate(name)
    sys.setprofile(note)
    try:
        differentiate(name)
    finally:
        sys.setprofile(None)
    first = next(index for index, call in enumerate(found) if call.startswith("api."))
    return found[first:]  # without those that ask what the estimator is for


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--estimators", nargs="+", default=NAMES)
    parser.add_argument("--list", action="store_true", help="print the calls, and write no file")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = []
    print("| estimator | calls | functions | aim |\n|---|--:|--:|--:|")
    for name in options.estimators:
        calls = calls_of(name)
        counts = Counter(calls)
        print(f"| {name} | {len(calls)} | {len(counts)} | {AIM.get(name, '')} |")
        rows.append({"estimator": name, "calls": len(calls), "functions": dict(counts)})
        if options.list:
            print("\n".join(calls))
    if options.list:
        return
    result = {
        "command": " ".join(["python", *sys.argv]),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "aim": AIM,
    }
    lines = ",\n  ".join(map(json.dumps, rows))
    options.output.write_text(
        f'{json.dumps(result, indent=1)[:-2]},\n "rows": [\n  {lines}\n ]\n}}\n'
    )


if __name__ == "__main__":
    main()
