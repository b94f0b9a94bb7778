"""Hard gates: how few of 64 pixels and 100 hidden units does a classifier of digits need?

Every pixel and every unit has a gate b ~ Bernoulli(sigmoid(logits)). The objective is the
classifier's log-likelihood minus a price for each open gate. After training, the 15 likeliest
pixels and units are kept, and the weights are fitted to them once more, so that accuracies are
compared at equal sparsity. Some of the estimators are unbiased, others are usual for gates.

    python examples/gates.py
    python examples/gates.py --seeds 5 --output examples/results/gates.json
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import arms

PIXELS, UNITS, KEPT = 64, 100, 15
ESTIMATORS = ("midpoint", "arms", "loorf", "st", "st-sigmoid", "gumbel-softmax")

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--seeds", type=int, default=1)
parser.add_argument("--price", type=float, default=0.02, help="of an open gate, in nats per image")
parser.add_argument("--output", type=Path)
options = parser.parse_args()
digits = load_digits()
images, labels = torch.from_numpy(digits.data).float() / 16, torch.from_numpy(digits.target)


def fit(estimator: str, seed: int) -> tuple[float, float]:
    """Return the test accuracy with 15 + 15 gates, and how many gates the training left open."""
    torch.manual_seed(seed)
    order = torch.randperm(len(images))
    train, test = order[:1200], order[1200:]
    first, second = nn.Linear(PIXELS, UNITS), nn.Linear(UNITS, 10)
    logits = nn.Parameter(torch.full((PIXELS + UNITS,), 1.0))

    def classify(x: Tensor, gates: Tensor) -> Tensor:  # gates [..., 164] -> [..., rows of x, 10]
        pixels, units = gates.unsqueeze(-2).split([PIXELS, UNITS], -1)
        scores: Tensor = second(torch.relu(first(x * pixels)) * units)
        return scores.log_softmax(-1)

    weights = {"params": [*first.parameters(), *second.parameters()], "lr": 3e-3}
    optimizer = torch.optim.Adam([weights, {"params": [logits], "lr": 3e-2}])
    kept = torch.zeros(PIXELS + UNITS)
    for step in range(options.steps * 3 // 2):
        rows = train[torch.randint(len(train), (50,))]
        x, right = images[rows], labels[rows].unsqueeze(-1)

        def objective(b: Tensor, x: Tensor = x, right: Tensor = right) -> Tensor:  # [n, 164] -> [n]
            likelihood = classify(x, b).gather(-1, right.expand(len(b), -1, -1)).mean((-2, -1))
            return likelihood - float(options.price) * b.sum(-1)

        if step == options.steps:  # the gates are chosen: the rest is for the weights
            parts = logits.split([PIXELS, UNITS])
            kept = torch.cat([part >= part.topk(KEPT).values[-1] for part in parts]).float()
        if step < options.steps:
            value = arms.expectation(objective, logits, estimator, 8)
        else:
            value = objective(kept.unsqueeze(0))
        optimizer.zero_grad()
        (-value.mean()).backward()
        optimizer.step()
    accuracy = (classify(images[test], kept).argmax(-1) == labels[test]).float().mean().item()
    return accuracy, (logits > 0).sum().item()


rows = []
print(f"{'estimator':15}{'accuracy with 15 + 15 gates':>30}{'gates left open':>18}")
for name in ESTIMATORS:
    found = torch.tensor([fit(name, seed) for seed in range(options.seeds)])
    (accuracy, gates), std = found.mean(0).tolist(), found[:, 0].std(correction=0).item()
    shown = {"accuracy": round(accuracy, 4), "std": round(std, 4), "open": round(gates, 1)}
    rows.append({"estimator": name, **shown})
    print(f"{name:15}{accuracy:22.3f} ± {std:.3f}{gates:18.1f}")
if options.output:
    lines = ",\n  ".join(map(json.dumps, rows))
    head = f'"command": "python {" ".join(sys.argv)}",\n "seeds": {options.seeds}'
    options.output.write_text(f'{{\n {head},\n "rows": [\n  {lines}\n ]\n}}\n')
