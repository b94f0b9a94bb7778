"""The binary variational autoencoder, with a leading replica axis in every parameter; it knows no estimator.

One stochastic layer of Bernoulli latents b, binary pixels x:
log w(b) = log p(x|b) + log p(b) - log q(b|x), with shapes x `[R, B, pixels]`, logits `[R, B, latents]`,
b `[n, R, B, latents]`, log-weights `[n, R, B]`. Training R independent replicas costs little more than training one.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

from arms.bench.models.layers import ReplicaLinear
from arms.bench.models.likelihood import affine_log_prob, bernoulli_log_prob
from arms.latents import Bernoulli


class BinaryVAE(nn.Module):
    """A discrete VAE with any encoder and decoder.

    Args:
        encoder: Module or function from centred pixels `[R, B, pixels]` to logits `[R, B, latents]`.
        decoder: Module or function from latents as -1 and 1, `[n, R, B, latents]`, to logits `[n, R, B, pixels]`.
        latents: How many binary latent variables.
        pixel_mean: Subtracted from the encoder's input: `[pixels]`, or `[R, 1, pixels]` where replicas learn from
            different data sets.
        replicas: How many independent models are side by side; with more than one, every parameter of encoder and
            decoder must have a leading axis of that length, as in `ReplicaLinear`.

    >>> vae = BinaryVAE(nn.Linear(64, 20), nn.Linear(20, 64), latents=20, pixel_mean=torch.full((64,), 0.3))
    >>> vae.encode(torch.ones(1, 5, 64)).shape
    torch.Size([1, 5, 20])
    """

    pixel_mean: Tensor

    def __init__(
        self,
        encoder: Callable[[Tensor], Tensor],
        decoder: Callable[[Tensor], Tensor],
        latents: int,
        pixel_mean: Tensor,
        replicas: int = 1,
    ) -> None:
        super().__init__()
        if pixel_mean.ndim != 1 and pixel_mean.shape[:-1] != (replicas, 1):
            raise ValueError(
                f"pixel_mean must be [pixels] or [{replicas}, 1, pixels], got {list(pixel_mean.shape)}: "
                "pass dataset.pixel_mean()"
            )
        self.encoder, self.decoder = encoder, decoder
        self.replicas, self.latents = replicas, latents
        self.prior = nn.Parameter(torch.zeros(replicas, 1, latents))
        self.register_buffer("pixel_mean", pixel_mean.detach().expand(replicas, 1, -1).clone())

    def encode(self, x: Tensor) -> Tensor:
        """Return the logits of q(b|x) `[R, B, latents]`."""
        logits = self.encoder(x - self.pixel_mean)
        _check_width(logits, self.latents, "encoder")
        return logits

    def decode(self, b: Tensor) -> Tensor:
        """Return the logits of p(x|b) `[*lead, R, B, pixels]`."""
        logits = self.decoder(signs(b))
        _check_width(logits, self.pixel_mean.shape[-1], "decoder")
        return logits

    def log_weights(
        self,
        b: Tensor,
        x: Tensor,
        logits: Tensor,
        attached: int | None = None,
        differentiated: int = 0,
        twice: bool = False,
    ) -> Tensor:
        """Return log p(x|b) + log p(b) - log q(b|x) `[n, R, B]`.

        Args:
            b: `[n, R, B, latents]`, bits or points between them.
            x: `[R, B, pixels]` of 0 and 1.
            logits: `[R, B, latents]` of q(b|x).
            attached: How many points, the first ones, are in the graph of the model's parameters and the logits: one
                pass evaluates samples to learn from and samples that are only looked at. All unless given.
            differentiated: How many points, the last ones, pass gradients to themselves. Where none of these is
                attached, all else is constant there.
            twice: Whether that gradient is to be differentiated once more, which takes a slower likelihood.
        """
        attached = len(b) if attached is None else attached
        split = len(b) - differentiated
        if differentiated and attached <= split:
            last = _with_constants(self)(b[split:], x, logits.detach(), twice=twice)
            return torch.cat([self.log_weights(b[:split].detach(), x, logits, attached), last])
        # log p(b) - log q(b) in one pass over the samples: b (prior - logits) - softplus(prior) + softplus(logits)
        softplus = nn.functional.softplus
        # Padded by a zero, the sum is compiled to a kernel of its own; fused, all else of this shape would wait for it.
        constant = nn.functional.pad(softplus(logits) - softplus(self.prior), (0, 1)).sum(-1)
        slope = self.prior - logits
        likelihood = self.log_likelihood(b, x, attached, differentiated > 0, twice)
        if attached == len(b):
            return likelihood + ((b * slope).sum(-1) + constant)
        # The rest has the same value but no graph: neither the logits nor the prior learn from it.
        first, rest = b[:attached], b[attached:]
        ratio = torch.cat([(first * slope).sum(-1) + constant, (rest * slope.detach()).sum(-1) + constant.detach()])
        return likelihood + ratio

    forward = log_weights

    def chain_log_weights(self, b: Tensor, x: Tensor, logits: Tensor, generator: Generator | None = None) -> Tensor:
        """Return log-weights `[n, R, B]` for evaluation; deeper layers, where a model has any, are drawn here."""
        return self.log_weights(b, x, logits)

    def sample_prior(self, count: int, generator: Generator | None = None) -> Tensor:
        """Draw this many samples of the layer nearest the image from the model, `[R, count, latents]`."""
        return Bernoulli(self.prior.expand(-1, count, -1)).sample(1, generator)[0]

    def encoder_modules(self) -> list[nn.Module]:
        """Return the modules whose parameters make the logits of q."""
        return [self.encoder] if isinstance(self.encoder, nn.Module) else []

    def log_likelihood(
        self, b: Tensor, x: Tensor, attached: int | None = None, differentiated: bool = False, twice: bool = False
    ) -> Tensor:
        """Return log p(x|b) `[n, R, B]`, with a graph for the first `attached` samples only, for all unless given.

        Where points are `differentiated`, the rest has a graph too, to the points alone.
        """
        decoder = self.decoder
        if twice:  # the faster forms below can be differentiated only once
            a = self.decode(b)
            return (x * a - nn.functional.softplus(a)).sum(-1)
        if isinstance(decoder, nn.Sequential) and isinstance(decoder[-1], ReplicaLinear):
            hidden, h = decoder[:-1], signs(b)
            if len(decoder) > 1:
                h = _attach_first(hidden, h, attached, _with_constants(hidden) if differentiated else None)
            return affine_log_prob(h, decoder[-1], x, attached, differentiated)
        constant = _with_constants(decoder) if differentiated else None
        logits = _attach_first(decoder, signs(b), attached, constant)
        _check_width(logits, self.pixel_mean.shape[-1], "decoder")
        return bernoulli_log_prob(logits, x)


def signs(b: Tensor) -> Tensor:
    """Return 2b - 1."""
    return (2 * b).sub_(1)


def _check_width(logits: Tensor, width: int, part: str) -> None:
    if logits.shape[-1] != width:
        raise ValueError(
            f"the {part} must return logits [..., {width}], got {list(logits.shape)}: change its last layer, or "
            f"{'latents' if part == 'encoder' else 'pixel_mean'}"
        )


def _attach_first(
    function: Callable[[Tensor], Tensor],
    b: Tensor,
    attached: int | None,
    constant: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Apply a function to all samples, with a graph for the first `attached` only; to the rest the `constant` one."""
    if attached is None or attached == len(b):
        return function(b)
    if constant is not None:
        return torch.cat([function(b[:attached]), constant(b[attached:])])
    with torch.no_grad():
        rest = function(b[attached:])
    return torch.cat([function(b[:attached]), rest])


def _with_constants(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a module as a function whose parameters are constants, so that only its arguments have a graph."""
    if not isinstance(function, nn.Module):
        return function
    constants = {name: parameter.detach() for name, parameter in function.named_parameters()}
    return lambda *args, **kwargs: torch.func.functional_call(function, constants, args, kwargs)
