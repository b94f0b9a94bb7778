"""The discrete variational autoencoder, with a leading replica axis in every parameter; it knows no estimator.

One stochastic layer of bits b, or of choices among K categories, binary pixels x:
log w(b) = log p(x|b) + log p(b) - log q(b|x), with shapes x `[R, B, pixels]`, logits `[R, B, latents]`,
b `[n, R, B, latents]`, log-weights `[n, R, B]`; of categories, logits `[R, B, latents, K]` and one-hot b
`[n, R, B, latents, K]`. Training R independent replicas costs little more than training one.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

from arms.arguments import as_count
from arms.bench.models.layers import ReplicaLinear, call_with, parameter_places
from arms.bench.models.likelihood import affine_log_prob, bernoulli_log_prob, smooth_log_prob
from arms.bench.models.pixels import Pixels
from arms.latents import Bits, Latent, OneHot


class DiscreteVAE(nn.Module):
    """A discrete VAE with any encoder and decoder.

    Args:
        encoder: Module or function from centred pixels `[R, B, pixels]` to logits `[R, B, latents]`, of categories
            `[R, B, latents K]`.
        decoder: Module or function from latents as -1 and 1, `[n, R, B, latents]`, of categories one-hot
            `[n, R, B, latents K]`, to logits `[n, R, B, pixels]`.
        latents: How many latent variables.
        pixel_mean: Subtracted from the encoder's input: `[pixels]`, or `[R, 1, pixels]` where replicas learn from
            different data sets.
        replicas: How many independent models are side by side; with more than one, every parameter of encoder and
            decoder must have a leading axis of that length, as in `ReplicaLinear`.
        name: What runs and reports call it.
        likelihood: What the decoder's outputs say of the pixels; unless given, the logits of bits.
        categories: K, among which each latent variable chooses; 2 makes them bits.

    >>> vae = DiscreteVAE(nn.Linear(64, 20), nn.Linear(20, 64), latents=20, pixel_mean=torch.full((64,), 0.3))
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
        *,
        name: str = "",
        likelihood: Pixels | None = None,
        categories: int = 2,
    ) -> None:
        super().__init__()
        if pixel_mean.ndim != 1 and pixel_mean.shape[:-1] != (replicas, 1):
            raise ValueError(
                f"pixel_mean must be [pixels] or [{replicas}, 1, pixels], got {list(pixel_mean.shape)}: "
                "pass dataset.pixel_mean()"
            )
        self.encoder, self.decoder = encoder, decoder
        self.replicas, self.latents = replicas, latents
        self.name, self.likelihood = name, likelihood
        self.categories = as_count(categories, 2, "categories")
        self.prior = nn.Parameter(torch.zeros(replicas, 1, *self.event_shape))
        self.register_buffer("pixel_mean", pixel_mean.detach().expand(replicas, 1, -1).clone())

    @property
    def sees_bits(self) -> bool:
        """Whether x is bits drawn from the grey values; otherwise it is the grey values themselves, from 0 to 1."""
        return self.likelihood is None

    def extra_repr(self) -> str:
        """Return what is no module of its own."""
        kind = f"x{self.categories}" if self.categories > 2 else ""
        return f"latents={self.latents}{kind}" + (
            f", likelihood={self.likelihood}" if self.likelihood else ""
        )

    @property
    def event_shape(self) -> torch.Size:
        """Of the logits of the layer nearest the image, beyond replicas and images."""
        return torch.Size(
            [self.latents] if self.categories == 2 else [self.latents, self.categories]
        )

    def latent(self, logits: Tensor, context: Tensor | None = None) -> Latent:
        """Return the latent variables of these logits; a context is kept for estimators of bits that look at it."""
        return Bits(logits, context) if self.categories == 2 else OneHot(logits)

    def encode(self, x: Tensor) -> Tensor:
        """Return the logits of q(b|x) `[R, B, latents]`, or `[R, B, latents, K]`."""
        logits = self.encoder(x - self.pixel_mean)
        if self.categories == 2:
            _check_width(logits, self.latents, "encoder")
            return logits
        _check_width(logits, self.latents * self.categories, "encoder")
        of_categories: Tensor = logits.unflatten(-1, (self.latents, self.categories))
        return of_categories

    def decode(self, b: Tensor) -> Tensor:
        """Return the logits of p(x|b) `[*lead, R, B, pixels]`, or what else the likelihood is made of."""
        logits = self.decoder(self._inputs(b))
        _check_width(logits, self._outputs(), "decoder")
        return logits

    def _inputs(self, b: Tensor) -> Tensor:
        """Return latents as the decoder gets them."""
        return signs(b) if self.categories == 2 else b.flatten(-2)

    def mean_image(self, b: Tensor) -> Tensor:
        """Return the mean of p(x|b), `[*lead, R, B, pixels]` from 0 to 1."""
        outputs = self.decode(b)
        return self.likelihood.mean(outputs) if self.likelihood else torch.sigmoid(outputs)

    def _outputs(self) -> int:
        pixels = self.pixel_mean.shape[-1]
        return self.likelihood.outputs(pixels) if self.likelihood else pixels

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
            b: `[n, R, B, latents]`, bits or points between them; of categories `[n, R, B, latents, K]`.
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
        slope, constant = self._log_ratio(logits)
        flat = b if self.categories == 2 else b.flatten(-2)
        likelihood = self.log_likelihood(b, x, attached, differentiated > 0, twice)
        if attached == len(b):
            return likelihood + ((flat * slope).sum(-1) + constant)
        # The rest has the same value but no graph: neither the logits nor the prior learn from it.
        first, rest = flat[:attached], flat[attached:]
        ratio = torch.cat(
            [
                (first * slope).sum(-1) + constant,
                (rest * slope.detach()).sum(-1) + constant.detach(),
            ]
        )
        return likelihood + ratio

    forward = log_weights

    def _log_ratio(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return log p(b) - log q(b) as a slope in b, categories side by side, and a constant: one pass over samples.

        Of bits it is b (prior - logits) - softplus(prior) + softplus(logits).
        """
        if self.categories > 2:
            slope = (self.prior.log_softmax(-1) - logits.log_softmax(-1)).flatten(-2)
            return slope, torch.zeros_like(slope[..., 0])
        softplus = nn.functional.softplus
        # Padded by a zero, the sum is compiled to a kernel of its own; fused, all else of this shape would wait for it.
        constant = nn.functional.pad(softplus(logits) - softplus(self.prior), (0, 1)).sum(-1)
        return self.prior - logits, constant

    def chain_log_weights(
        self, b: Tensor, x: Tensor, logits: Tensor, generator: Generator | None = None
    ) -> Tensor:
        """Return log-weights `[n, R, B]` for evaluation; deeper layers, where a model has any, are drawn here."""
        return self.log_weights(b, x, logits)

    def sample_prior(self, count: int, generator: Generator | None = None) -> Tensor:
        """Draw this many samples of the layer nearest the image from the model, `[R, count, *event]`."""
        return self.latent(self.prior.expand(-1, count, *self.prior.shape[2:])).sample(
            1, generator
        )[0]

    def encoder_modules(self) -> list[nn.Module]:
        """Return the modules whose parameters make the logits of q."""
        return [self.encoder] if isinstance(self.encoder, nn.Module) else []

    def log_likelihood(
        self,
        b: Tensor,
        x: Tensor,
        attached: int | None = None,
        differentiated: bool = False,
        twice: bool = False,
    ) -> Tensor:
        """Return log p(x|b) `[n, R, B]`, with a graph for the first `attached` samples only, for all unless given.

        Where points are `differentiated`, the rest has a graph too, to the points alone.
        """
        decoder = self.decoder
        if (
            self.likelihood is None and twice
        ):  # the faster forms below can be differentiated only once
            return smooth_log_prob(self.decode(b), x)
        if (
            self.likelihood is None
            and isinstance(decoder, nn.Sequential)
            and isinstance(decoder[-1], ReplicaLinear)
        ):
            hidden, h = decoder[:-1], self._inputs(b)
            if len(decoder) > 1:
                h = _attach_first(
                    hidden, h, attached, _with_constants(hidden) if differentiated else None
                )
            return affine_log_prob(h, decoder[-1], x, attached, differentiated)
        constant = _with_constants(decoder) if differentiated else None
        logits = _attach_first(decoder, self._inputs(b), attached, constant)
        _check_width(logits, self._outputs(), "decoder")
        return (
            self.likelihood.log_prob(logits, x)
            if self.likelihood
            else bernoulli_log_prob(logits, x)
        )


def signs(b: Tensor) -> Tensor:
    """Return 2b - 1."""
    return (2 * b).sub_(1)


def _check_width(logits: Tensor, width: int, part: str) -> None:
    if logits.shape[-1] != width:
        raise ValueError(
            f"the {part} must return logits [..., {width}], got {list(logits.shape)}: change its last layer, or "
            f"{'latents (times categories)' if part == 'encoder' else 'pixel_mean'}"
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
    constants = {place: weight.detach() for place, weight in parameter_places(function).items()}
    return lambda *args, **kwargs: call_with(function, constants, args, kwargs)
