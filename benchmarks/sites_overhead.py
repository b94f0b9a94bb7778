"""Time of a training step with sampling sites, relative to `F.gumbel_softmax` on the same number of rows.

Both steps send 128 rows through the same network: 2 copies of 64 rows with sites, or 128 rows with
`F.gumbel_softmax(hard=True)`. Rounds are interleaved, and the ratio is the median over rounds of
CPU seconds of one thread.

    python benchmarks/sites_overhead.py --output benchmarks/results/sites_overhead.json
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import arms

ROWS = 128


class Choice(nn.Module):
    """A layer with one choice for each group of features."""

    def __init__(self, size: int, choices: int, categories: int, sites: bool) -> None:
        super().__init__()
        self.shape, self.sites = (choices, categories), sites
        self.logits = nn.Linear(size, choices * categories)

    def forward(self, h: Tensor) -> Tensor:
        logits = self.logits(h).unflatten(-1, self.shape)
        z: Tensor = (
            arms.sample(arms.OneHot(logits)) if self.sites else F.gumbel_softmax(logits, hard=True)
        )
        return z.flatten(1)


class Gate(nn.Module):
    """A residual convolution that is either run or skipped."""

    def __init__(self, channels: int, sites: bool) -> None:
        super().__init__()
        self.conv, self.choice = (
            nn.Conv2d(channels, channels, 3, 1, 1),
            Choice(channels, 1, 2, sites),
        )

    def forward(self, h: Tensor) -> Tensor:
        run = self.choice(h.mean((-1, -2)))[:, :1, None, None]
        out: Tensor = h + torch.relu(self.conv(h)) * run
        return out


def vae(sites: bool) -> nn.Module:
    encoder = [nn.Linear(784, 512), nn.ReLU(), Choice(512, 20, 10, sites)]
    return nn.Sequential(
        nn.Flatten(), *encoder, nn.Linear(200, 512), nn.ReLU(), nn.Linear(512, 784)
    )


def gated(sites: bool) -> nn.Module:
    gates = [Gate(32, sites) for _ in range(5)]
    head = [nn.Flatten(), nn.Linear(32 * 49, 784)]
    return nn.Sequential(nn.Conv2d(1, 32, 5, 4, 2), *gates, *head)


MODELS: dict[str, Callable[[bool], nn.Module]] = {
    "VAE, 20 choices among 10": vae,
    "convolutions, 5 gates": gated,
}


def steps(make: Callable[[bool], nn.Module], x: Tensor) -> dict[str, Callable[[], None]]:
    """Return a training step of each kind, on networks with the same parameters."""
    made = []
    for sites in (True, False):
        torch.manual_seed(0)
        made.append(make(sites))
    ours, theirs = made
    optimizers = [torch.optim.Adam(one.parameters(), lr=1e-3) for one in made]

    def losses(out: Tensor, x: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(out, x.flatten(1), reduction="none").sum(-1)

    def site_step() -> None:
        with arms.sampling(num_samples=2) as s:
            repeated = s.repeat(x[: ROWS // 2])
            value = s.expectation(losses(ours(repeated), repeated)).mean()
        optimizers[0].zero_grad()
        value.backward()
        optimizers[0].step()

    def gumbel_step() -> None:
        value = losses(theirs(x), x).mean()
        optimizers[1].zero_grad()
        value.backward()
        optimizers[1].step()

    return {"sites": site_step, "gumbel-softmax": gumbel_step}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    x, rows = torch.rand(ROWS, 1, 28, 28), []
    for name, make in MODELS.items():
        both = steps(make, x)
        times: dict[str, list[float]] = {kind: [] for kind in both}
        for number in range(options.rounds + 10):
            for kind, step in both.items():
                began = time.process_time()
                step()
                if number >= 10:
                    times[kind].append(time.process_time() - began)
        pairs = zip(times["sites"], times["gumbel-softmax"], strict=True)
        ratio = median(ours / theirs for ours, theirs in pairs)
        milliseconds = {kind: round(1e3 * median(found), 3) for kind, found in times.items()}
        rows.append({"model": name, "ratio": round(ratio, 3), "ms": milliseconds})
        print(f"{name:28} {ratio:.3f} x F.gumbel_softmax  {milliseconds}")
    if options.output:
        head: dict[str, object] = {
            "command": f"python {' '.join(sys.argv)}",
            "torch": torch.__version__,
        }
        head |= {"rows": ROWS, "rounds": options.rounds}
        lines = ",\n  ".join(json.dumps(row) for row in rows)
        body = json.dumps(head, indent=1)[:-2]
        options.output.write_text(f'{body},\n "results": [\n  {lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
