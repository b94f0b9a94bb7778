"""Unusual user models: shared tensors, lazy layers, unusual state, errors, and initial NaN."""

import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Say
from torch import Tensor, nn

from arms.bench import (
    Dataset,
    DiscreteVAE,
    PlainNetwork,
    Run,
    TrainConfig,
    Trainer,
    load_model,
    train,
)
from arms.bench.models import keep_replicas, replicated, structure_of

CONFIG = TrainConfig(steps=20, report_every=10, learning_rate=1e-2, num_samples=2)
FLAGS = ["--steps", "20", "--report-every", "10", "--num-samples", "2", "--evaluate", "5"]
Make = Callable[[Dataset], DiscreteVAE]


def vae(encoder: Any, decoder: Any, dataset: Dataset) -> DiscreteVAE:
    return DiscreteVAE(encoder, decoder, 6, dataset.pixel_mean())


def with_encoder(encoder: Callable[[], Any]) -> Make:
    return lambda dataset: vae(encoder(), nn.Linear(6, 64), dataset)


# ---- tensors that are shared


class Transposed(nn.Module):
    """The transpose of a linear layer, with the same weights."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def tied_across(dataset: Dataset) -> DiscreteVAE:
    encoder = nn.Linear(64, 6, bias=False)
    return vae(encoder, Transposed(encoder.weight), dataset)


def tied_inside(dataset: Dataset) -> DiscreteVAE:
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.weight = first.weight
    return vae(nn.Sequential(first, nn.Tanh(), second, nn.Linear(64, 6)), nn.Linear(6, 64), dataset)


def layer_used_twice(dataset: Dataset) -> DiscreteVAE:
    layer = nn.Linear(64, 64)
    decoder = nn.Sequential(nn.Linear(6, 64), layer, nn.Tanh(), layer)
    return vae(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 6)), decoder, dataset)


def layer_in_both(dataset: Dataset) -> DiscreteVAE:
    layer = nn.Linear(64, 64)
    return vae(
        nn.Sequential(layer, nn.Linear(64, 6)), nn.Sequential(nn.Linear(6, 64), layer), dataset
    )


class SharedBuffer(nn.Module):
    """A buffer under two names, one of which is changed in place."""

    shift: Tensor
    same: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 6)
        shift = torch.zeros(6)
        self.register_buffer("shift", shift)
        self.register_buffer("same", shift)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.shift.add_(0.1)
        return self.layer(x) + self.same  # type: ignore[no-any-return]


class AssignedBuffer(nn.Module):
    """A buffer that is reassigned instead of changed in place."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 6)
        self.register_buffer("shift", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.shift = self.shift + x.mean()
        return self.layer(x) + self.shift  # type: ignore[no-any-return]


class MovingAverage(nn.Module):
    """A buffer that affects the output, and is then reassigned."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 6)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x - self.mean * self.layer.weight.mean())
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().flatten(0, -2).mean(0)
        return out  # type: ignore[no-any-return]


def changed_in_place(dataset: Dataset) -> DiscreteVAE:
    encoder = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(64, 6))
    decoder = nn.Sequential(nn.Hardtanh(0, 0.5, inplace=True), nn.Linear(6, 64))
    return vae(encoder, decoder, dataset)


def spectral_norm() -> nn.Module:
    return nn.utils.parametrizations.spectral_norm(nn.Linear(64, 6))


SHARING: list[Make] = [
    with_encoder(MovingAverage),
    with_encoder(spectral_norm),
    with_encoder(lambda: PlainNetwork(nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 6)))),
    changed_in_place,
    tied_across,
    tied_inside,
    layer_used_twice,
    layer_in_both,
    with_encoder(SharedBuffer),
    with_encoder(AssignedBuffer),
]


@pytest.mark.parametrize("make", SHARING)
def test_replicas_compute_what_each_model_computes_alone(make: Make, digits: Dataset) -> None:
    """Return values, gradients and buffers after two passes."""
    alone: list[DiscreteVAE] = []

    def made() -> DiscreteVAE:
        alone.append(make(digits))
        return alone[-1]

    wide = replicated(made, 2, 0)
    assert structure_of(wide) == structure_of(alone[0])
    x = (torch.rand(2, 5, 64) > 0.5).float()
    b = (torch.rand(3, 2, 5, 6) > 0.5).float()
    for _ in range(2):
        value = wide.log_weights(b, x, wide.encode(x))
        own = [
            model.log_weights(b[:, [r]], x[[r]], model.encode(x[[r]]))
            for r, model in enumerate(alone)
        ]
        assert torch.allclose(value, torch.cat(own, 1), rtol=1e-5)
    grads = torch.autograd.grad(value.sum(), list(wide.parameters()))
    separate = [
        torch.autograd.grad(one.sum(), list(model.parameters()))
        for one, model in zip(own, alone, strict=True)
    ]
    assert len(grads) == len(separate[0]), "shared weights are one parameter"
    for grad, *both in zip(grads, *separate, strict=True):
        assert torch.allclose(grad, torch.stack(both).view_as(grad), rtol=1e-4, atol=1e-4)
    for buffer, *buffers in zip(wide.buffers(), *(model.buffers() for model in alone), strict=True):
        assert torch.allclose(buffer, torch.stack(buffers).view_as(buffer))


def test_tied_weights_stay_tied_while_replicas_train(tmp_path: Path, digits: Dataset) -> None:
    def run(path: str, steps: int) -> Run:
        config = replace(CONFIG, replicas=3, steps=steps)
        return train(
            config, tmp_path / path, dataset=digits, model=tied_across, notify=lambda line: None
        )

    whole = run("whole", 20)
    run("parts", 10)
    found, again = whole.weights(), run("parts", 20).weights()
    assert all(torch.equal(found[name], again[name]) for name in found), "resumed bit for bit"
    weight = found["encoder.module.weight"]
    assert torch.equal(weight, found["decoder.module.weight"])
    assert not torch.equal(
        weight, replicated(lambda: tied_across(digits), 3, 0).state_dict()["encoder.module.weight"]
    )
    part: Any = keep_replicas(
        load_model(whole, "cpu", model=tied_across, dataset=digits)[0], [0, 2]
    )
    assert part.encoder.module.weight is part.decoder.module.weight
    assert torch.equal(part.encoder.module.weight, weight[[0, 2]])


@pytest.mark.parametrize("estimator", ["midpoint", "arms"])
def test_a_layer_that_is_used_twice_is_trained(estimator: str, digits: Dataset) -> None:
    """PyTorch's `functional_call`, which searches for ties, would replace the tensor by a constant."""
    model: Any = layer_used_twice(digits)
    weight = model.decoder[1].weight
    before = weight.detach().clone()
    trainer = Trainer(replace(CONFIG, estimator=estimator, latents=6), digits, model=model)
    for _ in range(10):
        trainer.step()
    assert model.decoder[1].weight is weight
    assert float((weight.detach() - before).abs().max()) > 0.05, "ten steps of 0.01"


# ---- lazy layers


@pytest.mark.parametrize("replicas", [1, 2])
def test_lazy_layers_get_weights_that_depend_on_the_seed_alone(
    replicas: int, digits: Dataset
) -> None:
    def lazy() -> DiscreteVAE:
        return vae(nn.LazyLinear(6), nn.Sequential(nn.LazyLinear(32), nn.LazyLinear(64)), digits)

    def sized() -> DiscreteVAE:
        return vae(nn.Linear(64, 6), nn.Sequential(nn.Linear(6, 32), nn.Linear(32, 64)), digits)

    found = []
    for make, noise in ((lazy, 1), (lazy, 2), (sized, 3)):
        torch.manual_seed(noise)
        model = replicated(make, replicas, 0)
        assert all(module.training for module in model.modules())
        found.append(model.state_dict())
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name])
        assert torch.equal(tensor, found[2][name])


# ---- what is refused


class WithState(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"a": 1}

    def set_extra_state(self, state: Any) -> None:
        pass


class WithTensorState(WithState):
    def get_extra_state(self) -> Any:
        return torch.ones(3)


class WithSparse(nn.Linear):
    def __init__(self) -> None:
        super().__init__(64, 6)
        self.register_buffer("mask", torch.eye(64).to_sparse())


class WithList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(64, 6)]

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[0](x)  # type: ignore[no-any-return]


class WithAttribute(nn.Linear):
    def __init__(self) -> None:
        super().__init__(64, 6)
        self.features = torch.randn(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x @ self.features)


class WithUnusedLazy(nn.Linear):
    def __init__(self) -> None:
        super().__init__(64, 6)
        self.unused = nn.LazyLinear(3)


class Exits(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        sys.exit(0)


class Inverse(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x


def _make_weight_norm(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        return nn.utils.weight_norm(layer)


def outside(dataset: Dataset) -> DiscreteVAE:
    decoder = nn.Linear(6, 64)
    return vae(nn.Linear(64, 6), lambda b: decoder(b) + 1, dataset)


def tied_by_a_function(dataset: Dataset) -> DiscreteVAE:
    encoder = nn.Linear(64, 6, bias=False)
    return vae(encoder, lambda b: b @ encoder.weight, dataset)


def tied_by_memory(dataset: Dataset) -> DiscreteVAE:
    encoder = nn.Linear(64, 6, bias=False)
    return vae(encoder, Transposed(nn.Parameter(encoder.weight.data)), dataset)


def tied_prior(dataset: Dataset) -> DiscreteVAE:
    model = vae(nn.Linear(64, 6), nn.Linear(6, 64), dataset)
    assert isinstance(model.decoder, nn.Linear)
    model.decoder.register_parameter("prior", model.prior)
    return model


def with_constant(dataset: Dataset) -> DiscreteVAE:
    model = vae(nn.Linear(64, 6), nn.Linear(6, 64), dataset)
    model.register_buffer("constant", torch.randn(3), persistent=False)
    return model


def not_copied(dataset: Dataset) -> DiscreteVAE:
    encoder = nn.Linear(64, 6)
    encoder.generator = (part for part in "x")  # type: ignore[assignment]
    return vae(encoder, nn.Linear(6, 64), dataset)


def with_nan(dataset: Dataset) -> DiscreteVAE:
    model = vae(nn.Linear(64, 6), nn.Linear(6, 64), dataset)
    assert isinstance(model.decoder, nn.Linear)
    nn.init.constant_(model.decoder.bias, torch.nan)
    return model


def frozen(dataset: Dataset) -> DiscreteVAE:
    return vae(nn.Linear(64, 6), nn.Linear(6, 64), dataset).requires_grad_(False)


def failing(dataset: Dataset) -> DiscreteVAE:
    raise KeyError("oh")


def leaving(dataset: Dataset) -> DiscreteVAE:
    sys.exit(0)


REFUSED: list[tuple[Make, str, tuple[int, ...]]] = [
    (
        with_encoder(lambda: WithState(64, 6)),
        "the state of a model must consist of parameters and buffers, got encoder.",
        (1, 2),
    ),
    (
        with_encoder(lambda: WithTensorState(64, 6)),
        "the state of a model must consist of parameters and buffers, got encoder.",
        (1, 2),
    ),
    (
        with_encoder(WithSparse),
        "must be dense, got encoder.*mask of layout torch.sparse_coo: call .to_dense",
        (1, 2),
    ),
    (
        with_encoder(WithList),
        r"must be a registered parameter of the model, got an unregistered tensor of shape \[6",
        (1, 2),
    ),
    (
        with_encoder(WithUnusedLazy),
        "the lazy parameter encoder.unused.weight was not initialized, b",
        (1, 2),
    ),
    (
        with_encoder(lambda: nn.Sequential(nn.LazyLinear(5), nn.Linear(3, 6))),
        "lazy layers are initialized by calling the model once, but the call raised",
        (1, 2),
    ),
    (
        with_encoder(lambda: Exits(64, 6)),
        r", 2, 64\] \(replicas, images, pixels\) of digits, but raised SystemExit: 0",
        (1, 2),
    ),
    (
        outside,
        "must be a registered parameter of the model, got an unregistered tensor of shape",
        (1, 2),
    ),
    (
        tied_by_a_function,
        "must be a registered parameter of the model, got an unregistered tensor of shape",
        (2,),
    ),
    (
        tied_by_memory,
        "encoder.weight and decoder.weight share memory but are different Parameters:",
        (2,),
    ),
    (
        tied_prior,
        "prior must not be shared with other tensors, got prior and decoder.prior: train",
        (2,),
    ),
    (
        with_encoder(WithAttribute),
        "that differ between replicas .* got the attribute features of WithAttribute",
        (2,),
    ),
    (with_constant, "in its encoder, decoder and prior only, got constant: move it into the", (2,)),
    (
        not_copied,
        r"replicas of this model cannot be stacked \(TypeError: cannot pickle 'generator'",
        (2,),
    ),
    (
        with_encoder(lambda: nn.utils.spectral_norm(nn.Linear(64, 6))),
        r"replaces them: use torch\.nn\.utils\.parametrizations\.spectral_norm, or train one replica",
        (2,),
    ),
    (
        with_encoder(lambda: _make_weight_norm(nn.Linear(64, 6))),
        r"torch\.nn\.utils\.parametrizations\.weight_norm, or train one replica",
        (2,),
    ),
    (
        with_encoder(lambda: torch.jit.script(nn.Linear(64, 6))),
        "must not be scripted or traced: train with one replica",
        (2,),
    ),
    (with_nan, "weights must be finite before the first step, got NaN in decoder.", (1, 2)),
    (
        with_encoder(lambda: nn.Sequential(nn.Linear(64, 6), nn.Threshold(1e9, 0), Inverse())),
        "log-weights before the first training step, got NaN for images of digits: check",
        (1, 2),
    ),
    (frozen, "must have parameters to train, got none with requires_grad=True", (1, 2)),
    (failing, "the function 'failing' must return a DiscreteVAE for digits, but raised", (1, 2)),
    (leaving, "the function 'leaving' must return a DiscreteVAE for digits, but raised", (1, 2)),
]


@pytest.mark.parametrize(
    ("make", "message", "replicas"),
    [(make, message, count) for make, message, counts in REFUSED for count in counts],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    make: Make, message: str, replicas: int, tmp_path: Path, digits: Dataset
) -> None:
    with pytest.raises(ValueError, match=message):
        train(replace(CONFIG, replicas=replicas), tmp_path / "run", dataset=digits, model=make)
    assert not list(tmp_path.iterdir())


def test_a_run_resumes_whatever_its_model_begins_with(tmp_path: Path, digits: Dataset) -> None:
    """The weights come from the checkpoint, so the given model may contain NaN."""

    def good(dataset: Dataset) -> DiscreteVAE:
        return replace_nan(with_nan(dataset))

    def replace_nan(model: DiscreteVAE) -> DiscreteVAE:
        assert isinstance(model.decoder, nn.Linear)
        nn.init.zeros_(model.decoder.bias)
        return model

    train(replace(CONFIG, steps=10), tmp_path / "run", dataset=digits, model=good(digits))
    longer = train(
        CONFIG, tmp_path / "run", dataset=digits, model=with_nan(digits), notify=lambda line: None
    )
    assert Run(tmp_path / "run").step() == 20
    load_model(longer, "cpu", model=with_nan(digits), dataset=digits)


# ---- at the command line


ODD = """
import sys
from pathlib import Path
from torch import nn
from arms.bench import DiscreteVAE

def model(encoder, dataset):
    return DiscreteVAE(encoder, nn.Linear(6, 64), 6, dataset.pixel_mean())

def raises(dataset):
    raise RuntimeError("too\\nbad")

def exits(dataset):
    sys.exit(0)

class InTraining(nn.Linear):
    def forward(self, x):
        if self.training:
            self.fail()
        return super().forward(x)

class Raises(InTraining):
    def fail(self):
        raise IndexError("too\\nlate")

class Exits(InTraining):
    def fail(self):
        sys.exit(0)

class Linear(nn.Linear):
    def forward(self, x):
        if Path("fail").exists() and x.shape[-2] > 2:
            raise IndexError("too\\nmany")
        return super().forward(x)

def raises_later(dataset):
    return model(Raises(64, 6), dataset)

def exits_later(dataset):
    return model(Exits(64, 6), dataset)

def told_to_fail(dataset):
    return model(Linear(64, 6), dataset)
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "raises",
            "the function 'raises' must return a DiscreteVAE for digits, but raised RuntimeError: too bad: call it",
        ),
        (
            "exits",
            "the function 'exits' must return a DiscreteVAE for digits, but raised SystemExit: 0: call it in Python",
        ),
        (
            "raises_later",
            "the model odd:raises_later must run without an error, but raised IndexError: too late: call it",
        ),
        (
            "exits_later",
            "the model odd:exits_later must run without an error, but raised SystemExit: 0: call it in Python",
        ),
    ],
)
def test_a_model_that_fails_ends_in_one_line(name: str, message: str, say: Say) -> None:
    Path("odd.py").write_text(ODD)
    for replicas in ("1", "2"):
        code, _, error = say(
            "train", "--model", f"odd:{name}", "--name", replicas, "--replicas", replicas, *FLAGS
        )
        assert code == 2
        assert re.fullmatch(f"arms: {re.escape(message)}.*\\n", error)


def test_a_model_that_fails_afterwards_is_named_too(say: Say) -> None:
    Path("odd.py").write_text(ODD)
    assert say("train", "--model", "odd:told_to_fail", "--name", "run", *FLAGS)[0] == 0
    Path("fail").touch()
    for verb in ("evaluate", "variance", "sample"):
        code, _, error = say(verb, "runs/run", "--model", "odd:told_to_fail")
        assert code == 2
        assert re.fullmatch(
            "arms: the model odd:told_to_fail must run .* raised IndexError: too many: call .*\\n",
            error,
        )


@pytest.mark.parametrize(
    "encoder",
    [
        MovingAverage,
        lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(64, 6)),
        lambda: nn.Sequential(nn.Dropout(0.1, inplace=True), nn.Linear(64, 6)),
        spectral_norm,
        lambda: nn.Sequential(nn.Linear(64, 6), torch.jit.script(nn.Linear(6, 6))),
    ],
)
def test_replicas_train_where_one_does(
    encoder: Callable[[], nn.Module], tmp_path: Path, digits: Dataset
) -> None:
    """Layers that modify their input or their buffers in `forward`."""
    for replicas in (1, 2):
        config = replace(CONFIG, replicas=replicas)
        place = tmp_path / str(replicas)
        run = train(config, place, dataset=digits, model=with_encoder(encoder), evaluate=5)
        assert run.is_finished(images=5)
        assert not run.stopped()


def test_buffers_of_replicas_are_updated_in_inference_mode(digits: Dataset) -> None:
    wide = replicated(lambda: with_encoder(SharedBuffer)(digits), 2, 0)
    with torch.inference_mode():
        wide.encode(torch.zeros(2, 5, 64))
    assert torch.equal(wide.state_dict()["encoder.module.shift"], torch.full((2, 6), 0.1))
