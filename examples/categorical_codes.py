"""Categorical codes: send a digit as 6 symbols of an alphabet of 16 through a noisy channel.

The receiver's network gets the received indices. The channel cannot be differentiated. With `arms.Indices`, the
objective receives indices.

    python examples/categorical_codes.py
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import arms

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--steps", type=int, default=1500)
parser.add_argument("--noise", type=float, default=0.1, help="probability that a symbol is changed")
options = parser.parse_args()

images = torch.from_numpy(load_digits().data).float() / 16
labels = torch.from_numpy(load_digits().target)
train, test = slice(0, 1400), slice(1400, None)
SYMBOLS, ALPHABET = 6, 16


def channel(code: Tensor) -> Tensor:
    wrong = torch.rand(code.shape) < options.noise
    return torch.where(wrong, torch.randint(ALPHABET, code.shape), code)


def fit(estimator: str) -> tuple[float, list[list[int]]]:
    """Train sender and receiver, and return the accuracy, and the most likely code of one image per digit."""
    torch.manual_seed(0)
    sender = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, SYMBOLS * ALPHABET))
    symbols = nn.Embedding(SYMBOLS * ALPHABET, 32)
    receiver = nn.Sequential(nn.ReLU(), nn.Linear(32, 10))

    def read(code: Tensor) -> Tensor:  # [..., symbols] -> [..., 10]
        logits: Tensor = receiver(symbols(code + ALPHABET * torch.arange(SYMBOLS)).sum(-2))
        return logits

    optimizer = torch.optim.Adam(
        [*sender.parameters(), *symbols.parameters(), *receiver.parameters()], lr=3e-3
    )
    for _ in range(options.steps):
        rows = torch.randint(1400, (64,))
        codes = arms.Indices(sender(images[rows]).view(64, SYMBOLS, ALPHABET))

        def log_likelihood(
            code: Tensor, right: Tensor = labels[rows]
        ) -> Tensor:  # [n, 64, symbols] -> [n, 64]
            return (
                read(channel(code))
                .log_softmax(-1)
                .gather(-1, right.expand(len(code), 64).unsqueeze(-1))
                .squeeze(-1)
            )

        value = arms.expectation(log_likelihood, codes, estimator, 8)
        optimizer.zero_grad()
        (-value.mean()).backward()
        optimizer.step()
    with torch.no_grad():
        sent = sender(images).view(-1, SYMBOLS, ALPHABET).argmax(-1)
        accuracy = (read(channel(sent[test])).argmax(-1) == labels[test]).float().mean().item()
        return accuracy, [sent[test][labels[test] == digit][0].tolist() for digit in range(10)]


for estimator in ("reinforce", "loorf", "arms"):
    accuracy, words = fit(estimator)
    print(f"{estimator:10} test accuracy after the channel: {accuracy:.3f}")
print("a digit and its word, by the last:")
for digit, word in enumerate(words):
    print(f"  {digit}  {''.join('abcdefghijklmnop'[symbol] for symbol in word)}")
