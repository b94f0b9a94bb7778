"""Mean reward or pass@4: a small autoregressive policy that guesses codes, trained in three ways.

A code has three digits from 0 to 3, where small digits are more frequent. The policy knows their sum and
writes a code digit by digit. A checker tells whether the code is right. Many codes have the same sum. A
single guess should be the most likely code, and four guesses should differ. Results are exact sums over
all codes.

    python examples/best_of_k.py
    python examples/best_of_k.py --seeds 5 --output examples/results/best_of_k.json
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import arms

DIGITS, LENGTH, PROMPTS, SAMPLES, WIDTH = 4, 3, 64, 16, 32
FREQUENCY = torch.tensor([0.4, 0.3, 0.2, 0.1])
CODES = torch.cartesian_prod(*[torch.arange(DIGITS)] * LENGTH)  # [64, 3]
CHANCE = FREQUENCY[CODES].prod(-1)
SUMS = LENGTH * (DIGITS - 1) + 1

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--seeds", type=int, default=1)
parser.add_argument("--output", type=Path)
options = parser.parse_args()


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.prompt, self.digit = nn.Embedding(SUMS, WIDTH), nn.Embedding(DIGITS + 1, WIDTH)
        self.cell, self.head = nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, DIGITS)

    def forward(self, sums: Tensor, codes: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return codes, sampled unless given, and their log-probabilities."""
        state, last = self.prompt(sums), torch.full_like(sums, DIGITS)
        written, total = list[Tensor](), torch.zeros(len(sums))
        for place in range(LENGTH):
            state = self.cell(self.digit(last), state)
            choice = torch.distributions.Categorical(logits=self.head(state))
            last = choice.sample() if codes is None else codes[:, place]
            written, total = [*written, last], total + choice.log_prob(last)
        return torch.stack(written, -1), total


METHODS: dict[str, Callable[[Tensor], Tensor]] = {
    "RLOO": arms.weights,
    "BestOf(4)": lambda rewards: arms.weights(rewards, arms.BestOf(4)),
    "GRPO": lambda r: (r - r.mean(0)) / (r.std(0) + 1e-4) / len(r),
}


def train(weigh: Callable[[Tensor], Tensor], seed: int) -> tuple[float, float]:
    """Return the mean reward and pass@4 after training."""
    torch.manual_seed(seed)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    for _ in range(options.steps):
        hidden = CODES[torch.multinomial(CHANCE, PROMPTS, replacement=True)]
        codes, log_probs = policy(hidden.sum(-1).repeat(SAMPLES))
        rewards = (codes.view(SAMPLES, PROMPTS, LENGTH) == hidden).all(-1).float()
        optimizer.zero_grad()
        (-(weigh(rewards) * log_probs.view(SAMPLES, PROMPTS)).sum(0).mean()).backward()
        optimizer.step()
    guessed = policy(CODES.sum(-1), CODES)[1].detach().exp()  # the probability of each code
    return float(CHANCE @ guessed), float(CHANCE @ (1 - (1 - guessed) ** 4))


rows = []
print(f"{'weights':10}{'mean reward':>18}{'pass@4':>18}")
for name, weigh in METHODS.items():
    found = torch.tensor([train(weigh, seed) for seed in range(options.seeds)])
    (mean, best), (std, std_best) = found.mean(0).tolist(), found.std(0, correction=0).tolist()
    rows.append({"weights": name, "mean": mean, "std": std, "pass4": best, "pass4_std": std_best})
    print(f"{name:10}{mean:10.3f} ± {std:.3f}{best:10.3f} ± {std_best:.3f}")
if options.output:
    result = {"command": f"python {' '.join(sys.argv)}", "seeds": options.seeds, "rows": rows}
    options.output.write_text(json.dumps(result, indent=1) + "\n")
