"""A VAE with categories and `F.gumbel_softmax`, as it is usually written, without this package.

docs/sites.md changes it to an unbiased gradient in four lines, and the tests train the result.

    python examples/gumbel_vae.py
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

parser = argparse.ArgumentParser(description="A VAE of digits with 10 choices among 8 categories.")
parser.add_argument("--steps", type=int, default=1500)
options = parser.parse_args()


class VAE(nn.Module):
    def __init__(self, choices: int = 10, categories: int = 8) -> None:
        super().__init__()
        self.shape = (choices, categories)
        size = choices * categories
        self.encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, size))
        self.decoder = nn.Sequential(nn.Linear(size, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.encoder(x).unflatten(-1, self.shape)
        z = F.gumbel_softmax(logits, hard=True)
        return self.decoder(z.flatten(1)), logits

    def loss(self, x: Tensor) -> Tensor:
        """The negative ELBO per image, under a uniform prior."""
        pixels, logits = self(x)
        reconstruction = F.binary_cross_entropy_with_logits(pixels, x, reduction="none")
        log_q = logits.log_softmax(-1)
        prior = torch.tensor(self.shape[1]).log()
        kl = (log_q.exp() * (log_q + prior)).sum((-1, -2))
        total: Tensor = reconstruction.sum(-1) + kl
        return total


torch.manual_seed(0)
images = torch.from_numpy(load_digits().data).float() / 16
train, test = images[:1500].bernoulli(), images[1500:].bernoulli()
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for _ in range(options.steps):
    x = train[torch.randint(len(train), (100,))]
    loss = model.loss(x)
    optimizer.zero_grad()
    loss.mean().backward()
    optimizer.step()
with torch.no_grad():
    print(f"test ELBO: {-model.loss(test).mean():.2f} nats")
