"""A belief network of two stochastic layers, x <- b1 <- b2, on digits: eight chains, eight evaluations.

python examples/belief_network.py
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import arms

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--steps", type=int, default=1000)
options = parser.parse_args()
digits = (torch.from_numpy(load_digits().data).float() / 16 > 0.5).float()
train, test = digits[:1500], digits[1500:]


def log_prob(b: Tensor, logits: Tensor) -> Tensor:
    return arms.Bits(logits).log_prob(b)


class BeliefNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up1, self.up2 = nn.Linear(64, 50), nn.Linear(50, 20)
        self.down1, self.down2, self.top = (
            nn.Linear(50, 64),
            nn.Linear(20, 50),
            nn.Parameter(torch.zeros(20)),
        )

    def forward(self, x: Tensor, estimator: str, num_samples: int, by_layer: bool) -> Tensor:
        """Return the ELBO `[batch]`, with the gradient of both layers."""
        q1 = arms.draw(self.up1(x), estimator, num_samples)
        q2 = arms.draw(self.up2(q1.samples), given=q1)  # every chain has its own logits
        b1, b2 = q1.samples, q2.samples
        known = log_prob(x, self.down1(b1)) - log_prob(b1, q1.logits)  # depends on b1 only
        rest = log_prob(b1, self.down2(b2)) + log_prob(b2, self.top) - log_prob(b2, q2.logits)
        # By layer, a layer learns only from its own and later terms, which lowers the variance.
        return arms.attach([q1, q2], [known, rest] if by_layer else known + rest)


def fit(estimator: str, by_layer: bool) -> float:
    """Train, and return the ELBO of the test images."""
    torch.manual_seed(0)
    network = BeliefNetwork()
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(options.steps):
        batch = train[torch.randint(len(train), (100,))]
        optimizer.zero_grad()
        (-network(batch, estimator, 8, by_layer).mean()).backward()
        optimizer.step()
    with torch.no_grad():
        return float(network(test, "loorf", 100, True).mean())


print(f"{'first layer':14}{'terms':22}{'test ELBO, nats':>16}")
for estimator, by_layer in (
    ("reinforce", False),
    ("loorf", False),
    ("loorf", True),
    ("arms", True),
):
    terms = "one for each layer" if by_layer else "the whole objective"
    print(f"{estimator:14}{terms:22}{fit(estimator, by_layer):16.2f}")
