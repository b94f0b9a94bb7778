"""Ensembles: runs that are trained together stay separate, and survive kills, full memory and separate resumption."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from marks import needs_gpu, signals
from processes import completed

import arms
from arms.bench.config import TrainConfig
from arms.bench.data import Dataset, TrainingImages
from arms.bench.evaluation import evaluate
from arms.bench.metrics import Record
from arms.bench.models import build_vae
from arms.bench.runs.ensemble import ensemble_trainer, share_of_model, stack
from arms.bench.runs.files import CHECKPOINTS
from arms.bench.runs.run import Run
from arms.bench.runs.train import train, train_together
from arms.bench.training.engine import Engine, free_memory
from arms.bench.training.trainer import Trainer, joined, of_run
from arms.checks import score_limit
from arms.designs import Draw

SMALL = TrainConfig(
    num_samples=4,
    latents=10,
    batch_size=10,
    learning_rate=2e-3,
    replicas=2,
    steps=30,
    report_every=10,
)
NAMES = ["loorf", "arms"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, digits: Dataset) -> list[Run]:
    """An ensemble that is trained without interruption."""
    return together(tmp_path_factory.mktemp("whole"), digits)


@pytest.fixture(scope="module")
def strokes() -> Dataset:
    """Other images of the same size, which are brighter and more numerous than the digits."""
    images = torch.randint(
        17, (170, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    return Dataset("strokes", images[:130].clamp(min=8), images[130:150], images[150:], 8, 8, 16)


def together(
    folder: Path,
    digits: Dataset,
    names: Sequence[str] = NAMES,
    told: list[str] | None = None,
    stop_at: int | None = None,
) -> list[Run]:
    """Train or resume an ensemble with a save at every record. Stop after the saves at step `stop_at`."""

    def stop(_: TrainConfig, record: Record) -> None:
        if record["step"] == stop_at:
            raise InterruptedError

    return train_together(
        configs_of(names),
        [folder / name for name in names],
        device="cpu",
        datasets=[digits] * len(names),
        checkpoint_seconds=0.0,
        on_record=stop,
        notify=list[str]().append if told is None else told.append,
    )


def configs_of(names: Sequence[str], config: TrainConfig = SMALL) -> list[TrainConfig]:
    return [replace(config, estimator=name) for name in names]


def stopped_together(
    folder: Path, digits: Dataset, stop_at: int, names: Sequence[str] = NAMES
) -> None:
    with pytest.raises(InterruptedError):
        together(folder, digits, names, stop_at=stop_at)


def assert_same(ours: Run, theirs: Run) -> None:
    assert ours.result() == theirs.result()
    assert ours.metrics() == theirs.metrics()
    one, other = ours.checkpoint(), theirs.checkpoint()
    assert one is not None
    assert other is not None
    assert set(one) == set(other)
    assert all(torch.equal(one[name], other[name]) for name in one)


# ---- the estimator of all, and runs side by side


def test_packed_members_serve_their_own_replicas() -> None:
    members = (arms.LOORF(4), arms.ARMS(4), arms.DisARM(4), arms.ARM(4))
    archived = arms.Stacked(members, [2] * len(members))
    logits = torch.linspace(-2, 2, 8 * 5 * 3, dtype=torch.float64).reshape(8, 5, 3)
    draw = archived.design.draw(arms.Bits(logits), torch.Generator().manual_seed(0))
    values = draw.points.sum(-1).square()
    grad = archived.combine(draw, values)
    for index, member in enumerate(members):
        part = slice(2 * index, 2 * index + 2)
        memory = draw.memory[index].memory
        own = Draw(arms.Bits(logits[part]), draw.points[:, part], memory=memory)
        assert torch.equal(grad[part], member.combine(own, values[:, part]))


def test_packed_estimates_are_unbiased() -> None:
    archived = arms.Stacked([arms.LOORF(4), arms.ARMS(4)], [20_000, 20_000])
    logits = torch.tensor([0.4, -1.2, 0.9], dtype=torch.float64)
    table = arms.checks.table_objective(
        arms.checks.random_table(8, torch.Generator().manual_seed(1))
    )
    grad = archived(
        table, logits.expand(40_000, 1, -1), torch.Generator().manual_seed(2)
    ).grad.squeeze(1)
    truth = arms.checks.exact_gradient(table, logits)
    for part in grad.split(20_000):
        error = part.std(0) / len(part) ** 0.5
        assert ((part.mean(0) - truth).abs() <= score_limit(6) * error).all()


def test_runs_trained_together_are_runs_of_their_own(whole: list[Run], digits: Dataset) -> None:
    for name, run in zip(NAMES, whole, strict=True):
        assert run.config() == replace(SMALL, estimator=name)
        result, state = run.result(), run.checkpoint()
        assert result is not None
        assert state is not None
        assert len(result["bounds"]["test"]["100"]) == SMALL.replicas
        assert [record["step"] for record in run.metrics()] == [10, 20, 30]
        assert all(len(record["train_elbo"]) == SMALL.replicas for record in run.metrics())
        assert len(list(run.path.glob("events.*"))) == 1
        assert run.provenance()["together"] == NAMES
        trainer = Trainer(run.config(), digits)
        trainer.load_state(state)  # fits: it could be resumed alone
        found = evaluate(trainer.model, digits, "test", [1, 2, 4, 100], SMALL.seed)
        of_run = {int(count): values for count, values in result["bounds"]["test"].items()}
        assert found == of_run, "bounds depend on the run's own weights, not on its neighbors"
    assert whole[0].metrics() != whole[1].metrics()


@pytest.mark.parametrize("mixed", [False, True])
def test_a_run_of_an_ensemble_starts_from_the_weights_it_would_have_alone(
    mixed: bool, digits: Dataset, strokes: Dataset
) -> None:
    datasets = [digits, strokes if mixed else digits]
    trainer = ensemble_trainer(configs_of(NAMES), datasets, "cpu")
    for index, dataset in enumerate(datasets):
        alone = build_vae(
            SMALL.network, SMALL.latents, dataset.pixel_mean(), SMALL.replicas, SMALL.seed
        ).state_dict()
        own = share_of_model(trainer, SMALL, index, 2).state_dict()
        assert own.keys() == alone.keys()
        assert all(torch.equal(own[name], tensor) for name, tensor in alone.items())


def test_so_does_what_an_estimator_learns(digits: Dataset, strokes: Dataset) -> None:
    configs = [
        replace(SMALL, estimator="relax", dataset=dataset.name) for dataset in (digits, strokes)
    ]
    trainer = ensemble_trainer(configs, [digits, strokes], "cpu")
    for index, (config, dataset) in enumerate(zip(configs, (digits, strokes), strict=True)):
        alone = Trainer(config, dataset).estimator_parameters
        assert len(alone) > 2
        for whole, own in zip(trainer.estimator_parameters, alone, strict=True):
            assert torch.equal(whole.chunk(2)[index], own)


@pytest.mark.parametrize("names", [NAMES, ["relax"], ["arm"]])
def test_data_sets_side_by_side(
    names: list[str], tmp_path: Path, digits: Dataset, strokes: Dataset
) -> None:
    """A single estimator may be any estimator. Restrictions only apply to several estimators."""
    datasets = [digits, strokes] * len(names)
    configs = [
        replace(SMALL, estimator=name, dataset=data.name)
        for name in names
        for data in (digits, strokes)
    ]

    def go(folder: Path, stop_at: int = 0) -> list[Run]:
        def stop(config: TrainConfig, record: Record) -> None:
            if record["step"] == stop_at:
                raise InterruptedError

        paths = [folder / f"{config.dataset}-{config.estimator}" for config in configs]
        return train_together(
            configs, paths, device="cpu", datasets=datasets, checkpoint_seconds=0, on_record=stop
        )

    with pytest.raises(InterruptedError):
        go(tmp_path / "again", stop_at=10)
    for ours, theirs in zip(go(tmp_path / "again"), go(tmp_path / "once"), strict=True):
        assert_same(ours, theirs)
    for run, config, dataset in zip(go(tmp_path / "once"), configs, datasets, strict=True):
        assert run.config() == config
        assert run.provenance()["together"][1] == f"{names[0]} on strokes"
        trainer, state, result = Trainer(config, dataset), run.checkpoint(), run.result()
        assert state is not None
        assert result is not None
        trainer.load_state(state)  # fits: it could be resumed alone
        of_run = {int(count): values for count, values in result["bounds"]["test"].items()}
        assert evaluate(trainer.model, dataset, "test", [1, 2, 4, 100], SMALL.seed) == of_run


def test_neighbors_with_one_estimator_draw_at_once() -> None:
    configs = [
        replace(SMALL, estimator=name, dataset=data) for name in NAMES for data in ("a", "b", "c")
    ]
    together = stack(configs)
    assert isinstance(together, arms.Stacked)
    assert together.inners == (arms.LOORF(4), arms.ARMS(4, arms.designs.Systematic()))
    assert together.widths == (6, 6)


def test_every_replica_sees_its_own_images_evenly() -> None:
    """Image i of the first data set has pixel i on, and image i of the second data set pixel 10 + i."""
    first, second = torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(5, 16, dtype=torch.uint8)
    first[range(4), range(4)] = second[range(5), range(10, 15)] = 1
    one, other = (
        Dataset(name, rows, rows, rows, 4, 4, 1)
        for name, rows in (("one", first), ("other", second))
    )
    images = TrainingImages.of([one, other, one], 6, "cpu")
    seen = images.batch(6, 20_000, torch.Generator().manual_seed(0)).sum(1)
    expected = [
        20_000 * rows.float().mean(0) for rows in (first, first, second, second, first, first)
    ]
    assert (
        seen - torch.stack(expected)
    ).abs().max() < 5 * 70  # five standard deviations at the most
    assert torch.equal(seen > 0, torch.stack(expected) > 0)


def test_an_ensemble_of_one_is_a_plain_run(tmp_path: Path, digits: Dataset) -> None:
    (one,) = together(tmp_path, digits, ["relax"])
    plain = train(
        replace(SMALL, estimator="relax"), tmp_path / "plain", device="cpu", dataset=digits
    )
    assert_same(one, plain)


@pytest.mark.parametrize("mixed", [False, True])
def test_states_come_apart_and_together_again(
    mixed: bool, digits: Dataset, strokes: Dataset
) -> None:
    trainer = ensemble_trainer(configs_of(NAMES), [digits, strokes if mixed else digits], "cpu")
    trainer.step()
    state = {name: tensor.clone() for name, tensor in trainer.state().items()}
    parts = [of_run(state, index, 2) for index in range(2)]
    again = joined(parts, SMALL.seed, "cpu")
    assert all(torch.equal(again[name], tensor) for name, tensor in state.items())
    parts[1]["generator"] = torch.Generator().manual_seed(5).get_state()
    fresh = joined(parts, SMALL.seed, "cpu")["generator"]
    assert not any(torch.equal(fresh, part["generator"]) for part in parts), (
        "noise that one of them has used"
    )
    parts[1]["generator"] = torch.zeros(16, dtype=torch.uint8)
    with pytest.raises(ValueError, match="different kinds of devices"):
        joined(parts, SMALL.seed, "cpu")


@pytest.mark.parametrize("name", ["rebar", "relax", "exact"])
def test_what_cannot_share_an_ensemble_is_refused(
    name: str, tmp_path: Path, digits: Dataset
) -> None:
    with pytest.raises(
        ValueError,
        match=f"{name} cannot share an ensemble .* among reinforce, loorf, arm, disarm, disarm-stick, arms",
    ):
        together(tmp_path, digits, ["loorf", name])
    assert not list(tmp_path.iterdir())


def test_packed_bounds_are_each_members_own(tmp_path: Path, digits: Dataset) -> None:
    names = ["disarm-ms", "arms-ms-dirichlet", "loorf-ms"]
    estimator = stack([replace(SMALL, estimator=name) for name in names])
    assert isinstance(estimator, arms.Stacked)
    assert estimator.target == arms.ImportanceBound(2)
    logits = torch.linspace(-2, 2, 6 * 5 * 3, dtype=torch.float64).reshape(6, 5, 3)
    draw = estimator.design.draw(arms.Bits(logits), torch.Generator().manual_seed(0))
    values = draw.points.sum(-1).square()
    grad, value = estimator.combine(draw, values), estimator.target.value(values, None)
    for index, member in enumerate(estimator.inners):
        part = slice(2 * index, 2 * index + 2)
        memory = draw.memory[index].memory
        own = Draw(arms.Bits(logits[part]), draw.points[:, part], memory=memory)
        assert torch.equal(grad[part], member.combine(own, values[:, part]))
        assert torch.equal(value[part], member.target.value(values[:, part], None))
    runs = together(tmp_path, digits, names)
    assert all(run.result() is not None for run in runs)


def test_an_ensemble_has_one_objective(tmp_path: Path, digits: Dataset) -> None:
    for names, what in (
        (
            ["loorf", "vimco"],
            r"loorf \(4 evaluations, expectation\), vimco \(4 evaluations, 4-sample bound\)",
        ),
        (
            ["vimco", "arms-ms"],
            r"vimco \(4 evaluations, 4-sample bound\), arms-ms \(4 evaluations, 2-sample bound\)",
        ),
    ):
        with pytest.raises(
            ValueError,
            match=f"must make the same evaluations of the model, got {what}: train them separately",
        ):
            together(tmp_path, digits, names)
    assert not list(tmp_path.iterdir())


def test_refusals(tmp_path: Path, digits: Dataset, whole: list[Run]) -> None:
    with pytest.raises(
        ValueError,
        match="must differ in estimator, data set, learning rate or encoder_scale, got loorf, loorf",
    ):
        together(tmp_path, digits, ["loorf", "loorf"])
    with pytest.raises(ValueError, match="contains another run"):
        train_together(
            configs_of(NAMES, replace(SMALL, seed=3)),
            [tmp_path / "new", whole[1].path],
            device="cpu",
        )
    with pytest.raises(ValueError, match="device must be auto, cpu, cuda or cuda:N, got 'tpu'"):
        train_together(configs_of(NAMES), [tmp_path / name for name in NAMES], device="tpu")
    assert not list(tmp_path.iterdir())


def test_runs_of_an_ensemble_may_start_from_other_initial_weights(
    tmp_path: Path, digits: Dataset
) -> None:
    configs = [replace(SMALL, encoder_scale=scale) for scale in (1.0, 8.0)]
    trainer = ensemble_trainer(configs, [digits] * 2, "cpu")
    weights = trainer.encoder_weights[0].detach()
    alone = [Trainer(one, digits, "cpu").encoder_weights[0].detach() for one in configs]
    assert torch.equal(weights, torch.cat(alone))
    assert not torch.equal(*alone)
    paths = [tmp_path / "plain", tmp_path / "sharp"]
    runs = train_together(configs, paths, device="cpu", datasets=[digits] * 2)
    assert [run.config().encoder_scale for run in runs] == [1.0, 8.0]
    spreads = [run.metrics()[0]["logit_spread"] for run in runs]
    assert min(spreads[1]) > max(spreads[0])


# ---- resuming

HEAD = """
import json, os, resource, signal, sys, time
from dataclasses import replace
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.modules["torch.utils.tensorboard.writer"] = None
import torch._dynamo, safetensors.torch  # what training imports on its way: once, not in each process
from arms.bench.runs import run as runs
from arms.bench.data import Dataset, load
from arms.bench.runs.train import train, train_together
from arms.bench.config import TrainConfig

whole = load("digits")
digits = Dataset("digits", whole.train[:100], whole.valid[:20], whole.test[:20], 8, 8, whole.levels)
folder, config, names = Path(sys.argv[1]), TrainConfig(**json.loads(sys.argv[2])), sys.argv[3].split()

def together(folder, config=config, **options):
    options = {"device": "cpu", "datasets": [digits] * len(names), "notify": print, **options}
    configs = [replace(config, estimator=name) for name in names]
    train_together(configs, [folder / name for name in names], **options)
"""

KILLED = """
runs.commit = lambda: ""
os.fsync = lambda descriptor: None  # the processes are killed, not the machine

def fatal_before(real, number):
    def operation(*args):
        nonlocal number
        number -= 1
        if number == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)
    return operation

def sitting(folder, rename=0, save=0, append=0):
    # In a process of its own, which kills itself just before the renaming, the checkpoint, or the
    # record of that number.
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    Path.replace = fatal_before(Path.replace, rename)
    runs.Run.save_checkpoint = fatal_before(runs.Run.save_checkpoint, save)
    runs.Run.append = fatal_before(runs.Run.append, append)
    together(folder, checkpoint_seconds=0.0)
    os._exit(0)

def interrupted(folder):
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    def once(own, record):  # a second one would not wait for the save
        if own.estimator == names[0]:
            os.kill(os.getpid(), signal.SIGINT)
    try:
        together(folder, checkpoint_seconds=1e9, on_record=once)
    except KeyboardInterrupt:
        os._exit(130)

assert interrupted(folder / "interrupted") == 130
moment, kills, codes = 0, 0, [-signal.SIGKILL]
while codes[0] == -signal.SIGKILL:
    moment += 1
    own = folder / str(moment)
    codes = [sitting(own, rename=moment), sitting(own, save=2), sitting(own, append=2)]
    codes.append(sitting(own))
    kills += codes.count(-signal.SIGKILL)
    assert codes[-1] == 0, codes
(folder / "kills").write_text(str(kills))
"""


def script(
    body: str, folder: Path, config: TrainConfig = SMALL, names: Sequence[str] = NAMES
) -> list[str]:
    return [
        sys.executable,
        "-c",
        HEAD + body,
        str(folder),
        json.dumps(asdict(config)),
        " ".join(names),
    ]


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of ensembles that real signals killed or interrupted, and that were resumed."""
    folder = tmp_path_factory.mktemp("aftermath")
    done = completed(script(KILLED, folder), timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


@signals
def test_killed_at_any_moment_it_ends_the_same(aftermath: Path, whole: list[Run]) -> None:
    """SIGKILL before each rename of a file, and between the saves of two runs, never changes the result."""
    ends = [folder for folder in aftermath.iterdir() if folder.name.isdecimal()]
    assert len(ends) > 15, "there are more moments than that"
    assert int((aftermath / "kills").read_text()) >= 40
    for folder in ends:
        for name, run in zip(NAMES, whole, strict=True):
            assert_same(Run(folder / name), run)


@signals
def test_interrupted_it_saves_every_run(aftermath: Path, digits: Dataset, whole: list[Run]) -> None:
    folder = aftermath / "interrupted"
    assert [max(Run(folder / name).checkpoints()) for name in NAMES] == [11, 11]
    for run, other in zip(together(folder, digits), whole, strict=True):
        assert_same(run, other)


def test_a_damaged_checkpoint_takes_all_one_save_back(
    tmp_path: Path, digits: Dataset, whole: list[Run]
) -> None:
    stopped_together(tmp_path, digits, 20)
    (tmp_path / NAMES[1] / CHECKPOINTS[0]).write_bytes(b"gone")
    told: list[str] = []
    for run, other in zip(together(tmp_path, digits, told=told), whole, strict=True):
        assert_same(run, other)
    assert told == []


def test_finished_runs_are_left_alone(tmp_path: Path, digits: Dataset) -> None:
    (finished,) = together(tmp_path, digits, ["loorf"])
    before = {file.name: file.stat().st_mtime_ns for file in finished.path.iterdir()}
    told: list[str] = []
    runs = together(tmp_path, digits, ["loorf", "disarm", "arms"], told)
    assert all(run.result() for run in runs)
    assert before == {file.name: file.stat().st_mtime_ns for file in finished.path.iterdir()}
    assert told == [
        "these runs are not all trained together: disarm, arms from step 0; loorf finished before"
    ]
    together(tmp_path, digits, ["loorf", "disarm", "arms"], told)
    assert len(told) == 1


def test_runs_at_different_steps_resume_from_where_they_are(
    tmp_path: Path, digits: Dataset
) -> None:
    names = ["loorf", "disarm", "arms"]
    stopped_together(tmp_path, digits, 10, names)
    stopped_together(tmp_path, digits, 30, ["arms"])  # resumed alone
    before = Run(tmp_path / "arms").metrics()
    assert [record["step"] for record in before] == [10, 20, 30]
    told: list[str] = []
    runs = together(tmp_path, digits, names, told)
    assert told == [
        "these runs are not all trained together: loorf, disarm from step 10; arms from step 30"
    ]
    assert all(run.result() for run in runs)
    assert runs[2].metrics()[:3] == before


def test_runs_begun_separately_meet_at_a_step(tmp_path: Path, digits: Dataset) -> None:
    """Train runs separately to the same step, then together. Killing and resuming does not change the result."""
    ends = []
    for folder in (tmp_path / "once", tmp_path / "twice"):
        for name in NAMES:
            stopped_together(folder, digits, 20, [name])
        if folder.name == "twice":
            stopped_together(folder, digits, 30)
        ends.append(together(folder, digits))
    for one, other in zip(*ends, strict=True):
        assert_same(one, other)


# ---- memory


def test_an_ensemble_that_does_not_fit_is_halved(
    tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch, whole: list[Run]
) -> None:
    class Tight(Engine):
        """Simulate a lack of memory: with more than two runs from step 25 on, and with two runs from the start."""

        def advance_block(self) -> None:
            runs = self.trainer.config.replicas // SMALL.replicas
            if (runs > 2 and self.trainer.steps_done >= 25) or (
                runs == 2 and self.trainer.steps_done < 5
            ):
                raise torch.OutOfMemoryError
            super().advance_block()

    monkeypatch.setattr("arms.bench.training.engine.Engine", Tight)
    names, told = ["loorf", "disarm", "arms"], list[str]()
    runs = together(tmp_path, digits, names, told)
    assert told == [
        "loorf, disarm, arms do not fit into the memory of cpu together: trained as 2 + 1"
    ]
    assert all(run.result() for run in runs)
    assert [record["step"] for record in runs[0].metrics()] == [10, 20, 30]
    monkeypatch.undo()
    names = names[:2]
    stopped_together(tmp_path / "again", digits, 20, ["loorf", "disarm", "arms"])
    for one, other in zip(runs, together(tmp_path / "again", digits, names), strict=False):
        assert_same(one, other)  # the half resumed from the ensemble's last checkpoint
    told.clear()
    monkeypatch.setattr("arms.bench.training.engine.Engine", Tight)
    assert all(run.result() for run in together(tmp_path / "two", digits, NAMES, told))
    assert told == ["loorf, arms do not fit into the memory of cpu together: trained as 1 + 1"]


REAL = """
train(replace(config, steps=1, replicas=1), folder / "warm", device="cpu", dataset=digits)
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (200 << 20),) * 2)
together(folder / "halves")
together(folder / "none", replace(config, latents=20_000))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts pages as Linux does")
def test_memory_that_is_really_full(tmp_path: Path) -> None:
    config = replace(SMALL, replicas=100, steps=1, report_every=1, latents=50, batch_size=50)
    names = ["loorf", "disarm", "arms", "arms-dirichlet"]
    done = completed(script(REAL, tmp_path, config, names))
    said, errors = done.stdout, done.stderr
    assert said.splitlines()[0].endswith(
        "do not fit into the memory of cpu together: trained as 2 + 2"
    ), errors
    assert all(Run(tmp_path / "halves" / name).result() for name in names)
    assert done.returncode != 0
    assert errors.splitlines()[-1] == (
        "ValueError: loorf does not fit into the memory of cpu: "
        "reduce replicas (now 100), batch_size (50), num_samples (4) or latents (20000)"
    )


@needs_gpu
def test_gpu_memory_that_is_really_full(tmp_path: Path, digits: Dataset) -> None:
    config, told = (
        replace(SMALL, latents=200, replicas=200, batch_size=2000),
        list[str](),
    )  # more than evaluation takes
    paths = [tmp_path / name for name in ("alone", *NAMES)]
    free_memory()  # what other tests left in the cache would count
    torch.cuda.reset_peak_memory_stats()
    train(replace(config, estimator="loorf"), paths[0], device="cuda", dataset=digits)
    share = (
        1.3 * torch.cuda.max_memory_reserved() / torch.cuda.get_device_properties(0).total_memory
    )
    free_memory()
    torch.cuda.set_per_process_memory_fraction(share)
    try:
        runs = train_together(
            configs_of(NAMES, config),
            paths[1:],
            device="cuda",
            datasets=[digits] * len(NAMES),
            notify=told.append,
        )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert told == ["loorf, arms do not fit into the memory of cuda together: trained as 1 + 1"]
    assert all(run.result() for run in runs)


def test_other_errors_pass_through(
    tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(engine: Engine) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(Engine, "advance_block", broken)
    with pytest.raises(RuntimeError, match="something else"):
        together(tmp_path, digits)
