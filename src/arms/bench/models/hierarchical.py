"""The hierarchical VAE: several stochastic layers of bits, x - b1 - b2 - ... - bL, with a leading replica axis.

q(b1|x) q(b2|b1) ... q(bL|b(L-1)) is drawn from the image upwards, p(bL) p(b(L-1)|bL) ... p(x|b1) generates downwards.
log w = sum of a term for each layer, the l-th of which depends on layers 1 to l alone:
log p(x|b1) - log q(b1|x), then log p(b(l-1)|bl) - log q(bl|b(l-1)), with log p(bL) in the last.
"""

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Generator, Tensor, nn

from arms.bench.models.likelihood import smooth_log_prob
from arms.bench.models.vae import DiscreteVAE, signs
from arms.latents import Bits


class HierarchicalVAE(DiscreteVAE):
    """A VAE with two or more layers of bits.

    Args:
        encoders: Of each layer: from centred pixels `[R, B, pixels]` to logits of b1, then from bits as -1 and 1
            `[*lead, R, B, latents]` to logits of the next layer.
        decoders: Of each layer: from bits of b1 as -1 and 1 to logits of the pixels, then from those of a layer to
            logits of the layer before.
        widths: Bits of each layer, the one nearest the image first.
        pixel_mean: As for `DiscreteVAE`.
        replicas: As for `DiscreteVAE`.
    """

    def __init__(
        self,
        encoders: Sequence[nn.Module],
        decoders: Sequence[nn.Module],
        widths: Sequence[int],
        pixel_mean: Tensor,
        replicas: int = 1,
    ) -> None:
        super().__init__(encoders[0], decoders[0], widths[0], pixel_mean, replicas)
        self.deeper_encoders = nn.ModuleList(encoders[1:])
        self.deeper_decoders = nn.ModuleList(decoders[1:])
        self.prior = nn.Parameter(torch.zeros(replicas, 1, widths[-1]))

    def encoder_modules(self) -> list[nn.Module]:
        return [*super().encoder_modules(), *self.deeper_encoders]

    def log_weights(self, *args: object, **options: object) -> NoReturn:
        """Raise: one layer's bits have no weight here; `chain_log_weights` draws the deeper ones, `terms` takes all."""
        raise ValueError(
            "a model of several layers has log-weights of whole chains: use chain_log_weights, or terms with the bits "
            "of every layer"
        )

    forward = log_weights

    def encode_layer(self, layer: int, below: Tensor) -> Tensor:
        """Return the logits of layer 1, 2, ... (0 is `encode`) given the bits of the layer before."""
        return _logits(self.deeper_encoders[layer - 1], below)

    def terms(
        self, x: Tensor, logits: Sequence[Tensor], bits: Sequence[Tensor], start: int = 0
    ) -> list[Tensor]:
        """Return the terms `[n, R, B]` of log w, from layer `start` on.

        Args:
            x: `[R, B, pixels]` of 0 and 1.
            logits: Of q, for each layer; those before `start` are not looked at.
            bits: `[n, R, B, latents]` of each layer, or points between them.
            start: The first layer whose term is wanted, from 0.
        """
        found = []
        for layer in range(start, len(bits)):
            own = bits[layer]
            if layer == 0:
                likelihood = self.log_likelihood(own, x)
            else:
                likelihood = smooth_log_prob(
                    _logits(self.deeper_decoders[layer - 1], own), bits[layer - 1]
                )
            term = likelihood - smooth_log_prob(logits[layer], own)
            found.append(
                term + smooth_log_prob(self.prior, own) if layer == len(bits) - 1 else term
            )
        return found

    def chain_log_weights(
        self, b: Tensor, x: Tensor, logits: Tensor, generator: Generator | None = None
    ) -> Tensor:
        every_logits, bits = [logits], [b]
        for layer in range(1, len(self.deeper_encoders) + 1):
            every_logits.append(self.encode_layer(layer, bits[-1]))
            bits.append(Bits(every_logits[-1]).sample(1, generator)[0])
        return torch.stack(self.terms(x, every_logits, bits)).sum(0)

    def sample_prior(self, count: int, generator: Generator | None = None) -> Tensor:
        bits = super().sample_prior(count, generator)
        for decoder in reversed(self.deeper_decoders):
            bits = Bits(_logits(decoder, bits)).sample(1, generator)[0]
        return bits


def _logits(module: nn.Module, bits: Tensor) -> Tensor:
    """Return the logits that a module makes of bits, in their layout: a compiled backward counts on it."""
    logits: Tensor = module(signs(bits))
    return logits.contiguous()
