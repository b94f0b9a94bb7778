"""The command line as users see it: its output and its exit codes."""

import errno
import json
import re
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from commands import Say
from marks import signals
from processes import ARMS, completed, started
from run_directories import SHORT_FLAGS

import arms
from arms.bench.cli import main, parse
from arms.bench.config import TrainConfig, run_name
from arms.bench.experiments import configs
from arms.bench.presets import apply_preset
from arms.bench.runs.archives import write_archive
from arms.bench.runs.run import Run
from arms.bench.runs.train import train
from arms.bench.sweeps.jobs import plan
from arms.bench.training.trainer import step_of
from arms.designs import Independent

OWN_MODULE = """
import torch, arms
from arms.designs import CategoryCoupling, Systematic

class Fine(arms.LeaveOneOut):
    def __init__(self, num_samples):
        super().__init__(arms.LOORF(num_samples).design)

class Broken(Fine):
    def combine(self, draw, values, derivatives=None):
        return super().combine(draw, values) * 1.1

class OwnCoupling(Systematic):
    pass

class NeedyCoupling(Systematic):
    def __init__(self, strength):
        pass

class NeedyEstimator(Fine):
    def __init__(self, num_samples, strength):
        pass

class OwnCategories(CategoryCoupling):
    def sample_categories(self, logits, n, generator=None):
        return Systematic().sample_categories(logits, n, generator)

    def undo_categories(self, logits, n, grad):
        return Systematic().undo_categories(logits, n, grad)

latent = arms.OneHot(torch.tensor([[0.3, -0.4, 0.1]], dtype=torch.float64))
rows = arms.OneHot(torch.zeros(5, 1, 3))
many = arms.Bits(torch.zeros(17))
instance = arms.LOORF(4)
number = 7
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN_MODULE)
    return tmp_path


def test_check_passes_and_fails_by_exit_code(folder: Path, say: Say) -> None:
    fine = completed(
        [*ARMS, "check", "own:Fine", "--draws", "2000", "--num-samples", "2", "9"], cwd=folder
    )
    assert fine.returncode == 0, fine.stderr
    assert "unbiased, n = 9" in fine.stdout
    assert "n = 8" not in fine.stdout
    assert "not checked: other numbers of samples; finite logits beyond" in " ".join(
        fine.stdout.split()
    )
    code, out, _ = say("check", "own:Broken", "--draws", "20000", "--num-samples", "8")
    assert code == 1
    assert "FAIL" in out
    code, out, error = say("check", "own:OwnCoupling", "--draws", "5000")
    assert code == 0, error
    assert "exchangeability" in out
    code, out, error = say("check", "own:OwnCategories", "--draws", "5000", "--num-samples", "3")
    assert code == 0, error
    assert "marginals of categories, n = 3" in out
    assert "n = 2" not in out
    code, out, error = say(
        "check", "own:Fine", "--latent", "own:latent", "--draws", "2000", "--num-samples", "3"
    )
    assert code == 0, error
    assert "single rows, n = 3" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["check", "loorff"],
            "there is no estimator or coupling named 'loorff': did you mean loorf",
        ),
        (["check", "nowhere:Thing"], "cannot find 'nowhere:Thing'"),
        (["check", "own:Missing"], "cannot find 'own:Missing'"),
        (
            ["check", "own:number"],
            "subject must be a coupling or a function that makes estimators, got int: pass a coupling,",
        ),
        (
            ["check", "own:instance"],
            "got LeaveOneOut: pass a coupling, or a function of num_samples such as an estimator's",
        ),
        (
            ["check", "own:NeedyCoupling"],
            "argument: 'strength': pass a coupling object instead of its class",
        ),
        (["check", "own:NeedyEstimator"], "<class 'own.NeedyEstimator'>(1) raised TypeError: "),
        (["check", "math:sqrt"], "<built-in function sqrt> must return an estimator, got float"),
        (["check", "loorf", "--num-samples", "0"], "num_samples must be an integer >= 1, got 0"),
        (["check", "disarm", "--num-samples", "3"], "num_samples of DisARM must be even"),
        (
            ["check", "loorf", "--latent", "own:number"],
            "latents must be a list of latents, as in [arms.Bits(logits)], got [7]",
        ),
        (
            ["check", "loorf", "--latent", "own:rows"],
            "each of the latents must have no batch axes, and from 1 to 65,536 joint states, got OneHot",
        ),
        (
            ["check", "loorf", "--latent", "own:many"],
            "from 1 to 65,536 joint states, got Bits with logits of shape [17]",
        ),
        (
            ["check", "own:OwnCoupling", "--latent", "own:latent"],
            "latents can only be given to check an estimator",
        ),
        (["toy", "--num-samples", "3"], "num_samples of ARM must be even"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_mistakes_are_one_line(say: Say, words: list[str], message: str) -> None:
    code, _, error = say(*words)
    assert code == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_unknown_flag_is_no_traceback(say: Say) -> None:
    code, _, error = say("toy", "--repplicas", "3")
    assert code == 2
    assert "Traceback" not in error


def test_listing_and_toy(say: Say) -> None:
    _, listed, _ = say("estimators")
    unbiased, biased = listed.split("biased, for comparison")
    assert "arms" in unbiased
    assert "reinmax" not in unbiased
    assert "reinmax" in biased
    code, out, error = say("toy", "--num-samples", "4", "--replicas", "50")
    assert code == 0, error
    assert "arms-gaussian" in out


def test_a_runs_life(tmp_path: Path, say: Say) -> None:
    train = [
        "train",
        "--steps",
        "30",
        "--report-every",
        "10",
        "--latents",
        "10",
        "--replicas",
        "2",
        "--name",
        "mine",
    ]
    first = completed([*ARMS, *train], cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert ", K=100 -" in first.stdout
    assert "±" in first.stdout
    code, out, _ = say(*train)
    assert code == 0
    assert "(finished before)" in out
    code, out, error = say("evaluate", "runs/mine", "--samples", "1", "7", "--images", "50")
    assert code == 0, error
    assert "│ 7" in out
    code, out, error = say(
        "variance", "runs/mine", "--repeats", "20", "--estimators", "loorf", "arms"
    )
    assert code == 0, error
    assert "arms" in out
    assert "left out" not in out
    code, _, error = say("sample", "runs/mine", "--count", "4")
    assert code == 0, error
    assert (tmp_path / "runs/mine/samples.png").read_bytes().startswith(b"\x89PNG")


class Marked(arms.LeaveOneOut):
    unbiased = False


def test_variance_counts_the_work(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(arms.ESTIMATORS, "marked", lambda n: Marked(Independent(n)))

    def said(*words: str) -> list[str]:
        code, out, error = say(*words)
        assert code == 0, error
        return out.splitlines()

    said(
        "train",
        "--steps",
        "10",
        "--report-every",
        "10",
        "--latents",
        "8",
        "--num-samples",
        "4",
        "--name",
        "mine",
    )
    compare = ("variance", "runs/mine", "--repeats", "3", "--batch-size", "4")
    lines = said(*compare)
    assert max(map(len, lines)) <= 100
    cells = {line.split()[0]: line.split()[1:4] for line in lines}
    assert cells["arms"] == ["4", "4", "0"]
    assert (
        "left out: rebar, relax, rodeo (they have parameters: train estimator objects and pass these)"
        in lines
    )
    assert list(cells).index("marked") > list(cells).index(
        "reinforce"
    )  # biased estimators come last, whatever their variance
    assert cells["marked"] == ["(biased)", "4", "4"]
    named = said(*compare, "--estimators", "rebar", "relax", "disarm", "--evaluations", "9")
    assert max(map(len, named)) <= 100
    cells = {line.split()[0]: line.split()[1:] for line in named}
    assert cells["rebar"][:4] == cells["relax"][:4] == ["(untrained)", "6", "9", "6"]
    assert cells["disarm"][:3] == ["8", "8", "0"]
    assert not any(line.startswith("left out") for line in named)
    assert (
        next(line.split() for line in said(*compare, "--num-samples", "6") if "loorf " in line)[1]
        == "6"
    )


def test_several_estimators_at_once(say: Say) -> None:
    small = ["train", "--steps", "20", "--report-every", "10", "--latents", "10", "--name", "both"]
    code, said, error = say(*small, "--together", "loorf", "arms")
    assert code == 0, error
    assert all(f"runs/both-{name}: test bound K=1 -" in said for name in ("loorf", "arms"))
    code, _, lost = say(*small, "--learning-rate", "1e38")
    assert code == 2
    assert lost.startswith(
        "arms: all replicas of runs/both (step 10) stopped because their numbers are not finite"
    )
    assert len(lost.strip().splitlines()) == 1


def trained_by(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[TrainConfig]:
    """Return the configuration that `arms train` would train with these flags."""
    asked: list[TrainConfig] = []

    def ask(configs: list[TrainConfig], *_: object, **__: object) -> list[Run]:
        asked.extend(configs)
        return []

    monkeypatch.setattr("arms.bench.runs.train.train_together", ask)
    monkeypatch.setattr(sys, "argv", ["arms", "train", *words])
    main()
    return asked


def test_the_papers_preset_makes_the_runs_of_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in ("table1", "table2"):
        for wanted in configs(table, "paper")[:10]:
            words = ["--preset", "paper", "--dataset", wanted.dataset]
            words += ["--network", wanted.network, "--num-samples", str(wanted.num_samples)]
            words += ["--estimator", wanted.estimator, *([] if wanted.folded else ["--no-folded"])]
            (one,) = trained_by(monkeypatch, *words)
            assert run_name(one) == run_name(wanted)


@pytest.mark.parametrize(
    "words",
    [
        ("archive", "runs", "-o", "s3://bucket/runs.json"),
        ("archive", "s3://bucket/runs"),
        ("report", "runs", "-o", "s3://bucket/runs.html"),
        ("report", "runs", "s3://bucket/runs"),
        ("runs", "s3://bucket/runs"),
        ("runs", "zip://runs::file:///evil.zip"),
        ("experiments", "run", "figure1", "-o", "s3://bucket/runs"),
        ("experiments", "run", "figure3", "--results", "s3://bucket/runs"),
        ("train", "--runs", "s3://bucket/runs"),
        ("toy", "-o", "s3://bucket/runs"),
        ("sweep", "figure3", "-o", "s3://bucket/runs"),
        ("sweep", "figure3", "--results", "runs", "s3://bucket/runs"),
        ("evaluate", "s3://bucket/runs"),
        ("sample", "runs", "-o", "memory://runs.png"),
        ("data", "list", "--data-dir", "s3://bucket/runs"),
    ],
)
def test_addresses_are_no_paths(words: tuple[str, ...], say: Say) -> None:
    Path("runs").mkdir()
    code, _, error = say(*words)
    assert (code, error.count("\n")) == (2, 1)
    assert re.search(
        r"a path must be on this machine, got the address '(s3://bucket|zip:|memory:)", error
    )
    assert [path.name for path in Path().iterdir()] == ["runs"]


@pytest.mark.parametrize(
    "use", [Run, partial(train, TrainConfig()), partial(write_archive, runs=[]), partial(plan, [])]
)
def test_addresses_are_no_paths_in_python(use: Callable[[str], object], say: Say) -> None:
    with pytest.raises(ValueError, match=r"got the address 's3://bucket/runs\.json'"):
        use("s3://bucket/runs.json")
    assert not list(Path().iterdir())


def test_copies_are_no_longer_made(say: Say) -> None:
    code, _, error = say("sweep", "figure3", "--copy-to", "s3://bucket/runs")
    assert (code, error.count("\n")) == (2, 1)
    assert "--copy-to" in error


def test_finished_before_is_said_of_what_stays_as_it_is(say: Say) -> None:
    words = ("train", *SHORT_FLAGS, "--name", "one")

    def result_of(*more: str) -> tuple[bool, str]:
        code, said, error = say(*words, *more)
        assert code == 0, error
        return "(finished before)" in said, Path("runs/one/result.json").read_text()

    few = result_of("--evaluate", "5")
    assert few[0] is False
    assert result_of("--evaluate", "5") == (True, few[1])
    assert result_of("--evaluate", "3") == (True, few[1])
    every = result_of()
    assert every[0] is False, "over all images now"
    assert every[1] != few[1]
    assert result_of() == result_of("--evaluate", "5") == (True, every[1])
    assert result_of("--steps", "30")[0] is False


NEW_NETWORK = """
import sys
from arms.bench.models import NETWORKS, perceptron

NETWORKS["wide"] = perceptron(300)
from arms.bench.config import TrainConfig
from arms.bench.sweeps.jobs import plan
from arms_command import main

wanted = [TrainConfig(dataset="omniglot", network=name) for name in ("wide", "linear")]
print(*(job.line() for job in plan(wanted, "runs", on_gpu=True)), sep="\\n", flush=True)
sys.argv = ["arms", "train", *sys.argv[1:]]
main()
"""


def test_a_new_network_is_one_line() -> None:
    done = completed([sys.executable, "-c", NEW_NETWORK, "--help"])
    assert done.returncode == 0, done.stderr
    assert "wide, n = 4, R = 1; 1 missing: omniglot arms (highest)\n" in done.stdout
    assert "--network {linear,nonlinear,pyramid,wide}" in done.stdout


def test_a_plan_is_for_a_device_that_could_be(say: Say) -> None:
    words = ("experiments", "run", "table1", "--scale", "paper", "--dry-run", "--device")
    assert say(*words, "cuda:3")[0] == 0
    assert say(*words, "banana") == (
        2,
        "",
        "arms: device must be auto, cpu, cuda or cuda:N, got 'banana'\n",
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], (1_000_000, 5, "extra")),
        (["--replicas", "1"], (1_000_000, 1, "extra")),
        (["--steps", "10000", "--decoder-samples", "all"], (10_000, 5, "all")),
    ],
)
def test_a_preset_gives_way_to_every_typed_flag(
    monkeypatch: pytest.MonkeyPatch, words: list[str], expected: tuple[int, int, str]
) -> None:
    asked = trained_by(monkeypatch, "--preset", "paper", *words)
    assert [(one.steps, one.replicas, one.decoder_samples) for one in asked] == [expected]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ("flips", 4, 100_000, "cosine", 6e-3, 32)),
        (["--steps", "30000"], ("flips", 4, 30_000, "cosine", 0.015, 4)),
        (["--network", "nonlinear"], ("flips", 4, 100_000, "cosine", 2e-3, 1)),
        (["--network", "nonlinear", "--steps", "10000"], ("flips", 4, 10_000, "cosine", 5e-3, 16)),
        (["--layers", "20", "10"], ("midpoint", 4, 100_000, "cosine", 6e-3, 1)),
        (["--categories", "10"], ("flips", 4, 100_000, "cosine", 6e-3, 1)),
        (["--estimator", "arms", "--steps", "30000"], ("arms", 4, 30_000, "cosine", 6e-3, 1)),
        (["--learning-rate", "1e-4"], ("flips", 4, 100_000, "cosine", 1e-4, 32)),
        (
            ["--schedule", "constant", "--encoder-scale", "2"],
            ("flips", 4, 100_000, "constant", 6e-3, 2),
        ),
    ],
)
def test_the_fast_preset(
    monkeypatch: pytest.MonkeyPatch, words: list[str], expected: tuple[object, ...]
) -> None:
    (one,) = trained_by(monkeypatch, "--preset", "fast", *words)
    fields = (one.estimator, one.num_samples, one.steps, one.schedule, one.learning_rate)
    assert (*fields, one.encoder_scale) == expected


def test_the_fast_preset_is_the_frozen_recipe() -> None:
    results = Path(__file__).parents[3] / "benchmarks" / "results"
    recipe = json.loads((results / "recipe.json").read_text())["recipe"]
    for network, short in (("linear", 30_000), ("nonlinear", 10_000)):
        for steps in (short, 100_000):
            one = apply_preset("fast", {"network": network, "steps": steps})
            found = recipe[f"elbo {network} {steps} flips"]
            assert (one.encoder_scale, one.learning_rate) == tuple(
                found[field] for field in ("encoder_scale", "learning_rate")
            )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ("rodeo", 3, "dynamic-mnist", "nonlinear", 1e-3)),
        (["--dataset", "fashion-mnist"], ("rodeo", 3, "fashion-mnist", "nonlinear", 3e-4)),
        (["--likelihood", "scaled-gaussian"], ("rodeo", 3, "dynamic-mnist", "nonlinear", 1e-4)),
        (["--layers", "200", "200", "200"], ("disarm", 2, "dynamic-mnist", "linear", 1e-3)),
        (
            ["--estimator", "flips", "--steps", "9"],
            ("flips", 3, "dynamic-mnist", "nonlinear", 1e-3),
        ),
    ],
)
def test_the_preset_of_rodeo(
    monkeypatch: pytest.MonkeyPatch, words: list[str], expected: tuple[str, int, str, str, float]
) -> None:
    (one,) = trained_by(monkeypatch, "--preset", "rodeo", *words)
    assert (one.estimator, one.num_samples, one.dataset, one.network, one.learning_rate) == expected
    assert (one.batch_size, one.inputs, one.prior_learning_rate) == (100, "raw", 0)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], (8, 4, "reinmax", 1.3, 5e-4, 0)),
        (["--latents", "7"], (8, 7, "reinmax", 1.5, 5e-4, 0)),
        (["--categories", "16", "--latents", "12"], (16, 12, "reinmax", 1.5, 7e-4, 2000)),
        (["--estimator", "st-gumbel"], (8, 4, "st-gumbel", 0, 5e-4, 0)),
        (["--temperature", "1"], (8, 4, "reinmax", 1, 5e-4, 0)),
    ],
)
def test_the_preset_of_reinmax(
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    expected: tuple[int, int, str, float, float, int],
) -> None:
    (one,) = trained_by(monkeypatch, "--preset", "reinmax", *words)
    rates = (one.temperature, one.learning_rate, one.warmup_steps)
    assert (one.categories, one.latents, one.estimator, *rates) == expected
    assert (one.likelihood, one.kl, one.num_samples, one.steps) == ("gray", "analytic", 1, 96_000)


@pytest.mark.parametrize("preset", ["rodeo", "reinmax"])
def test_a_published_protocol_trains_resumes_and_reports(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "--preset", preset, "--dataset", "digits", "--replicas", "2", "--name", "one"]
    words += ["--report-every", "2", "--batch-size", "10", "--device", "cpu"]
    code, _, error = say(*words, "--steps", "4")
    assert code == 0, error
    code, _, error = say(*words, "--steps", "6")
    assert code == 0, error
    assert [record["step"] for record in Run("runs/one").metrics()] == [2, 4, 6]
    code, _, error = say("report", "runs/one")
    assert code == 0, error
    assert "raw inputs" in Path("report.html").read_text()


def test_data_verbs(say: Say) -> None:
    code, out, error = say("data", "list")
    assert code == 0, error
    assert "fashion-mnist" in out
    _, out, _ = say("data", "--help")
    assert [line.split()[:2] for line in out.splitlines()[-2:]] == [
        ["data", "list"],
        ["data", "get"],
    ]
    code, out, error = say("data", "get", "digits")
    assert code == 0, error
    assert "installed package" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--estimator", "best"], "there is no estimator named 'best'"),
        (["train", "--estimator", "arm", "--num-samples", "3"], "must be even"),
        (["train", "--dataset", "cifar"], "there is no data set named 'cifar'"),
        (["train", "--device", "tpu"], "device must be auto, cpu, cuda or cuda:N, got 'tpu'"),
        (
            ["train", "--checkpoint-seconds", "nan"],
            "checkpoint_seconds must be a finite number >= 0, got nan",
        ),
        (
            ["train", "--checkpoint-seconds", "-5"],
            "checkpoint_seconds must be a finite number >= 0, got -5",
        ),
        (["evaluate", "nowhere"], "nowhere does not exist: check the path"),
        (["data", "get", "cifar"], "there is no data set named 'cifar'"),
        (["report", "nowhere"], "there is no run in nowhere"),
        (["report", "."], "there is no run in .: train a run"),
        (["train", "--estimator", "exact"], "exact can train with at most 65536 joint states"),
        (
            ["train", "--together", "loorf", "disarm", "--estimator", "arm"],
            "got both --estimator arm and --together loorf disarm",
        ),
        (
            ["train", "--together", "loorf", "disarm", "--estimator", "arms"],
            "got both --estimator arms and --together",
        ),
        (
            ["train", "--name", "../mine"],
            "--name must be a folder name without a path, got '../mine': set the parent folder",
        ),
        (["train", "--name", "a/b"], "--name must be a folder name without a path, got 'a/b'"),
        (["train", "--name", ".."], "--name must be a folder name without a path, got '..'"),
        (["train", "--together", "loorf", "relax"], "relax cannot share an ensemble"),
        (["train", "--data-dir", "missing", "--dataset", "omniglot"], "the data folder"),
    ],
)
def test_run_mistakes_are_one_line(say: Say, words: list[str], message: str) -> None:
    code, out, error = say(*words)
    assert code == 2, error
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert out == "", "no bar before the line"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "run", "--images", "0"], "--images must be an integer >= 1, got 0"),
        (["evaluate", "run", "--images", "-390"], "--images must be an integer >= 1, got -390"),
        (["variance", "run", "--batch-size", "0"], "--batch-size must be an integer >= 1, got 0"),
        (["variance", "run", "--num-samples", "0"], "--num-samples must be an integer >= 1, got 0"),
        (["variance", "run", "--evaluations", "0"], "--evaluations must be an integer >= 1, got 0"),
        (
            ["variance", "run", "--evaluations", "8", "--num-samples", "8"],
            "got both --num-samples and --evaluations: pass only one of them",
        ),
        (["sample", "run", "--count", "0"], "--count must be an integer >= 1, got 0"),
        (["check", "loorf", "--draws", "-5"], "--draws must be an integer >= 1000, got -5"),
        (["check", "systematic", "--draws", "1"], "--draws must be an integer >= 1000, got 1"),
        (
            ["check", "loorf", "--failure-rate", "2"],
            "failure_rate must be a float between 0 and 1, got 2.0",
        ),
        (
            ["train", "--runs", "file", "--name", "mine"],
            "cannot use file/mine: Not a directory: choose another path",
        ),
        (["report", "run", "-o", "file/page.html"], "cannot use file/page_files: Not a directory"),
        (["correlations", "-o", "file"], "cannot use file: File exists"),
        (
            ["train", "--estimatr", "loorf"],
            "Unrecognized options: --estimatr, loorf: perhaps --estimator; see arms train",
        ),
        (["train", "--steps", "ten"], "Error parsing --steps: no type matching INT could be"),
        (
            ["train", "--learning-rate", "x"],
            "Error parsing --learning-rate: no type matching FLOAT",
        ),
        (["evaluate", "run", "--samples", "1", "b"], "Error parsing --samples: Could not find"),
        (
            ["train", "--network", "cubic"],
            "there is no network named 'cubic': choose one of linear, nonlinear, pyramid, or pass",
        ),
        (["trian"], "there is no command named 'trian': did you mean train"),
        (["data", "gett"], "there is no command named 'data gett': did you mean data get"),
        (["evaluate"], "Missing from arms evaluate: PATH Run directory."),
        (["data", "get"], "Missing from arms data get: STR Name of the data set"),
    ],
)
def test_borders_are_one_line(say: Say, words: list[str], message: str) -> None:
    Run("run").begin(TrainConfig())
    Path("file").touch()
    code, out, error = say(*words)
    assert code == 2
    assert error.startswith(f"arms: {message}")
    assert len(error.strip().splitlines()) == 1
    assert out == ""


def test_a_new_verb_of_two_words_needs_no_more_than_its_entry(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def add(a: int, b: int = 1) -> None:
        """Print a sum."""
        sys.stdout.write(f"{a + b}\n")

    verbs: dict[str, Callable[..., None]] = {"train": lambda: None, "sums add": add}
    parse(verbs, ["sums", "add", "--a", "2"])()
    parse(verbs, ["sums"])()
    said = capsys.readouterr().out
    assert said.startswith("3\nusage: arms")
    assert said.endswith("  sums add          Print a sum.\n")
    with pytest.raises(ValueError, match=r"^Error parsing --a: .*'x'; see arms sums add --help$"):
        parse(verbs, ["sums", "add", "--a", "x"])
    with pytest.raises(
        ValueError, match=r"there is no command named 'sum': .*choose one of train, sums"
    ):
        parse(verbs, ["sum"])


def test_a_full_disk_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("arms.bench.toy.variance_curves", fill)
    monkeypatch.setattr(sys, "argv", ["arms", "toy"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err.startswith("arms: No space left on device: choose another path")


@signals
def test_interrupting_says_how_to_go_on(tmp_path: Path) -> None:
    metrics = tmp_path / "runs/long/metrics.jsonl"
    deadline = time.time() + 60
    with started(
        [*ARMS, "train", "--name", "long", "--report-every", "10"], cwd=tmp_path
    ) as process:
        while not (metrics.exists() and metrics.stat().st_size) and time.time() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    state = Run(tmp_path / "runs/long").checkpoint()
    assert state is not None
    step = step_of(state)
    assert errors == f"arms: stopped; saved at step {step}: the same command resumes from there\n"
    evaluated = completed([*ARMS, "evaluate", "runs/long", "--images", "20"], cwd=tmp_path)
    assert (
        f"runs/long is unfinished: its newest checkpoint is from step {step:,} of 10,000"
        in evaluated.stdout
    )


def test_interrupting_claims_nothing_that_is_not_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("arms.bench.toy.variance_curves", interrupt)
    monkeypatch.setattr(sys, "argv", ["arms", "toy"])
    with pytest.raises(SystemExit, match="130"):
        main()
    assert capsys.readouterr().err == "arms: stopped\n"


def test_the_module_is_the_command() -> None:
    result = completed([sys.executable, "-m", "arms", "check", "loorff"])
    assert result.returncode == 2
    assert result.stderr.startswith("arms: there is no estimator or coupling named 'loorff'")


@pytest.mark.parametrize("words", [["estimators"], ["train", "--help"]])
def test_a_reader_may_go_early(words: list[str]) -> None:
    with started([*ARMS, *words]) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, errors = process.communicate(timeout=60)
    assert errors == ""
    assert process.returncode == 141


def test_help_says_what_holds(say: Say) -> None:
    said = " ".join(re.sub(r"[^\x20-\x7e]", " ", say("train", "--help")[1]).split())
    assert "If the run is finished, the same command does nothing" in said
    assert "They must be different, and make the same evaluations of the model" in said
    assert "They are written only after records" in said
    assert "--steps INT Number of optimization steps. (default: 10000)" in said
    assert (
        "--estimator STR Name of the gradient estimator (see `arms estimators`). (default: arms)"
        in said
    )
    assert "--decoder-samples {all,extra} Samples that train the decoder and the prior" in said
