"""What the biased estimators share: derivatives of f taken back to the logits, sample by sample."""

import torch
from torch import Tensor

from arms.arguments import at_least_float32
from arms.latents import Binary, Latent


def mean_of_paths(latent: Latent, of_samples: Tensor) -> Tensor:
    """Return the mean over samples `[n, *batch, *event]`, zero where a bit cannot change."""

    def of_part(part: Latent, grads: Tensor) -> Tensor:
        grad = grads.mean(0)
        if not part.has(Binary):
            return grad
        possible = torch.sigmoid(-at_least_float32(part.logits).abs()) > 0
        return torch.where(possible, grad, 0.0)

    return latent.map_parts(of_part, of_samples)


def sigmoid_derivative(x: Tensor) -> Tensor:
    """Return the derivative of the sigmoid, without a difference that loses the tails' digits."""
    return torch.sigmoid(x) * torch.sigmoid(-x)
