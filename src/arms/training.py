"""One training step and its state: on the device, with no look at a value, so that nothing waits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from arms.arguments import as_count
from arms.couplings import Independent
from arms.data import Dataset, binarize
from arms.estimators import Estimator, Exact, MultiSample
from arms.estimators import estimator as as_estimator
from arms.estimators.base import gradient
from arms.estimators.exact import MOST_LATENTS
from arms.models import BinaryVAE, Network, build_vae, seeded_generator

VARIANCE_DECAY = 0.999


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides the numbers of a run. The defaults are the paper's, but for the decoder's gradient."""

    dataset: str = "digits"
    """Data set by name (see `arms data list`)."""
    network: Network = "linear"
    """One affine layer each way, or two hidden layers of 200 in between."""
    estimator: str = "arms-s"
    """Gradient estimator by name (see `arms estimators`)."""
    num_samples: int = 4
    """Evaluations of the decoder per image and step."""
    replicas: int = 1
    """Independent seeds trained at once."""
    steps: int = 10_000
    """Optimisation steps."""
    seed: int = 0
    """Seed of everything: weights, batches, bits, samples."""
    batch_size: int = 50
    """Images per step and replica."""
    latents: int = 200
    """Binary latent variables."""
    learning_rate: float = 1e-4
    """Adam's, for encoder and decoder."""
    prior_learning_rate: float = 1e-2
    """Gradient ascent's, for the prior logits."""
    decoder_samples: Literal["all", "extra"] = "all"
    """Where decoder and prior take their gradient from: all samples, or one extra, independent one (the paper).
    The multi-sample bound always uses its own samples."""
    report_every: int = 100
    """Steps between two reports."""
    evaluate_every: int = 0
    """Steps between two looks at the test set, a multiple of `report_every`; 0 looks only at the end."""
    evaluate_images: int = 500
    """Test images of such a look; at the end it is all of them."""

    def __post_init__(self) -> None:
        for name in ("replicas", "steps", "batch_size", "latents", "report_every", "evaluate_images"):
            as_count(getattr(self, name), 1, name)
        as_count(self.seed, 0, "seed")
        if as_count(self.evaluate_every, 0, "evaluate_every") % self.report_every:
            raise ValueError(
                f"evaluate_every must be a multiple of report_every ({self.report_every}), got {self.evaluate_every}"
            )
        for name in ("learning_rate", "prior_learning_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if isinstance(as_estimator(self.estimator, self.num_samples), Exact) and self.latents > MOST_LATENTS:
            raise ValueError(
                f"exact trains at most {MOST_LATENTS} latents, got {self.latents}: choose another estimator"
            )


def paper_preset(config: TrainConfig) -> TrainConfig:
    """Return the configuration under the paper's protocol: a million steps, five seeds, its decoder rule."""
    return replace(config, steps=1_000_000, replicas=5, decoder_samples="extra")


class Trainer:
    """A run in memory: model, estimator, optimisers, generator, step; `step()` advances it."""

    def __init__(
        self,
        config: TrainConfig,
        dataset: Dataset,
        device: str = "cpu",
        model: BinaryVAE | None = None,
        estimator: Estimator | None = None,
    ) -> None:
        self.config = config
        self.images, self.levels = dataset.train.to(device), dataset.levels
        pixel_mean = dataset.pixel_mean()
        if model is None:
            model = build_vae(config.network, config.latents, pixel_mean, config.replicas, config.seed, device)
        self.model = model
        self.generator = run_generator(config.seed, device)
        self.estimator = (estimator or as_estimator(config.estimator, config.num_samples)).for_replicas(
            config.replicas, model.latents, len(pixel_mean), seeded_generator(config.seed, "estimator", device=device)
        )
        self.weights = [p for p in model.parameters() if p is not model.prior]
        self.learnt = list(self.estimator.parameters())
        groups = [{"params": group} for group in (self.weights, self.learnt) if group]
        on_gpu = self.images.is_cuda
        self.optimizer = torch.optim.Adam(groups, lr=config.learning_rate, eps=1e-7, fused=True, capturable=on_gpu)
        self._noise = None if on_gpu else self.generator  # None is the device's default: the same one, and compilable
        encoder = model.encoder
        self.encoder_weights = list(encoder.parameters()) if isinstance(encoder, nn.Module) else []
        self.mean_grads = [torch.zeros_like(p) for p in self.encoder_weights]
        self.steps_done = 0
        self.elbo_sum = torch.zeros(config.replicas, device=device)
        self.elbo_count = 0

    def step(self) -> None:
        """Draw a batch, estimate, update."""
        self.update()
        self.count(1)

    def update(self) -> None:
        """Do what a step does on the device, and nothing else: no value is looked at, so a CUDA graph can hold it."""
        if self.estimator.relaxes:
            self._backward_relaxed(self._batch())
        else:
            self._backward(self._batch())
        self._apply_gradients()

    def count(self, steps: int) -> None:
        """Note that so many updates were done."""
        self.steps_done += steps
        self.elbo_count += steps

    def surrogate(self) -> tuple[Tensor, Tensor]:
        """Return a loss whose gradient is the step's, and the batch's ELBO `[R]`: the whole step as one function."""
        logits, grad, value, elbo = self._estimate(self._batch())
        return self._scale * (value.sum() + (logits * grad).sum()), elbo

    def update_by(self, surrogate: Callable[[], tuple[Tensor, Tensor]]) -> None:
        """Do an update through `surrogate`, or a compiled form of it."""
        loss, elbo = surrogate()
        loss.backward()
        self.elbo_sum += elbo
        self._apply_gradients()

    def _apply_gradients(self) -> None:
        self.optimizer.step()
        prior = self.model.prior
        assert prior.grad is not None
        with torch.no_grad():
            prior.add_(prior.grad, alpha=-self.config.prior_learning_rate)
            if self.encoder_weights:
                grads = [p.grad for p in self.encoder_weights if p.grad is not None]
                torch._foreach_lerp_(self.mean_grads, grads, 1 - VARIANCE_DECAY)
        for parameter in (*self.weights, *self.learnt, prior):
            parameter.grad = None

    def gradient_variance(self) -> Tensor:
        """Return the paper's curve `[R]`: EMA(g^2) - EMA(g)^2, bias-corrected, mean over the encoder's parameters.

        Adam keeps the first of the two anyway, with the same decay. It includes the noise of the minibatch.
        """
        correction = 1 - VARIANCE_DECAY ** max(1, self.steps_done)
        total = torch.zeros_like(self.elbo_sum)
        for parameter, mean in zip(self.encoder_weights, self.mean_grads, strict=True):
            square = self.optimizer.state[parameter]["exp_avg_sq"]
            total += (square / correction - (mean / correction).square()).reshape(self.config.replicas, -1).sum(1)
        return total / max(1, sum(p.numel() for p in self.encoder_weights) // self.config.replicas)

    def recent_elbo(self) -> Tensor:
        """Return the mean ELBO `[R]` over the training batches since the last call, and start anew."""
        mean = self.elbo_sum / max(1, self.elbo_count)
        self.elbo_sum.zero_()
        self.elbo_count = 0
        return mean

    def state(self) -> dict[str, Tensor]:
        """Return all that the future of the run depends on, as named tensors."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"estimator.{index}": tensor for index, tensor in enumerate(self.learnt)}
        for index, parameter in enumerate((*self.weights, *self.learnt)):
            moments = self.optimizer.state.get(parameter, {})
            tensors |= {f"adam.{index}.{name}": tensor for name, tensor in moments.items()}
        tensors |= {f"mean_grad.{index}": tensor for index, tensor in enumerate(self.mean_grads)}
        tensors["generator"] = self.generator.get_state()
        tensors["elbo_sum"] = self.elbo_sum
        tensors["counts"] = torch.tensor([self.steps_done, self.elbo_count])
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Go back to a state that `state()` returned."""
        device = self.images.device
        if tensors["generator"].shape != self.generator.get_state().shape:
            raise ValueError(f"the checkpoint was made on another kind of device than {device}: go on with it there")
        self.model.load_state_dict(part_of_state(tensors, "model."))
        with torch.no_grad():
            for index, parameter in enumerate(self.learnt):
                parameter.copy_(tensors[f"estimator.{index}"])
        for index, parameter in enumerate((*self.weights, *self.learnt)):
            moments = part_of_state(tensors, f"adam.{index}.")
            self.optimizer.state[parameter] = {name: t.to(device, copy=True) for name, t in moments.items()}
        self.mean_grads = [tensors[f"mean_grad.{index}"].to(device, copy=True) for index in range(len(self.mean_grads))]
        self.generator.set_state(tensors["generator"].cpu())
        self.elbo_sum = tensors["elbo_sum"].to(device, copy=True)
        self.steps_done, self.elbo_count = (int(count) for count in tensors["counts"])

    def _batch(self) -> Tensor:
        """Bits of random training images `[R, B, pixels]`, each replica its own."""
        replicas, device = self.config.replicas, self.images.device
        count = replicas * self.config.batch_size
        rows = torch.randint(len(self.images), (count,), generator=self._noise, device=device)
        images = self.images.index_select(0, rows).unflatten(0, (replicas, -1))
        return binarize(images, self.levels, self._noise)

    def _backward(self, x: Tensor) -> None:
        logits, grad, value, elbo = self._estimate(x)
        torch.autograd.backward([logits, value], [self._scale * grad, torch.full_like(value, self._scale)])
        self.elbo_sum += elbo

    def _estimate(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits, the estimate of their gradient, what decoder and prior learn from `[R, B]`, and the ELBO `[R]`."""
        logits = self.model.encode(x)
        draw = self.estimator.draw(logits.detach(), self._noise)
        values = self._log_weights(draw.samples, x, logits)
        value = self.estimator.value(draw, values) if values.requires_grad else self._extra(x, logits)
        return logits, gradient(draw, values), value, values.detach().mean((0, 2))

    def _backward_relaxed(self, x: Tensor) -> None:
        logits = self.model.encode(x)
        constant = logits.detach()
        estimator = self.estimator.with_context(x)
        grad, values = estimator(
            lambda b: self.model.log_weights(b, x, constant), constant, self._noise, validate=False
        )
        value = values.mean(0) if self.config.decoder_samples == "all" else self._extra(x, logits)
        torch.autograd.backward(value, torch.full_like(value, self._scale))
        encoder_grads = torch.autograd.grad(logits, self.encoder_weights, self._scale * grad, create_graph=True)
        # What the estimator learns: to make the encoder's gradient small, that is, less noisy around its mean.
        norm = sum((g.square().sum() for g in encoder_grads), torch.zeros((), device=logits.device))
        for parameter, slope in zip(self.learnt, torch.autograd.grad(norm, self.learnt), strict=True):
            parameter.grad = slope
        for parameter, encoder_grad in zip(self.encoder_weights, encoder_grads, strict=True):
            parameter.grad = encoder_grad.detach()
        self.elbo_sum += values.detach().mean((0, 2))

    @property
    def _scale(self) -> float:
        return -1 / self.config.batch_size

    def _extra(self, x: Tensor, logits: Tensor) -> Tensor:
        """The paper's rule for decoder and prior: the ELBO at one extra, independent sample."""
        constant = logits.detach()
        return self.model.log_weights(Independent().sample(constant, 1, self._noise), x, constant)[0]

    def _log_weights(self, samples: Tensor, x: Tensor, logits: Tensor) -> Tensor:
        """Log-weights `[n, R, B]`, attached only as far as a gradient will flow through them."""
        constant = logits.detach()
        if isinstance(self.estimator, MultiSample):
            # The bound's own gradient through log q belongs to it; samples that are only tried need none.
            bound, tried = samples.split([self.estimator.bound_samples, len(samples) - self.estimator.bound_samples])
            with torch.no_grad():
                others = self.model.log_weights(tried, x, constant)
            return torch.cat([self.model.log_weights(bound, x, logits), others])
        # The ELBO's gradient through log q is zero on average, and only noise.
        with torch.set_grad_enabled(self.config.decoder_samples == "all"):
            return self.model.log_weights(samples, x, constant)


def run_generator(seed: int, device: str) -> Generator:
    """Return the generator of a run's noise: its own on a CPU, the device's default one, seeded, on a GPU."""
    seeded = seeded_generator(seed, "train", device=device)
    if torch.device(device).type != "cuda":
        return seeded
    index = torch.device(device).index
    default = torch.cuda.default_generators[torch.cuda.current_device() if index is None else index]
    default.set_state(seeded.get_state())
    return default


def part_of_state(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors of a state whose name begins so, by the rest of their name."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
