"""A discrete VAE in plain PyTorch: 40 bits for an 8 x 8 digit, trained on the ELBO.

python examples/discrete_vae.py
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributions import Bernoulli

import arms

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--steps", type=int, default=1500)
parser.add_argument("--estimator", default="midpoint", help="any of `arms estimators`")
options = parser.parse_args()
torch.manual_seed(0)

digits = torch.from_numpy(load_digits().data).float() / 16
images = digits.bernoulli()  # gray values are probabilities
train, test = images[:1500], images[1500:]

encoder = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 40))
decoder = nn.Sequential(nn.Linear(40, 100), nn.ReLU(), nn.Linear(100, 64))
prior = nn.Parameter(torch.zeros(40))


def elbo(x: Tensor, estimator: str, num_samples: int) -> Tensor:
    logits = encoder(x)

    def log_weight(b: Tensor) -> Tensor:  # [n, batch, 40] -> [n, batch]
        pixels: Tensor = Bernoulli(logits=decoder(b), validate_args=False).log_prob(x).sum(-1)
        # log q is detached, because its score has mean zero and would only add noise.
        divergence = arms.Bits(logits.detach()).log_prob(b) - arms.Bits(prior).log_prob(b)
        return pixels - divergence

    return arms.expectation(log_weight, logits, estimator, num_samples)


optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters(), prior], lr=3e-3)
for step in range(options.steps):
    batch = train[torch.randint(len(train), (100,))]
    loss = -elbo(batch, options.estimator, 4).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % (options.steps // 5 or 1) == 0:
        print(f"step {step}: ELBO {-loss.item():.1f} nats")

with torch.no_grad():
    print(f"test ELBO: {elbo(test, 'loorf', 100).mean().item():.2f} nats")
    made = decoder(prior.sigmoid().expand(6, 40).bernoulli()).sigmoid()
for row in range(8):  # six samples of the model
    print(
        "   ".join(
            "".join(" .:*#"[int(4.99 * gray)] * 2 for gray in one.view(8, 8)[row].tolist())
            for one in made
        )
    )
