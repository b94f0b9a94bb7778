"""A linear discrete VAE trained with LOORF, written efficiently in plain eager PyTorch.

It shares only the data with the package. It therefore has two uses: the time of the package's training step is measured
relative to it, and the package's numbers must agree with it.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus


class HandwrittenVAE(nn.Module):
    mean: Tensor

    def __init__(self, pixel_mean: Tensor, latents: int = 200) -> None:
        super().__init__()
        pixels = len(pixel_mean)
        self.encoder, self.decoder = nn.Linear(pixels, latents), nn.Linear(latents, pixels)
        self.prior = nn.Parameter(torch.zeros(latents))
        self.register_buffer("mean", pixel_mean)
        for layer in (self.encoder, self.decoder):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        with torch.no_grad():
            self.decoder.bias.copy_(torch.logit(pixel_mean.clamp(0.001, 0.999)))

    def log_joint(self, x: Tensor, b: Tensor) -> Tensor:
        pixels = binary_cross_entropy_with_logits(
            self.decoder(2 * b - 1), x.expand(len(b), -1, -1), reduction="none"
        )
        return log_prob(self.prior, b) - pixels.sum(-1)


def log_prob(logits: Tensor, b: Tensor) -> Tensor:
    return (b * logits - softplus(logits)).sum(-1)


def draw_bits(probs: Tensor) -> Tensor:
    return (
        torch.rand_like(probs) < probs
    ).float()  # three times as fast as torch.bernoulli on a CPU


class Handwritten:
    """The training loop's state; `step()` returns the ELBO of the batch."""

    def __init__(
        self,
        images: Tensor,
        levels: int,
        num_samples: int,
        latents: int = 200,
        learning_rate: float = 1e-4,
        batch_size: int = 50,
    ) -> None:
        self.probs = images.float() / levels
        self.model = HandwrittenVAE(self.probs.mean(0), latents)
        self.num_samples, self.batch_size = num_samples, batch_size
        weights = [*self.model.encoder.parameters(), *self.model.decoder.parameters()]
        self.adam = torch.optim.Adam(weights, lr=learning_rate, eps=1e-7)
        self.sgd = torch.optim.SGD([self.model.prior], lr=1e-2)

    def step(self) -> Tensor:
        model, n = self.model, self.num_samples
        x = draw_bits(self.probs[torch.randint(len(self.probs), (self.batch_size,))])
        logits = model.encoder(x - model.mean)
        b = draw_bits(torch.sigmoid(logits.detach()).expand(n, -1, -1))
        log_q, log_joint = log_prob(logits, b), model.log_joint(x, b)
        elbo = (log_joint - log_q).detach()
        signal = (elbo - elbo.mean(0)) / (n - 1)
        loss = -((signal * log_q).sum(0) + log_joint.mean(0)).mean()
        self.adam.zero_grad()
        self.sgd.zero_grad()
        loss.backward()
        self.adam.step()
        self.sgd.step()
        return elbo.mean()
