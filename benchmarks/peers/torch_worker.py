"""Contenders in PyTorch: this package, hand-written loops, and only the matrix products of a step."""

from collections.abc import Callable
from itertools import pairwise

from task import BATCH, LATENTS, PIXELS, SAMPLES, SLOPE, contender, layer_sizes, serve

ME = contender()

import torch  # noqa: E402 (the process is pinned first)
from torch import Tensor, nn  # noqa: E402
from torch.nn.functional import binary_cross_entropy_with_logits, softplus  # noqa: E402

import arms  # noqa: E402
from arms.bench.config import TrainConfig  # noqa: E402
from arms.bench.data import Dataset  # noqa: E402
from arms.bench.models.products import multiply_matrices  # noqa: E402
from arms.bench.training.engine import Engine, keep_freed_memory  # noqa: E402
from arms.bench.training.trainer import Trainer  # noqa: E402

Step = Callable[[], object]


def perceptron(sizes: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.LeakyReLU(SLOPE)]
    return nn.Sequential(*layers[:-1])


def log_prob(x: Tensor, logits: Tensor) -> Tensor:
    x, logits = torch.broadcast_tensors(x, logits)
    return -binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1)


class Model:
    """Networks, optimizers and binary images that all hand-written loops share."""

    def __init__(self) -> None:
        encoder, decoder = layer_sizes(ME.network)
        self.encoder, self.decoder = perceptron(encoder), perceptron(decoder)
        self.prior = nn.Parameter(torch.zeros(LATENTS))
        weights = [*self.encoder.parameters(), *self.decoder.parameters()]
        self.adam, self.sgd = (
            torch.optim.Adam(weights, lr=1e-4),
            torch.optim.SGD([self.prior], lr=1e-2),
        )
        self.images = (torch.rand(20, BATCH, PIXELS) < 0.3).float()
        self.steps = 0

    def log_joint(self, x: Tensor, b: Tensor) -> Tensor:
        prior = b @ self.prior - softplus(self.prior).sum()
        return log_prob(x, self.decoder(b)) + prior

    def looped(self, loss: Callable[[Tensor], Tensor]) -> Step:
        def step() -> None:
            loss(self.images[self.steps % len(self.images)]).backward()
            self.steps += 1
            for optimizer in (self.adam, self.sgd):
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

        return step


def by_hand(compiled: bool) -> Step:
    model = Model()

    def loss(x: Tensor) -> Tensor:
        logits = model.encoder(x)
        constant = logits.detach()
        b = (torch.rand(SAMPLES, BATCH, LATENTS) < torch.sigmoid(constant)).to(x.dtype)
        elbo = model.log_joint(x, b) - log_prob(b, constant)
        known = elbo.detach()
        # The signals add up to zero over the samples, so the mean of b is not needed.
        grad = torch.einsum("nb,nbd->bd", (known - known.mean(0)) / (SAMPLES - 1), b)
        value: Tensor = elbo.mean(0) + (grad * logits).sum(-1)
        return -value.mean()

    return model.looped(torch.compile(loss) if compiled else loss)


def in_a_loop(estimator: str) -> Step:
    model = Model()

    def loss(x: Tensor) -> Tensor:
        logits = model.encoder(x)
        constant = logits.detach()

        def elbo(b: Tensor) -> Tensor:
            return model.log_joint(x, b) - log_prob(b, constant)

        return -arms.expectation(elbo, logits, estimator, SAMPLES).mean()

    return model.looped(loss)


def trained(estimator: str) -> Step:
    """Return a step of `arms train`, which also draws its batch and bits, and updates averages for the variance."""
    keep_freed_memory()
    images = torch.randint(0, 256, (5000, PIXELS), dtype=torch.uint8)
    dataset = Dataset("made up", images[:4000], images[4000:4500], images[4500:], 28, 28, 255)
    config = TrainConfig(
        estimator=estimator, num_samples=SAMPLES, replicas=ME.replicas, network=ME.network
    )
    return Engine(Trainer(config, dataset), block=1).advance_block


def products(fastest: bool) -> Step:
    """Return the matrix products of a step, by `torch.mm` or by this package's fastest function."""
    multiply = multiply_matrices if fastest else torch.mm
    factors = []
    for sizes, rows in zip(layer_sizes(ME.network), (BATCH, SAMPLES * BATCH), strict=True):
        for index, (inputs, outputs) in enumerate(pairwise(sizes)):
            x, weight, grad = (
                torch.rand(rows, inputs),
                torch.rand(inputs, outputs),
                torch.rand(rows, outputs),
            )
            factors += [(x, weight), (x.t(), grad)]
            if index:  # the input of the first layer needs no gradient
                factors.append((grad, weight.t()))

    def step() -> None:
        for a, b in factors:
            multiply(a, b)

    return step


def step_of(name: str) -> Step:
    kind, _, estimator = name.partition(": ")
    if kind.startswith("products"):
        return products(fastest=kind == "products")
    if kind.startswith("by hand"):
        return by_hand(compiled=kind == "by hand, compiled")
    return {"arms train": trained, "arms.expectation": in_a_loop}[kind](estimator)


def main() -> None:
    torch.set_num_threads(len(ME.cores))
    torch.manual_seed(0)
    serve(step_of(ME.name), lambda: None, ME.replicas)


if __name__ == "__main__":
    main()
