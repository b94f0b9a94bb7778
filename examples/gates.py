"""Hard gates: train a classifier of digits that uses few of 64 pixels and 100 hidden units.

Each pixel and unit has a gate b ~ Bernoulli(sigmoid(logits)). The objective is the mean log-likelihood
minus a price for each open gate. Gates are drawn for each image of a minibatch ("row"), or once for all
("shared"). The table shows the objective with sampled gates, and the accuracy at equal sparsity: the 15
most likely pixels and units are kept, and the weights are trained further.

    python examples/gates.py
    python examples/gates.py --seeds 5 --steps 6000 --rates 0.01 --output gates.json
"""

import argparse
import json
import sys
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import arms

PIXELS, UNITS, KEPT, PRICE = 64, 100, 15, 0.02  # nats per image for an open gate
SAMPLES = {"flips": 4, "midpoint": 4, "arms": 6, "loorf": 6}  # at most six evaluations
SAMPLES |= {"st": 6, "st-sigmoid": 6, "gumbel-softmax": 6, "reinmax": 6}  # biased
parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=300, help="half as many more train only weights")
parser.add_argument("--seeds", type=int, default=1, help="trained side by side")
parser.add_argument("--rates", type=float, nargs="+", default=[0.03, 0.3], help="of the gates")
parser.add_argument("--output", type=Path)
options = parser.parse_args()
digits = load_digits()
images, labels = torch.from_numpy(digits.data).float() / 16, torch.from_numpy(digits.target)


def fit(draws: str, estimator: str, rate: float, seeds: range) -> dict[str, list[float]]:
    """Train gates and weights, then only the weights, and return the results of each seed."""
    orders, networks = [], []
    for seed in seeds:
        torch.manual_seed(seed)
        orders.append(torch.randperm(len(images)))
        networks.append(nn.Sequential(nn.Linear(PIXELS, UNITS), nn.Linear(UNITS, 10)))
    train, test = torch.stack(orders).split([1200, len(images) - 1200], 1)  # [seeds, images]
    weights = list(torch.func.stack_module_state(networks)[0].values())
    logits = nn.Parameter(torch.ones(len(seeds), 1, PIXELS + UNITS))
    optimizer = torch.optim.Adam([{"params": weights, "lr": 3e-3}, {"params": logits, "lr": rate}])

    def classify(rows: Tensor, b: Tensor) -> Tensor:  # gates [n, seeds, rows or 1, 164]
        pixels, units = b.split([PIXELS, UNITS], -1)
        hidden = torch.relu(images[rows] * pixels @ weights[0].mT + weights[1].unsqueeze(1)) * units
        scores: Tensor = hidden @ weights[2].mT + weights[3].unsqueeze(1)
        return scores.log_softmax(-1)

    def objective(rows: Tensor, b: Tensor) -> Tensor:  # [n, seeds, rows or 1]
        right = labels[rows].expand(len(b), -1, -1).unsqueeze(-1)
        value: Tensor = classify(rows, b).gather(-1, right).unflatten(-2, (b.shape[-2], -1))
        return value.mean((-2, -1)) - PRICE * b.sum(-1)

    def sampled(rows: Tensor) -> Tensor:  # [seeds]
        b = torch.rand(len(rows), rows.shape[1], PIXELS + UNITS) < logits.sigmoid()
        return objective(rows, b.float().unsqueeze(0)).detach().mean((0, 2))

    found, kept = dict[str, list[float]](), torch.zeros_like(logits).unsqueeze(0)
    for step in range(options.steps * 3 // 2):
        rows = train.gather(1, torch.randint(train.shape[1], (len(train), 50)))
        if step == options.steps:  # fix the gates, and continue with the weights
            for key, of in (("train", train), ("test", test)):
                found[key] = torch.stack([sampled(of) for _ in range(100)]).mean(0).tolist()
            found["open"] = (logits > 0).sum((1, 2)).tolist()
            parts = logits.split([PIXELS, UNITS], -1)
            kept[0] = torch.cat([part >= part.topk(KEPT).values[..., -1:] for part in parts], -1)
        value = objective(rows, kept)
        if step < options.steps:
            each = logits.expand(-1, rows.shape[1] if draws == "row" else 1, -1)
            f, n = partial(objective, rows), SAMPLES[estimator]
            value = arms.expectation(f, each, estimator, n, validate=step == 0)
        optimizer.zero_grad()
        (-value.mean(-1).sum()).backward()
        optimizer.step()
    hits = (classify(test, kept)[0].argmax(-1) == labels[test]).float()
    return found | {"accuracy": hits.mean(-1).tolist()}


print(f"{'draws':8}{'estimator':15}{'rate':>6}{'sampled objective':>19}{'accuracy, 15 + 15':>19}")
rows = []
for draws, name in product(("row", "shared"), SAMPLES):
    rate, tried = options.rates[0], dict[float, float]()
    if len(options.rates) > 1:  # choose the best rate on the training set, with a separate seed
        tried = {one: fit(draws, name, one, range(100, 101))["train"][0] for one in options.rates}
        rate = max(tried, key=tried.__getitem__)
    found = fit(draws, name, rate, range(options.seeds))
    rows.append({"draws": draws, "estimator": name, "rate": rate, "tried": tried, **found})
    objective, accuracy = fmean(found["test"]), fmean(found["accuracy"])
    print(f"{draws:8}{name:15}{rate:6g}{objective:19.3f}{accuracy:19.3f}")
if options.output:
    result = {"command": f"python {' '.join(sys.argv)}", "steps": options.steps, "rows": rows}
    options.output.write_text(json.dumps(result, indent=1) + "\n")
