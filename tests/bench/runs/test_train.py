"""Arguments of `train` and similar functions are converted to one form, or rejected before anything is written."""

import math
import signal
import sys
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch
from marks import signals
from torch import nn

from arms.bench.cli import main
from arms.bench.config import TrainConfig
from arms.bench.data import Dataset, TrainingImages
from arms.bench.metrics import Record
from arms.bench.models import DiscreteVAE
from arms.bench.runs.ensemble import _interruptible
from arms.bench.runs.files import locked
from arms.bench.runs.loading import load_model
from arms.bench.runs.loading import own_model as adopted
from arms.bench.runs.run import Run
from arms.bench.runs.train import train, train_together
from arms.bench.training.engine import Engine, choose_device, free_memory, is_out_of_memory
from arms.bench.training.trainer import Trainer

CONFIG = TrainConfig(
    num_samples=4, latents=10, batch_size=10, replicas=2, steps=20, report_every=10
)


def configs_of(*names: str) -> list[TrainConfig]:
    return [replace(CONFIG, estimator=name) for name in names]


@pytest.mark.parametrize("name", ["meta", "gpu", "tpu", "mps", "cuda:", "cuda:x", "", "CPU"])
def test_devices_are_few(name: str) -> None:
    with pytest.raises(
        ValueError, match=f"^device must be auto, cpu, cuda or cuda:N, got '{name}'$"
    ):
        choose_device(name)


@pytest.mark.parametrize(
    ("built", "count", "message"),
    [
        (
            False,
            0,
            "the device 'cuda:2' is not available, because this PyTorch is built without CUDA: use auto or cpu",
        ),
        (
            True,
            0,
            "the device 'cuda:2' is not available, because PyTorch sees no GPU: use auto or cpu",
        ),
        (
            True,
            2,
            "the device 'cuda:2' is not available, because the GPUs are cuda:0 to cuda:1: use auto or cpu",
        ),
        (True, 3, ""),
    ],
)
def test_why_there_is_no_gpu(
    built: bool, count: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.backends.cuda.is_built", lambda: built)
    monkeypatch.setattr("torch.cuda.is_available", lambda: count > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    if not message:
        assert choose_device("cuda:2") == choose_device(torch.device("cuda", 2)) == "cuda:2"
        return
    with pytest.raises(ValueError, match=message):
        choose_device("cuda:2")


def test_a_device_may_be_a_device(tmp_path: Path, digits: Dataset) -> None:
    run = train(CONFIG, tmp_path, device=torch.device("cpu"), dataset=digits)
    assert run.result() is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "meta"}, "device must be auto, cpu, cuda or cuda:N, got 'meta'"),
        (
            {"execution": "fast"},
            "execution must be one of auto, eager, graph, compiled, got 'fast'",
        ),
        (
            {"execution": "graph"},
            "execution 'graph' needs a GPU, but the run is on cpu: use 'eager'",
        ),
        ({"execution": "compiled"}, "execution 'compiled' needs a GPU"),
        (
            {"checkpoint_seconds": math.nan},
            "checkpoint_seconds must be a finite number >= 0, got nan",
        ),
        (
            {"checkpoint_seconds": math.inf},
            "checkpoint_seconds must be a finite number >= 0, got inf",
        ),
        ({"checkpoint_seconds": -5}, "checkpoint_seconds must be a finite number >= 0, got -5"),
        ({"checkpoint_seconds": "5"}, "checkpoint_seconds must be a finite number >= 0, got '5'"),
    ],
)
def test_options_are_checked_before_anything_is_written(
    options: dict[str, Any], message: str, tmp_path: Path, digits: Dataset
) -> None:
    given = {"device": "cpu", **options}
    with pytest.raises(ValueError, match=message):
        train(CONFIG, tmp_path / "run", dataset=digits, **given)
    with pytest.raises(ValueError, match=message):
        train_together(configs_of("loorf", "arms"), [tmp_path / "a", tmp_path / "b"], **given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("configs", "directories", "message"),
    [
        (
            CONFIG,
            ["a"],
            "be a list of at least one configuration, got a single configuration: write",
        ),
        (
            configs_of("loorf"),
            "a",
            "directories must list one entry for each of the 1 runs, got str",
        ),
        (
            configs_of("loorf"),
            Path("a"),
            "directories must list one entry for each of the 1 runs, got PosixPath",
        ),
        (
            configs_of("loorf", "arms"),
            ["a"],
            "directories must list one entry for each of the 2 runs, got 1",
        ),
        (
            configs_of("loorf", "arms"),
            ["a", Path("b/../a")],
            "each run must have its own directory, got a, b/../a",
        ),
        (
            configs_of("loorf", "loorf"),
            ["a", "b"],
            "data set, learning rate or encoder_scale, got loorf, loorf: list each once, and",
        ),
        ([], [], r"be a list of at least one configuration, got an empty list: write \[config\]"),
        (
            [CONFIG, replace(CONFIG, estimator="loorf", seed=7)],
            ["a", "b"],
            "may differ only in estimator, folded, temperature, .*, got 0 and 7 for seed: train them separately",
        ),
    ],
)
def test_an_ensemble_is_runs_of_one_kind_with_a_directory_each(
    configs: Any, directories: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        train_together(configs, directories, device="cpu")
    assert not list(tmp_path.iterdir())


def test_data_sets_of_an_ensemble_are_one_for_each_run(tmp_path: Path, digits: Dataset) -> None:
    train_images, valid, test = (
        images.repeat(1, 2) for images in (digits.train, digits.valid, digits.test)
    )
    wide = Dataset("wide", train_images, valid, test, 8, 16, 16)
    for datasets, message in (
        (digits, "datasets must list one entry for each of the 2 runs, got Dataset"),
        ([digits], "datasets must list one entry for each of the 2 runs, got 1"),
        (
            [digits, replace(digits)],
            "different data sets must have different names, got digits, digits",
        ),
        (
            [digits, wide],
            "must have the same image size and levels, got digits with 64 pixels of 16 levels, wide",
        ),
    ):
        paths = [tmp_path / "a", tmp_path / "b"]
        with pytest.raises(ValueError, match=message):
            train_together(configs_of("loorf", "arms"), paths, device="cpu", datasets=datasets)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


# ---- models of one's own


def own_model(digits: Dataset, hidden: int = 15) -> DiscreteVAE:
    """A model without replicas, whose mask contains valid minus infinities."""
    encoder = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    model = DiscreteVAE(encoder, nn.Linear(10, 64), latents=10, pixel_mean=digits.pixel_mean())
    model.register_buffer("mask", torch.full((3, 3), -math.inf).triu(1))
    return model


ALONE = replace(CONFIG, replicas=1)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, digits: Dataset) -> tuple[Run, DiscreteVAE]:
    model = own_model(digits)
    run = train(
        ALONE, tmp_path_factory.mktemp("own") / "run", device="cpu", dataset=digits, model=model
    )
    return run, model


def test_a_buffer_may_hold_infinities(own: tuple[Run, DiscreteVAE]) -> None:
    result = own[0].result()
    assert result is not None
    assert "stopped" not in result


def test_such_a_model_can_be_loaded(own: tuple[Run, DiscreteVAE], digits: Dataset) -> None:
    model, _ = load_model(own[0], "cpu", model=own_model(digits), dataset=digits)
    assert torch.equal(model.prior, own[1].prior)


def test_a_finished_run_hands_its_weights_to_the_model(
    own: tuple[Run, DiscreteVAE], digits: Dataset
) -> None:
    run, trained = own
    again = own_model(digits)
    assert not torch.equal(again.encoder[0].weight, trained.encoder[0].weight)  # type: ignore[index]
    train(ALONE, run.path, device="cpu", dataset=digits, model=again)
    for name, tensor in trained.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_a_model_that_does_not_fit_a_finished_run_stays_as_it_is(
    own: tuple[Run, DiscreteVAE], tmp_path: Path, digits: Dataset
) -> None:
    other = own_model(digits, hidden=7)
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(
        ValueError,
        match=r"contains another run \(structure is '\w+' there, but '\w+' was requested\)",
    ):
        train(ALONE, own[0].path, device="cpu", dataset=digits, model=other)
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())
    config, _ = adopted(ALONE, other, digits)
    run = Run(tmp_path / "bare").begin(config)
    run.finish({"bounds": {"test": {}}})
    with pytest.raises(ValueError, match="has no intact checkpoint"):
        train(ALONE, run.path, device="cpu", dataset=digits, model=other)


def test_a_model_of_ones_own_is_not_loaded_by_name(
    own: tuple[Run, DiscreteVAE],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    message = (
        r"is a run of your own model 'own', which cannot be loaded by name: "
        r"pass it with load_model\(run, model=...\) or --model my_module:"
    )
    with pytest.raises(ValueError, match=message):
        load_model(own[0], "cpu")
    for verb in ("evaluate", "variance", "sample"):
        monkeypatch.setattr(sys, "argv", ["arms", verb, str(own[0].path)])
        with pytest.raises(SystemExit, match="2"):
            main()
        said = capsys.readouterr().err
        assert "is a run of your own model" in said
        assert len(said.strip().splitlines()) == 1


def test_tied_weights_are_saved(tmp_path: Path, digits: Dataset) -> None:
    shared = nn.Linear(64, 64)
    encoder, decoder = (
        nn.Sequential(shared, nn.Linear(64, 10)),
        nn.Sequential(nn.Linear(10, 64), shared),
    )
    model = DiscreteVAE(encoder, decoder, latents=10, pixel_mean=digits.pixel_mean())
    state = train(ALONE, tmp_path, device="cpu", dataset=digits, model=model).checkpoint()
    assert state is not None
    assert torch.equal(state["model.encoder.0.weight"], shared.weight)
    assert torch.equal(state["model.decoder.1.weight"], shared.weight)


def test_of_two_checkpoints_of_one_step_the_newer_counts(tmp_path: Path) -> None:
    run = Run(tmp_path).begin(CONFIG)
    for value in (1.0, 2.0):
        run.save_checkpoint({"counts": torch.tensor([10, 0]), "value": torch.tensor(value)})
    (state,) = run.checkpoints().values()
    assert state["value"] == 2


# ---- on the way


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (
            RuntimeError(
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
            ),
            True,
        ),
        (
            RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
            ),
            True,
        ),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"), False),
    ],
)
def test_memory_that_does_not_suffice_has_many_names(error: RuntimeError, memory: bool) -> None:
    assert is_out_of_memory(error) is memory
    outer = RuntimeError("capture failed")
    outer.__cause__ = error
    assert is_out_of_memory(outer) is memory


@signals
def test_the_second_interrupt_does_not_wait() -> None:
    before = signal.getsignal(signal.SIGINT)
    with _interruptible() as interrupted:
        assert not interrupted()
        signal.raise_signal(signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_cpu_says_that_it_has_one_precision(tmp_path: Path, digits: Dataset) -> None:
    told: list[str] = []
    for precision in ("highest", "medium"):
        config = replace(CONFIG, precision=precision)
        train(config, tmp_path / precision, device="cpu", dataset=digits, notify=told.append)
    assert told == ["precision 'medium' has no effect on a CPU, which computes in float32"]


def test_a_run_has_the_name_of_the_data_it_saw(tmp_path: Path, digits: Dataset) -> None:
    mine = replace(digits, name="mine")
    run = train(CONFIG, tmp_path / "alone", device="cpu", dataset=mine)
    paths = [tmp_path / "a", tmp_path / "b"]
    together = train_together(
        configs_of("loorf", "arms"), paths, device="cpu", datasets=[mine, mine]
    )
    assert {one.config().dataset for one in (run, *together)} == {"mine"}
    with pytest.raises(ValueError, match=r"was trained on your own data set 'mine': pass it"):
        load_model(run)


# ---- stopping, and what a run may be


@signals
@pytest.mark.parametrize("moment", [7, 10, 20])
def test_interrupted_at_any_step_it_ends_the_same(
    moment: int, tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop between reports, at a report, and at the last step."""
    whole = train(CONFIG, tmp_path / "whole", device="cpu", dataset=digits)
    advance = Engine.advance_block

    def interrupting(engine: Engine) -> None:
        advance(engine)
        if engine.trainer.steps_done == moment:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Engine, "advance_block", interrupting)
    with pytest.raises(KeyboardInterrupt, match=f"saved at step {moment}"):
        train(CONFIG, tmp_path / "again", device="cpu", dataset=digits)
    monkeypatch.undo()
    again = train(CONFIG, tmp_path / "again", device="cpu", dataset=digits)
    assert again.metrics() == whole.metrics()
    assert again.result() == whole.result()


def test_checkpoints_never_take_most_of_the_time(
    tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[int] = []

    def slowly(trainer: Trainer, live_runs: object) -> None:
        saved.append(trainer.steps_done)
        sleep(0.05)

    monkeypatch.setattr("arms.bench.runs.ensemble._save", slowly)
    config = replace(CONFIG, report_every=1, steps=10)
    for seconds, steps in ((1e-9, [1, 10]), (0, list(range(1, 11)))):
        train(
            config,
            tmp_path / str(seconds),
            device="cpu",
            dataset=digits,
            checkpoint_seconds=seconds,
        )
        assert saved == steps
        saved.clear()


def test_a_directory_is_trained_by_one_process_at_a_time(tmp_path: Path, digits: Dataset) -> None:
    tmp_path.joinpath("run").mkdir()
    with (
        locked(tmp_path / "run"),
        pytest.raises(ValueError, match="run is being trained by another process"),
    ):
        train(CONFIG, tmp_path / "run", device="cpu", dataset=digits)
    assert train(CONFIG, tmp_path / "run", device="cpu", dataset=digits).result()


def linear_model(digits: Dataset, latents: int = 10, pixels: int = 64) -> DiscreteVAE:
    mean = digits.pixel_mean() if pixels == 64 else torch.full((pixels,), 0.5)
    return DiscreteVAE(nn.Linear(pixels, latents), nn.Linear(latents, pixels), latents, mean)


def test_a_model_of_ones_own_goes_on_as_it_was(tmp_path: Path, digits: Dataset) -> None:
    """Its buffers may be of any type."""
    results = []
    for name, stop_at in (("whole", 0), ("again", 10)):
        torch.manual_seed(0)
        model = linear_model(digits)
        model.register_buffer("halves", torch.ones(3, dtype=torch.bfloat16))

        def stop(record: Record, at: int = stop_at) -> None:
            if record["step"] == at:
                raise InterruptedError

        config = replace(CONFIG, replicas=1)
        options = {"device": "cpu", "dataset": digits, "model": model, "checkpoint_seconds": 0}
        if stop_at:
            with pytest.raises(InterruptedError):
                train(config, tmp_path / name, on_record=stop, **options)  # type: ignore[arg-type]
        results.append(train(config, tmp_path / name, **options))  # type: ignore[arg-type]
    whole, again = results
    assert whole.result() == again.result()
    state = again.checkpoint()
    assert state is not None
    assert state["model.pixel_mean"].shape == (1, 1, 64)
    assert state["model.halves"].dtype == torch.bfloat16


def test_a_run_says_how_many_latents_a_model_of_ones_own_has(
    tmp_path: Path, digits: Dataset
) -> None:
    config = replace(CONFIG, replicas=1, latents=200)
    run = train(
        config,
        tmp_path / "run",
        device="cpu",
        dataset=digits,
        model=linear_model(digits, latents=7),
    )
    assert run.config().latents == 7


def test_a_model_for_other_images_is_refused(tmp_path: Path, digits: Dataset) -> None:
    model = linear_model(digits, pixels=12)
    with pytest.raises(
        ValueError,
        match="the model is for images of 12 pixels, but digits has 64 pixels: pass a model",
    ):
        train(
            replace(CONFIG, replicas=1), tmp_path / "run", device="cpu", dataset=digits, model=model
        )
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_of_another_shape_is_refused(digits: Dataset) -> None:
    narrow, wide = (Trainer(replace(CONFIG, latents=latents), digits) for latents in (1, 7))
    with pytest.raises(
        ValueError,
        match=r"must have the shape \[2, 1, 7\] of the model, got \[2, 1, 1\], so another model wrote",
    ):
        wide.load_state(narrow.state())


def test_several_data_sets_need_a_model_and_an_even_share(digits: Dataset) -> None:
    other = replace(digits, name="other")
    with pytest.raises(
        ValueError,
        match=r"with 2 data sets, the model argument must be given: "
        "arms.bench.runs.ensemble makes such a model",
    ):
        Trainer(CONFIG, [digits, other])
    with pytest.raises(
        ValueError, match="multiple of the number of data sets, got 2 replicas and 0 data sets"
    ):
        Trainer(CONFIG, [])
    with pytest.raises(
        ValueError, match="multiple of the number of data sets, got 3 replicas and 2 data sets"
    ):
        TrainingImages.of([digits, other], 3, "cpu")


def test_numbers_of_numpy_are_numbers(tmp_path: Path, digits: Dataset) -> None:
    config = replace(CONFIG, seed=np.int64(3), steps=np.int32(20), learning_rate=np.float32(0.5))  # type: ignore[arg-type]
    assert config == replace(CONFIG, seed=3, learning_rate=0.5)
    assert train(config, tmp_path / "run", device="cpu", dataset=digits).config() == config


# ---- process-wide state


def counting_compiled() -> tuple[Any, list[int]]:
    """A user's compiled function, with the number of compilations."""
    compiled: list[int] = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        compiled.append(1)
        return module.forward

    return torch.compile(lambda x: 2 * x + 1, backend=backend), compiled


@pytest.mark.parametrize("fits", [True, False])
def test_training_leaves_the_users_compiled_functions_alone(
    fits: bool, tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when memory is released: after each training on a GPU, and after an ensemble did not fit."""
    function, compiled = counting_compiled()
    function(torch.ones(3))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)  # only for releasing memory
    advance = Engine.advance_block

    def tight(engine: Engine) -> None:
        if engine.trainer.config.replicas > CONFIG.replicas and not fits:
            raise torch.OutOfMemoryError
        advance(engine)

    monkeypatch.setattr(Engine, "advance_block", tight)
    paths = [tmp_path / "a", tmp_path / "b"]
    train_together(
        configs_of("loorf", "arms"), paths, device="cpu", datasets=[digits] * 2, notify=print
    )
    free_memory()
    function(torch.ones(3))
    assert compiled == [1]


def test_only_the_command_changes_the_allocator(
    tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr("arms.bench.cli.keep_freed_memory", lambda: calls.append("mallopt"))
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    handler = signal.getsignal(signal.SIGINT)
    train(CONFIG, tmp_path / "run", device="cpu", dataset=digits)
    assert calls == []
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == (threads, precision)
    assert signal.getsignal(signal.SIGINT) is handler
    monkeypatch.setattr(sys, "argv", ["arms", "data", "list"])
    main()
    assert calls == ["mallopt"]
