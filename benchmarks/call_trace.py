"""Count named Python calls into the package between an objective and its gradient.

    python benchmarks/call_trace.py
    python benchmarks/call_trace.py --estimators midpoint --list
    python benchmarks/call_trace.py --training

The script counts calls of functions and methods of the package from `arms.expectation(f, logits, name)`
to the end of `.backward()`. For estimators of a bound, it starts at `arms.importance_bound`. Lambdas,
comprehensions and generator expressions are not counted, because they have no name. Methods that
`dataclass` generates are not counted either. A first, uncounted call imports all modules.
The aim is at most 80 calls for `midpoint`.

With `--training`, the script counts the source files that `arms train` calls into for a run of two
steps. It also lists the files of the run directory that are read while a finished run is extended by
two steps. The aim is fewer than 35 files, and at most 5 reads.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from unittest.mock import patch

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
"""The shape of the logits, which does not affect the number of calls."""
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


def named_calls(function: Callable[[], object]) -> list[tuple[Path, str]]:
    """Return the named calls into the package, in their order: file and function."""
    found: list[tuple[Path, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and not code.co_name.startswith("<"):
            file = Path(code.co_filename)
            if file.is_relative_to(PACKAGE):
                found.append((file.relative_to(PACKAGE), code.co_qualname))

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


def calls_of(name: str) -> list[str]:
    """Return the named calls of a gradient as module.function."""
    differentiate(name)
    found = named_calls(lambda: differentiate(name))
    calls = [f"{'.'.join(file.with_suffix('').parts)}.{function}" for file, function in found]
    first = next(index for index, call in enumerate(calls) if call.startswith("api."))
    return calls[first:]  # omits calls that only look up the target of the estimator


def train_by_command(folder: Path, steps: int) -> None:
    """Train on the digits for some steps, or extend this run."""
    from arms.bench.cli import main as command

    words = f"train --steps {steps} --latents 10 --evaluate 10 --name run --runs {folder}"
    with patch.object(sys, "argv", ["arms", *words.split()]):
        command()


def files_of_a_training() -> list[str]:
    """Return the source files that `arms train` calls into for two steps."""
    with tempfile.TemporaryDirectory() as folder:
        train_by_command(Path(folder, "first"), 2)  # imports all modules
        calls = named_calls(lambda: train_by_command(Path(folder, "second"), 2))
    return sorted({file.as_posix() for file, _ in calls})


def reads_of_an_extension() -> list[str]:
    """Return the files of a run directory that are read while a finished run gets two more steps."""
    reads: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}{os.sep}"

        def note(event: str, args: tuple[object, ...]) -> None:
            if event == "open" and isinstance(args[0], str | Path) and isinstance(args[2], int):
                reads_only = args[2] & (os.O_WRONLY | os.O_RDWR) == 0
                if reads_only and str(args[0]).startswith(place):
                    reads.append(Path(str(args[0])).name)

        train_by_command(Path(folder), 2)
        sys.addaudithook(note)
        train_by_command(Path(folder), 4)
    return reads


def print_training() -> None:
    files, reads = files_of_a_training(), reads_of_an_extension()
    print("\n".join(files))
    print(f"{len(files)} source files; {len(reads)} reads: {', '.join(reads)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--estimators", nargs="+", default=NAMES)
    parser.add_argument("--list", action="store_true", help="print the calls, and write no file")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--training", action="store_true", help="trace `arms train` instead")
    options = parser.parse_args()
    if options.training:
        print_training()
        return
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
