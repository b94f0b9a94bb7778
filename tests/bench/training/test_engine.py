"""The engine: the same distribution as plain steps.

CUDA graphs need a GPU and are tested where there is one.
"""

import gc
import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pytest
import torch
from marks import needs_gpu, slow
from torch import Tensor
from torch.fx import GraphModule

from arms.bench import models
from arms.bench.config import Precision, TrainConfig
from arms.bench.data import Dataset
from arms.bench.runs.ensemble import ensemble_trainer
from arms.bench.training.engine import Engine, compiled_update
from arms.bench.training.trainer import MODEL, SUM, Trainer
from arms.estimators import ALL_ESTIMATORS

SMALL = TrainConfig(
    num_samples=4, latents=20, learning_rate=2e-3, replicas=2, steps=40, report_every=20
)

UNLIKE = ("loorf", "arms-dirichlet", "arms", "relax", "vimco")
stands_in_for_a_gpu = pytest.mark.skipif(
    torch.cuda.is_available(), reason="a GPU runs it itself, in the test of the engine below"
)


def test_eager_engine_is_the_plain_step(digits: Dataset) -> None:
    one, other = Trainer(SMALL, digits), Trainer(SMALL, digits)
    Engine(one).advance(5)
    for _ in range(5):
        other.step()
    assert all(torch.equal(tensor, other.state()[name]) for name, tensor in one.state().items())


@stands_in_for_a_gpu
@pytest.mark.parametrize(
    ("name", "rule", "network"),
    [
        pytest.param(name, "all", "linear", marks=[] if name in (*UNLIKE, "reinmax") else slow)
        for name in ALL_ESTIMATORS
        if name != "exact"
    ]
    + [
        ("arms-dirichlet", "extra", "linear"),
        pytest.param("arms-dirichlet", "all", "nonlinear", marks=slow),
    ]
    + [pytest.param("arms-ms-dirichlet", "all", "nonlinear", marks=slow)]
    + [
        pytest.param("relax", "extra", "nonlinear", marks=slow),
        pytest.param("reinmax", "extra", "nonlinear", marks=slow),
    ],
)
def test_compiled_step_is_the_plain_one(
    name: str, rule: str, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(SMALL, estimator=name, decoder_samples=rule, network=network, batch_size=5)  # type: ignore[arg-type]
    assert_compiled_is_plain(lambda: Trainer(config, noise_images()), monkeypatch)


@stands_in_for_a_gpu
@pytest.mark.parametrize(
    "name",
    [
        "arms",
        *(
            pytest.param(name, marks=slow)
            for name in ("loorf", "midpoint", "unordered-set", "disarm", "reinmax")
        ),
    ],
)
def test_compiled_step_of_categories_is_the_plain_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(SMALL, estimator=name, latents=4, categories=5, batch_size=5)
    assert_compiled_is_plain(lambda: Trainer(config, noise_images()), monkeypatch)


@stands_in_for_a_gpu
@pytest.mark.parametrize(
    "names",
    [
        ("loorf", "arms-dirichlet"),
        pytest.param(("loorf-ms", "arms-ms-dirichlet"), marks=slow),
        pytest.param(("relax",), marks=slow),
    ],
)
def test_compiled_ensemble_is_the_plain_one(
    names: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = [noise_images("noise"), noise_images("other noise", count=70)] * len(names)
    configs = [replace(SMALL, estimator=name, batch_size=5) for name in names for _ in range(2)]
    named = [
        replace(config, dataset=dataset.name)
        for config, dataset in zip(configs, datasets, strict=True)
    ]
    assert_compiled_is_plain(lambda: ensemble_trainer(named, datasets, "cpu"), monkeypatch)


@stands_in_for_a_gpu
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("arms", {}),
        ("midpoint", {}),
        pytest.param("arms", {"categories": 3}, marks=slow),
        pytest.param("arms", {"layers": (20, 8, 6), "network": "nonlinear"}, marks=slow),
        pytest.param("arms", {"decoder_samples": "extra"}, marks=slow),
    ],
)
def test_compiled_layers_are_the_plain_ones(
    name: str, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = replace(SMALL, estimator=name, layers=(20, 10), batch_size=5)
    config = replace(base, **changes)  # type: ignore[arg-type]
    assert_compiled_is_plain(lambda: Trainer(config, noise_images()), monkeypatch)


def assert_compiled_is_plain(make: Callable[[], Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU's code on a CPU: traced without graph breaks, with the fused likelihood, and equal up to rounding."""
    kernels = pytest.importorskip("arms.bench.models.kernels", exc_type=ImportError)

    def by_kernel(
        h: Tensor,
        layer: models.ReplicaLinear,
        x: Tensor,
        attached: int | None,
        all_inward: bool = False,
    ) -> Tensor:
        count = len(h) if attached is None else attached
        inward = len(h) if all_inward else None
        value: Tensor = kernels.affine_log_prob(
            h, layer.weight, layer.bias, x, count, inward=inward
        )
        return value

    plain, compiled = make(), make()
    for trainer in (plain, compiled):
        trainer._generator = None  # a compiler takes the default generator alone
    logging.disable()  # the compiler's traces, which pytest would collect, take longer than the compiler
    torch.manual_seed(3)
    expected = [after_a_step(plain, plain.update) for _ in range(2)]
    monkeypatch.setattr("arms.bench.models.vae.affine_log_prob", by_kernel)
    # As the engine compiles: otherwise sizes that differ from an earlier test's become symbols.
    compiler = partial(torch.compile, fullgraph=True, dynamic=False, backend="aot_eager")
    update = compiled_update(compiled, compiler)
    compiled.take_elbo()  # making it may do a step
    torch.manual_seed(3)
    for theirs in expected:
        assert_same_step(after_a_step(compiled, update), theirs, compiled.config.learning_rate)
        # Adam's first step has the sign of each gradient, even if the gradient is only rounding error. The second step
        # starts from equal parameters, so that it is compared up to rounding.
        compiled.load_state(theirs.state)
    logging.disable(logging.NOTSET)
    torch.compiler.reset()


class Step(NamedTuple):
    state: dict[str, Tensor]
    gradients: list[Tensor]
    weights: list[Tensor]


def after_a_step(trainer: Trainer, update: Callable[[], None]) -> Step:
    update()
    trainer.note_steps(1)
    state = {name: tensor.clone() for name, tensor in trainer.state().items()}
    return Step(
        state,
        *(
            [one.clone() for one in kept]
            for kept in (recent_gradients(trainer), trainer.optimizer_parameters)
        ),
    )


def assert_same_step(ours: Step, theirs: Step, rate: float) -> None:
    """ELBO and gradients agree up to rounding, and so do weights whose gradient is larger than rounding errors."""
    for name in (f"{SUM}train_elbo", f"{MODEL}prior"):
        torch.testing.assert_close(ours.state[name], theirs.state[name], rtol=1e-5, atol=1e-5)
    for own, other in zip(ours.gradients, theirs.gradients, strict=True):
        # Compiled and plain products are of different libraries, so they round differently.
        assert (own - other).norm() <= 3e-5 * other.norm()
    for own, other, gradient in zip(ours.weights, theirs.weights, theirs.gradients, strict=True):
        clear = gradient.abs() > 1e-2 * gradient.abs().max()
        assert ((own - other)[clear].abs() <= 1e-2 * rate).all()


@stands_in_for_a_gpu
@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # the compiler does so
def test_a_compiled_step_goes_with_its_trainer() -> None:
    """PyTorch limits the compilations of one function. Each trainer has separate code, so the limit is not reached."""
    compiled: list[int] = []
    trainers: list[weakref.ref[Trainer]] = []

    def backend(module: GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        compiled.append(len(trainers))
        return module.forward

    logging.disable()  # the compiler's traces, which pytest would collect, take longer than the compiler
    for replicas in range(1, 11):
        trainer = Trainer(replace(SMALL, replicas=replicas, batch_size=5), noise_images())
        trainer._generator = None  # a compiler takes the default generator alone
        update = compiled_update(
            trainer, partial(torch.compile, fullgraph=True, dynamic=False, backend=backend)
        )
        update()
        update()
        trainers.append(weakref.ref(trainer))
        del trainer, update
    logging.disable(logging.NOTSET)
    gc.collect()
    assert compiled == [number for number in range(10) for _ in range(2)], (
        "estimate and apply, once each"
    )
    assert not any(trainer() for trainer in trainers)


def test_graphs_are_refused_on_a_cpu(digits: Dataset) -> None:
    with pytest.raises(ValueError, match="execution 'graph' needs a GPU, but the run is on cpu"):
        Engine(Trainer(SMALL, digits), "graph")


@needs_gpu
@pytest.mark.parametrize("network", ["linear", "nonlinear"])
@pytest.mark.parametrize(
    ("name", "precision"),
    [(name, "highest") for name in ALL_ESTIMATORS if name != "exact"]
    + [("arms-dirichlet", "medium"), ("relax", "medium")],
)
def test_engine_and_eager_agree(name: str, precision: Precision, network: str) -> None:
    """On the same noise, drawn in the same order, and so to rounding.

    Rounding turns a bit once in 1e7, which one replica of two may show but not both, in so few steps: later ones follow
    from it. TF32 turns more of them: there it is enough that gradients are far from those on other noise, which are
    1.4 apart.
    """
    check_executions(replace(SMALL, estimator=name, network=network, precision=precision))


@needs_gpu
@pytest.mark.parametrize("name", ["loorf", "arms", "midpoint"])
def test_engine_and_eager_agree_on_layers(name: str) -> None:
    check_executions(replace(SMALL, estimator=name, num_samples=4, layers=(20, 8)))


def check_executions(config: TrainConfig) -> None:
    trainers = []
    for execution in ("eager", "graph", "compiled"):
        trainer = Trainer(config, noise_images(), "cuda")
        Engine(trainer, execution, block=2).advance(4)
        trainers.append(trainer)
        torch.compiler.reset()
    eager, *others = trainers
    for other in others:
        torch.testing.assert_close(
            other.sums["train_elbo"], eager.sums["train_elbo"], rtol=1e-3, atol=0
        )
        for ours, theirs in zip(recent_gradients(other), recent_gradients(eager), strict=True):
            apart = (ours - theirs).flatten(1).norm(dim=1) / theirs.flatten(1).norm(dim=1)
            assert apart.max() <= 0.5
            assert config.precision == "medium" or apart.min() <= 2e-3


def recent_gradients(trainer: Trainer) -> list[Tensor]:
    return [*trainer.encoder_optimizer.state()["mean"], *trainer.other_optimizer.state()["mean"]]


def noise_images(name: str = "noise", count: int = 100) -> Dataset:
    images = torch.randint(
        256, (count, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    return Dataset(name, images, images, images, 8, 8, 255)


def test_small_steps_run_on_one_thread(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for config in (SMALL, replace(SMALL, network="nonlinear", latents=200, num_samples=8)):
            trainer = Trainer(config, digits)
            monkeypatch.setattr(trainer, "update", lambda: seen.append(torch.get_num_threads()))
            Engine(trainer).advance(1)
            seen.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2, 2, 2]
