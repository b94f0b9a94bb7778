"""Audits of estimators from other packages: the verdicts of docs/audit.md.

    pip install reinmax storchastic vector-quantize-pytorch verl
    python benchmarks/audits.py
    python benchmarks/audits.py --only verl
    python benchmarks/audits.py --markdown
    python benchmarks/audits.py --calibrate

Every row is the result of one command, which runs in docs/recipes. --calibrate makes 200 audits of
correct estimators at a failure rate of 0.05, and counts false alarms. --markdown reads the result files.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import arms
from arms.bench.runs.loading import find_attribute

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "recipes"))
RESULTS = Path(__file__).parent / "results"

AUDITS = {
    "torch.nn.functional:gumbel_softmax --kind sample": ("`gumbel_softmax`", "torch"),
    "audited:hard_gumbel_softmax --kind sample": ("`gumbel_softmax(hard=True)`", "torch"),
    "audited:reinmax --kind sample": ("`reinmax`", "reinmax"),
    "audited:vq_straight_through --kind sample": (
        "`gumbel_sample`, straight-through", "vector-quantize-pytorch",
    ),
    "audited:storch_reinforce --no-batched --draws 3000": (
        "`ScoreFunction`, `batch_average`", "storchastic",
    ),
    "audited:storch_arm --no-batched --draws 3000": ("`ARM`", "storchastic"),
    "audited:storch_disarm --no-batched --draws 3000": ("`DisARM`", "storchastic"),
    "audited:sfess_reinforce --latent audited:subset": ("SFESS, no baseline", ""),
    "audited:sfess_control_variate --latent audited:subset": ("SFESS, its baseline", ""),
    "audited:sfess_repaired --latent audited:subset": ("SFESS, repaired", ""),
    "audited:trl_rloo --kind weights": ("RLOO", "trl"),
    "audited:trl_grpo --kind weights": ("GRPO", "trl"),
    "audited:trl_grpo_unscaled --kind weights": ('GRPO, `scale_rewards="none"`', "trl"),
    "audited:verl_rloo --kind weights --draws 20000": ("`rloo`", "verl"),
    "audited:verl_grpo --kind weights --draws 20000": ("`grpo`", "verl"),
    "audited:verl_passk --kind weights --best-of 8 --draws 20000": ("`grpo_passk`", "verl"),
    "audited:verl_passk_unscaled --kind weights --best-of 8 --draws 20000": (
        "`grpo_passk`, not divided", "verl",
    ),
}  # fmt: skip
"""The arguments of `arms audit`, with the name of the audited function and its package."""


def audit(words: str) -> arms.checks.Audit:
    """Return the result of `arms audit` with these arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("subject")
    parser.add_argument("--kind", default="gradient")
    parser.add_argument("--latent")
    parser.add_argument("--draws", type=int, default=100_000)
    parser.add_argument("--best-of", type=int)
    parser.add_argument("--no-batched", action="store_true")
    given = parser.parse_args(shlex.split(words))
    target = None if given.best_of is None else arms.BestOf(given.best_of)
    latent = find_attribute(given.latent)() if given.latent else None
    function, batched = find_attribute(given.subject), not given.no_batched
    return arms.checks.audit(
        function, given.kind, given.draws, latent=latent, target=target, batched=batched
    )


def measure(only: str) -> None:
    """Make the audits whose arguments contain `only`, and keep the rows of the others."""
    path = RESULTS / "audits.json"
    known = {row["audit"]: row for row in json.loads(path.read_text())["rows"]} if only else {}
    for words, (_, package) in AUDITS.items():
        if only not in words:
            continue
        found = audit(words)
        print(found)
        row: dict[str, Any] = {"audit": words, "verdict": found.verdict}
        try:
            row["version"] = version(package) if package else ""
        except PackageNotFoundError:
            row["version"] = ""
        for part in ("bias", "bias_error", "along", "across", "variance", "largest_score"):
            row[part] = [round(float(getattr(one, part)), 4) for one in found.rows]
        known[words] = row | {"limit": round(found.limit, 2), "reference": found.reference}
    rows = [known[words] for words in AUDITS if words in known]
    write("audits", "python benchmarks/audits.py", rows=rows)


# ---- False alarms


def loo_gradient(objective: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    p = torch.sigmoid(logits.detach())
    b = torch.bernoulli(p.expand(4, *p.shape))
    f = objective(b)
    return ((f - f.mean(0)).unsqueeze(-1) * (b - p)).sum(0) / 3


def reinforce_of_categories(objective: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    q = arms.OneHot(logits.detach())
    b = q.sample(1)[0]
    return objective(b)[:, None, None] * q.score(b)


RIGHT: list[tuple[Callable[..., Any], Any, dict[str, Any]]] = [
    (loo_gradient, "gradient", {}),
    (reinforce_of_categories, "gradient", {"latent": "categories"}),
    (arms.weights, "weights", {}),
    (lambda rewards: arms.weights(rewards, arms.BestOf(3)), "weights", {"target": arms.BestOf(3)}),
]


def calibrate() -> None:
    alarms = [
        sum(
            arms.checks.audit(function, kind, 2000, 0.05, seed=seed, **options).biased
            for seed in range(50)
        )
        for function, kind, options in RIGHT
    ]
    rows = [{"audits": 50, "alarms": number} for number in alarms]
    write("audit_calibration", "python benchmarks/audits.py --calibrate", rate=0.05, rows=rows)
    print(sum(alarms), "alarms in 200 audits:", alarms)


def write(name: str, command: str, **found: Any) -> None:
    head = {"command": command, "torch": torch.__version__, **found}
    (RESULTS / f"{name}.json").write_text(json.dumps(head, indent=1) + "\n")


# ---- The page


def between(values: list[float], percent: bool = False) -> str:
    """Return the range of a number over problems."""
    low, high = min(values), max(values)
    shown = (f"{100 * low:.1f}", f"{100 * high:.1f}") if percent else (f"{low:.2f}", f"{high:.2f}")
    return shown[0] if shown[0] == shown[1] else f"{shown[0]} to {shown[1]}"


def markdown() -> str:
    rows = {row["audit"]: row for row in json.loads((RESULTS / "audits.json").read_text())["rows"]}
    columns = ("function", "verdict", "bias, %", "±", "along", "across", "variance / LOORF")
    lines = [f"| {' | '.join(columns)} |", "|---|---|" + "--:|" * 5]
    for words, (name, package) in AUDITS.items():
        row = rows[words]
        where = f"{package} {row['version'].partition('+')[0]}".strip() if package else "formulas"
        cells = [
            f"{name} ({where})", row["verdict"], between(row["bias"], True),
            between(row["bias_error"], True), between(row["along"]), between(row["across"]),
            between(row["variance"]),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    commands = [f"arms audit {words}" for words in AUDITS]
    return "\n".join([*lines, "", "```sh", "cd docs/recipes", *commands, "```"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument(
        "--only", default="", help="repeat only audits whose arguments contain this text"
    )
    options = parser.parse_args()
    if options.markdown:
        print(markdown())
    else:
        calibrate() if options.calibrate else measure(options.only)
