"""Gates, tokenizers and routers, trained with sampling sites and with common alternatives.

Every method processes 64 rows per step: 64 images, or n copies of 64/n images. Times are CPU seconds of
one thread. "at equal time" is the result at the time at which the fastest method of the task finishes.

    python benchmarks/sites_training.py gates        # and once more with --rate 0.1
    python benchmarks/sites_training.py tokenizer    # needs vector-quantize-pytorch
    python benchmarks/sites_training.py router
    python benchmarks/sites_training.py show gates   # the table of the committed results

Images are read from ARMS_DATA_DIR. The results of each method are added to
benchmarks/results/sites_TASK.json, so methods can run separately: `--methods arms-4 reinmax`.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import arms

RESULTS = Path(__file__).parent / "results"
ROWS, TRAIN, TEST, SEEDS = 64, 20_000, 2_000, (1, 2, 3)
UNBIASED = {"arms-2": ("arms", 2), "arms-4": ("arms", 4), "loorf-4": ("loorf", 4)}
SPARSE = "arms-8, 64 images"
"""Methods with the same number of expert evaluations as methods that evaluate all eight experts."""
SITES = tuple(UNBIASED)
LFQ_WEIGHTS = {"LFQ, weight 0.02": 0.02, "LFQ, weight 0.001": 0.001}
"""Weights of the entropy loss: the one in the package's example, and a smaller one."""
UNBIASED[SPARSE] = ("arms", 8)
TOGETHER = ("midpoint", "flips")
"""Estimators for `arms.expectation` with four evaluations, which draws all gates at once."""


def images(*names: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the first images of data sets in random order, with labels, as "train" and "test" splits."""
    found = {}
    for split, size in (("train", TRAIN), ("test", TEST)):
        parts = []
        for name in names:
            with np.load(Path(os.environ["ARMS_DATA_DIR"]) / f"{name}.npz") as data:
                x, y = (
                    data[f"{split}_{what}"][: size // len(names)] for what in ("images", "labels")
                )
            parts.append(
                (torch.from_numpy(x).float().unsqueeze(1) / 255, torch.from_numpy(y).long())
            )
        found[split] = (torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]))
    return found


class GatedNet(nn.Module):
    """A small convolutional network whose channels have gates."""

    def __init__(self, gates: Callable[[int], nn.Module]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((1, 16), (16, 32), (32, 32)):
            conv = nn.Conv2d(before, after, 3, 2, 1)
            layers += [conv, nn.GroupNorm(4, after), nn.ReLU(), gates(after)]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(32 * 16, 10)
        self.gates = [one for one in layers if isinstance(one, arms.nn.Gates | HardConcrete)]

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(x).flatten(1))
        return scores

    def total(self, what: str) -> Tensor:
        return torch.stack([getattr(one, what)() for one in self.gates]).sum()


class HardConcrete(nn.Module):
    """The gates of Louizos, Welling & Kingma (2018): stretched, clamped concrete variables."""

    LOW, HIGH, TEMPERATURE = -0.1, 1.1, 2 / 3

    def __init__(self, size: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.full((size,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        s = torch.sigmoid(self.logits).expand(len(x), -1)
        if self.training:
            noise = torch.rand(len(x), len(self.logits)).clamp(1e-6, 1 - 1e-6).logit()
            s = torch.sigmoid((noise + self.logits) / self.TEMPERATURE)
        return x * self.stretched(s)[:, :, None, None]

    def stretched(self, s: Tensor) -> Tensor:
        return (s * (self.HIGH - self.LOW) + self.LOW).clamp(0, 1)

    def price(self) -> Tensor:
        return torch.sigmoid(self.logits - self.TEMPERATURE * math.log(-self.LOW / self.HIGH)).sum()

    def is_open(self) -> Tensor:
        return self.stretched(torch.sigmoid(self.logits.detach())) > 0


class GivenGates(arms.nn.Gates):
    """Gates that are drawn at once, outside of the network."""

    given: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.given[:, :, None, None] if self.training else super().forward(x)


class Gates:
    """A classifier of clothes with 80 gated channels, where an open gate costs 0.005 nats."""

    names, steps, PRICE = ("fashion_mnist",), 800, 0.005
    methods = (*SITES, *TOGETHER, "reinmax", "st-gumbel", "st-sigmoid", "hard-concrete")
    columns = ("loss + price", "accuracy", "open")
    rate = 2e-2  # learning rate of the gates

    def __init__(self, method: str) -> None:
        own = None if method in UNBIASED else method
        kinds: dict[str, Callable[[int], nn.Module]] = {"hard-concrete": HardConcrete}
        kinds |= dict.fromkeys(TOGETHER, GivenGates)
        made = kinds.get(method, partial(arms.nn.Gates, estimator=own))
        self.model: GatedNet = GatedNet(made)
        weights = [p for name, p in self.model.named_parameters() if not name.endswith("logits")]
        logits = [p for name, p in self.model.named_parameters() if name.endswith("logits")]
        self.optimizer = torch.optim.Adam(
            [{"params": weights, "lr": 2e-3}, {"params": logits, "lr": self.rate}]
        )

    def losses(self, x: Tensor, y: Tensor, repeat: Callable[[Tensor], Tensor]) -> Tensor:
        """Evaluate the first layer once per image, and draw its gates n times."""
        return cross_entropy(self.model(x), repeat(y), reduction="none")

    def expectation(self, x: Tensor, y: Tensor, estimator: str) -> Tensor:
        """Put all gates into one latent, so that estimators with derivatives can be used."""
        logits = torch.cat([one.logits for one in self.model.gates])

        def objective(b: Tensor) -> Tensor:  # [m, B, 80] to [m, B]
            parts = b.flatten(0, 1).split([len(one.logits) for one in self.model.gates], -1)
            for gate, part in zip(self.model.gates, parts, strict=True):
                gate.given = part
            scores = self.model(x.repeat(len(b), 1, 1, 1))
            return cross_entropy(scores, y.repeat(len(b)), reduction="none").view(len(b), -1)

        return arms.expectation(objective, logits.expand(len(x), -1), estimator, evaluations=4)

    def extra(self) -> Tensor:
        return self.PRICE * self.model.total("price")

    def evaluate(self, x: Tensor, y: Tensor) -> tuple[float, ...]:
        scores, count = self.model(x), float(sum(one.is_open().sum() for one in self.model.gates))
        loss = cross_entropy(scores, y).item() + self.PRICE * count
        return loss, 100 * (scores.argmax(-1) == y).float().mean().item(), count


class Tokenizer:
    """Images as 49 tokens of 4 bits: an encoder, codes, and a decoder."""

    names, steps = ("mnist",), 600
    methods = (*SITES, *TOGETHER, "reinmax", "st-gumbel", "st-sigmoid", *LFQ_WEIGHTS, "FSQ")
    columns = ("squared error", "codes in use", "bits of entropy")

    def __init__(self, method: str) -> None:
        own = None if method in (*SITES, *TOGETHER) else method
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 4, 2, 1), nn.ReLU(),
            nn.Conv2d(32, 32, 1),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU(), nn.ConvTranspose2d(32, 32, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(32, 1, 4, 2, 1),
        )  # fmt: skip
        self.codes: nn.Module
        if method == "FSQ" or method in LFQ_WEIGHTS:
            from vector_quantize_pytorch import FSQ, LFQ

            weight = LFQ_WEIGHTS.get(method, 0.0)
            lfq = {"codebook_size": 16, "dim": 32, "entropy_loss_weight": weight}
            self.codes = FSQ(levels=[4, 4], dim=32) if method == "FSQ" else LFQ(**lfq)
        else:
            self.codes = arms.nn.Codes(32, bits=4, estimator=own)
        self.method, self.aux = method, torch.zeros(())
        self.model = nn.ModuleList([self.encoder, self.codes, self.decoder])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3)

    def decoded(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.encoder(x).flatten(2).transpose(1, 2)
        vectors, indices, *rest = self.codes(tokens)
        self.aux = rest[0] if self.method in LFQ_WEIGHTS else torch.zeros(())
        return self.decoder(vectors.transpose(1, 2).unflatten(2, (7, 7))), indices

    def losses(self, x: Tensor, y: Tensor, repeat: Callable[[Tensor], Tensor]) -> Tensor:
        """Evaluate the encoder once per image, and draw its codes n times."""
        return (self.decoded(x)[0] - repeat(x)).square().flatten(1).mean(1)

    def expectation(self, x: Tensor, y: Tensor, estimator: str) -> Tensor:
        """Put all bits of an image into one latent, so that estimators with derivatives can be used."""
        assert isinstance(self.codes, arms.nn.Codes)
        codes, tokens = self.codes, self.encoder(x).flatten(2).transpose(1, 2)

        def objective(b: Tensor) -> Tensor:  # [m, B, 196] to [m, B]
            vectors = codes.codebook(2 * b.flatten(0, 1).unflatten(-1, (49, 4)) - 1)
            out = self.decoder(vectors.transpose(1, 2).unflatten(2, (7, 7)))
            error: Tensor = (out.unflatten(0, b.shape[:2]) - x).square()
            return error.flatten(2).mean(-1)

        logits = codes.to_logits(tokens).flatten(1)
        return arms.expectation(objective, logits, estimator, evaluations=4)

    def extra(self) -> Tensor:
        return self.aux

    def evaluate(self, x: Tensor, y: Tensor) -> tuple[float, ...]:
        out, indices = self.decoded(x)
        share = torch.bincount(indices.flatten().long(), minlength=16) / indices.numel()
        entropy = -(share * share.clamp(min=1e-9).log2()).sum().item()
        error = (out - x).square().flatten(1).sum(1).mean().item()
        return error, float((share > 1e-4).sum()), entropy


class Router:
    """A classifier of digits and clothes that uses one of eight linear experts for each image."""

    names, steps, EXPERTS = ("mnist", "fashion_mnist"), 1_200, 8
    methods = (*SITES, SPARSE, "sparsemixer", "switch", "st-gumbel", "reinmax")
    columns = ("test loss", "accuracy", "largest load")

    def __init__(self, method: str) -> None:
        own = method if method in ("st-gumbel", "reinmax") else None
        self.method, self.aux = method, torch.zeros(())
        self.router = arms.nn.Router(784, self.EXPERTS, estimator=own)
        self.experts = nn.ModuleList(nn.Linear(784, 10) for _ in range(self.EXPERTS))
        self.model = nn.ModuleList([self.router, self.experts])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3)

    def scores(self, x: Tensor) -> Tensor:
        h = x.flatten(1)
        if self.method not in ("sparsemixer", "switch"):
            mask, self.aux = self.router(h)
            return self.router.mix(mask, h, list(self.experts))
        probs = torch.softmax(self.router.to_logits(h), -1)
        best = probs.argmax(-1)
        chosen = best
        if self.training and self.method == "sparsemixer":
            chosen = torch.multinomial(probs.detach(), 1).squeeze(-1)
        mask = nn.functional.one_hot(chosen, self.EXPERTS).float()
        self.router.load = mask.mean(0)
        self.aux = self.EXPERTS * (self.router.load * probs.mean(0)).sum()
        scale = (probs * mask).sum(-1)
        if self.training and self.method == "sparsemixer":
            # Heun's third-order rule (Liu, Gao & Chen, 2023): if the expert is not the most likely one, it is scaled
            # by 1/3 with probability 3/4, and the gradient is that of p.
            full = (chosen == best) | (torch.rand(len(h)) > 0.75)
            scale = scale + (scale * torch.where(full, 1.0, 1 / 3) - scale).detach()
        return self.router.mix(mask, h, list(self.experts)) * scale.unsqueeze(-1)

    @property
    def training(self) -> bool:
        return self.model.training

    def losses(self, x: Tensor, y: Tensor, repeat: Callable[[Tensor], Tensor]) -> Tensor:
        return cross_entropy(self.scores(x), repeat(y), reduction="none")

    def extra(self) -> Tensor:
        return 0.01 * self.aux

    def evaluate(self, x: Tensor, y: Tensor) -> tuple[float, ...]:
        scores = self.scores(x)
        right = 100 * (scores.argmax(-1) == y).float().mean().item()
        return cross_entropy(scores, y).item(), right, self.router.load.max().item()


TASKS: dict[str, Any] = {"gates": Gates, "tokenizer": Tokenizer, "router": Router}


def train(
    task: Any, method: str, seed: int, data: dict[str, tuple[Tensor, Tensor]]
) -> list[list[float]]:
    """Return (CPU seconds, metrics ...) at ten points of a training."""
    torch.manual_seed(seed)
    run, (x, y), curve, spent = task(method), data["train"], [], 0.0
    name, copies = UNBIASED.get(method, ("", 4 if method in TOGETHER else 1))
    for step in range(task.steps):
        began = time.process_time()
        rows = torch.randint(len(x), (ROWS if method == SPARSE else ROWS // copies,))
        for group in run.optimizer.param_groups:
            first = group.setdefault("initial_lr", group["lr"])
            group["lr"] = first * (1 + math.cos(math.pi * step / task.steps)) / 2
        if name:
            with arms.sampling(name, copies, validate=False) as s:
                loss = run.losses(x[rows], y[rows], s.repeat)
            value = s.expectation(loss).mean()
        elif method in TOGETHER:
            value = run.expectation(x[rows], y[rows], method).mean()
        else:
            value = run.losses(x[rows], y[rows], lambda one: one).mean()
        run.optimizer.zero_grad()
        (value + run.extra()).backward()
        run.optimizer.step()
        spent += time.process_time() - began
        if (step + 1) % (task.steps // 10) == 0:
            run.model.eval()
            with torch.no_grad():
                curve.append(
                    [round(spent, 3), *(round(one, 5) for one in run.evaluate(*data["test"]))]
                )
            run.model.train()
    return curve


def table(task: str) -> Iterator[str]:
    """Yield the lines of a task's table."""
    found = json.loads((RESULTS / f"sites_{task}.json").read_text())
    runs, columns = found["runs"], TASKS[task].columns
    fastest = min(fmean(run["curve"][-1][0] for run in group) for group in grouped(runs).values())
    yield f"| method | {' | '.join(columns)} | at equal time | seconds |"
    yield f"|---|{'--:|' * (len(columns) + 2)}"
    for method, group in grouped(runs).items():
        last = [run["curve"][-1] for run in group]
        cells = [shown([one[at] for one in last]) for at in range(1, len(columns) + 1)]
        early = [
            max((p for p in run["curve"] if p[0] <= 1.02 * fastest), default=None) for run in group
        ]
        at_time = shown([one[1] for one in early if one is not None])
        yield f"| {method} | {' | '.join(cells)} | {at_time} | {fmean(one[0] for one in last):.0f} |"


def grouped(runs: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the runs of each method, at the better of its rates."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name in dict.fromkeys(run["method"] for run in runs):
        own = [run for run in runs if run["method"] == name]
        rates = sorted({run.get("rate", 0.0) for run in own})
        groups = [[run for run in own if run.get("rate", 0.0) == rate] for rate in rates]
        found[name] = min(groups, key=lambda group: fmean(run["curve"][-1][1] for run in group))
    return found


def shown(values: list[float]) -> str:
    digits = 1 if fmean(values) >= 10 else 3
    spread = stdev(values) if len(values) > 1 else 0.0
    return f"{fmean(values):.{digits}f} ± {spread:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("task", choices=[*TASKS, "show"])
    parser.add_argument("which", nargs="?", choices=[*TASKS])
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--steps", type=int)
    parser.add_argument(
        "--rate", type=float, help="learning rate of the gates; the table shows the better of two"
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.task == "show":
        print("\n".join(table(options.which)))
        return
    torch.set_num_threads(1)
    task = TASKS[options.task]
    task.steps = options.steps or task.steps
    given = {}
    if options.task == "gates":
        task.rate = options.rate or task.rate
        given = {"rate": task.rate}
    output = options.output or RESULTS / f"sites_{options.task}.json"
    data = images(*task.names)
    for method in options.methods or task.methods:
        for seed in options.seeds:
            curve = train(task, method, seed, data)
            found = {"runs": []} if not output.exists() else json.loads(output.read_text())
            own = {"method": method, "seed": seed, **given}
            kept = [one for one in found["runs"] if {**one, **own} != one]
            kept.append({**own, "curve": curve})
            order = {name: at for at, name in enumerate(task.methods)}
            kept.sort(key=lambda one: (order[one["method"]], one.get("rate", 0), one["seed"]))
            head = {
                "command": f"python benchmarks/sites_training.py {options.task}",
                "torch": torch.__version__,
                "steps": task.steps,
                "columns": ["seconds", *task.columns],
            }
            lines = ",\n  ".join(json.dumps(one) for one in kept)
            body = json.dumps(head, indent=1)[:-2]
            output.write_text(f'{body},\n "runs": [\n  {lines}\n ]\n}}\n')
            print(method, seed, *curve[-1], flush=True)


if __name__ == "__main__":
    main()
