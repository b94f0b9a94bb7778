"""Unusual input at the command line gives a one-line error, and never a traceback."""

import errno
import json
import os
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import Say
from marks import signals
from processes import ARMS, IN_BACKGROUND, completed, started
from safetensors.torch import save_file

from arms.bench.config import TrainConfig
from arms.bench.data import Dataset
from arms.bench.runs import files as checkpoints
from arms.bench.runs.run import Run
from arms.bench.runs.train import train

CONFIG = TrainConfig(steps=20, report_every=10, latents=4, num_samples=2)
FLAGS = ["--steps", "20", "--report-every", "10", "--latents", "4", "--num-samples", "2"]
BROKEN = """
import arms
from arms.designs import Independent, Systematic

class Own(arms.LeaveOneOut):
    def __init__(self, num_samples):
        super().__init__(arms.LOORF(num_samples).design)

class Raises(Own):
    def combine(self, draw, values, derivatives=None):
        raise RuntimeError("too\\nbad")

class Nothing(Own):
    def combine(self, draw, values, derivatives=None):
        return None

class Short(Own):
    def combine(self, draw, values, derivatives=None):
        return values[0]

class NoDraw(Independent):
    def draw(self, latent, generator=None):
        return None

class Drawless(arms.LeaveOneOut):
    def __init__(self, num_samples):
        super().__init__(NoDraw(num_samples))

class RaisingCoupling(Systematic):
    def sample_bits(self, logits, n, generator=None):
        raise RuntimeError("too bad")

class NoCoupling(Systematic):
    def sample_bits(self, logits, n, generator=None):
        return None

class Unmakeable(Own):
    def __init__(self, num_samples):
        raise RuntimeError("not today")

class Pairwise(Systematic):
    even_samples = True

    def sample_bits(self, logits, n, generator=None):
        assert n % 2 == 0
        return super().sample_bits(logits, n, generator)

    def sample_categories(self, logits, n, generator=None):
        assert n % 2 == 0
        return super().sample_categories(logits, n, generator)
"""


@pytest.fixture
def run(tmp_path: Path, all_digits: Dataset) -> Run:
    return train(CONFIG, tmp_path / "runs" / "run", device="cpu", dataset=all_digits, evaluate=20)


def is_one_line(said: tuple[int, str, str], message: str) -> None:
    code, _, error = said
    assert code == 2, error
    assert re.search(message, error), error
    assert len(error.strip().splitlines()) == 1, error


# ---- arms check


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("Raises", "raised RuntimeError: too"),
        ("Nothing", "Nothing.combine must return a tensor, got NoneType"),
        ("Short", "Short.combine must return the shape of the logits"),
        ("Drawless", "the design NoDraw must return a Draw, got NoneType"),
        ("RaisingCoupling", "raised RuntimeError: too bad"),
        ("NoCoupling", "raised AttributeError"),
    ],
)
def test_a_broken_class_fails_the_check(name: str, figure: str, say: Say) -> None:
    Path("broken_classes.py").write_text(BROKEN)
    code, said, error = say("check", f"broken_classes:{name}", "--draws", "1000")
    assert (code, error) == (1, "")
    assert "FAIL" in said
    assert figure in " ".join(said.replace("│", " ").split()), "however narrow the terminal"


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("import sys; sys.exit(0)", "cannot find 'exits:X': importing exits raised SystemExit: 0"),
        ("raise KeyError('a')", "importing exits raised KeyError: 'a'"),
        ("x = (", "importing exits raised SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_no_pass(module: str, message: str, say: Say) -> None:
    Path("exits.py").write_text(module)
    is_one_line(say("check", "exits:X"), re.escape(message))


def test_a_class_that_cannot_be_made(say: Say) -> None:
    Path("broken_makes.py").write_text(BROKEN)
    is_one_line(
        say("check", "broken_makes:Unmakeable"), r"Unmakeable'>\(1\) raised RuntimeError: not today"
    )


def test_a_coupling_may_draw_even_numbers_only(say: Say) -> None:
    Path("even_coupling.py").write_text(BROKEN)
    code, said, _ = say("check", "even_coupling:Pairwise", "--draws", "2000")
    assert code == 0
    assert "n = 2" in said
    assert "n = 3" not in said
    sys.path.insert(0, os.getcwd())
    import even_coupling  # type: ignore[import-not-found]

    import arms

    with pytest.raises(
        ValueError, match=r"num_samples of Pairwise\(\) must be even.* got 3: try 4"
    ):
        arms.ARMS(3, even_coupling.Pairwise())
    assert arms.ARMS(4, even_coupling.Pairwise()).design.num_samples == 4


# ---- run directories that can be parsed


VERBS = (
    ["train", *FLAGS, "--name", "run"],
    ["evaluate", "runs/run"],
    ["sample", "runs/run"],
    ["variance", "runs/run"],
)


@pytest.mark.parametrize(
    "line", ['{"step": 100, "train_elbo": 3}', "null", "[" * 100_000, '{"step": true}']
)
def test_odd_lines_of_metrics_are_skipped(line: str, run: Run, say: Say) -> None:
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write(f"{line}\n")
    for verb in VERBS[:3]:
        assert say(*verb)[0] == 0
    assert say("report", "runs", "--no-files")[0] == 0


@pytest.mark.parametrize(
    "result", ["{}", '{"bounds": null}', '{"bounds": {}}', '{"bounds": {"test": 3}}']
)
def test_a_result_that_is_none_of_ours(result: str, run: Run, say: Say) -> None:
    (run.path / "result.json").write_text(result)
    is_one_line(
        say(*VERBS[0]), r"runs/run/result.json must contain .*: remove it, and train the run again"
    )
    (run.path / "result.json").write_text(
        '{"bounds": {"test": {"1": [-1.0]}}}'
    )  # no note, and only one K
    assert "test bound K=1 -1.00" in say(*VERBS[0])[1]


def metadata_of(run: Run, state: dict[str, torch.Tensor]) -> dict[str, str]:
    """Return the file that the run itself would write next to a checkpoint."""
    return {"sha256": checkpoints.digest_of_tensors(state), "run": run._digest()}


@pytest.mark.parametrize("counts", [None, torch.zeros(0, dtype=torch.int64)])
def test_a_checkpoint_without_its_step(counts: torch.Tensor | None, run: Run, say: Say) -> None:
    state = run.checkpoint()
    assert state is not None
    state.pop("counts")
    odd = state if counts is None else {**state, "counts": counts}
    (run.path / "result.json").unlink()
    newest, previous = (run.path / name for name in checkpoints.CHECKPOINTS)
    previous.unlink(missing_ok=True)
    save_file(odd, newest, metadata=metadata_of(run, odd))
    message = "runs/run/checkpoint.safetensors must be a checkpoint, but it does not contain a step"
    for verb in VERBS:
        is_one_line(say(*verb), message)
    assert say("runs")[0] == 0


def test_a_checkpoint_without_its_noise(run: Run, say: Say) -> None:
    state = run.checkpoint()
    assert state is not None
    state.pop("generator")
    (run.path / "result.json").unlink()
    (run.path / checkpoints.CHECKPOINTS[1]).unlink(missing_ok=True)
    newest = run.path / checkpoints.CHECKPOINTS[0]
    save_file(state, newest, metadata=metadata_of(run, state))
    is_one_line(say(*VERBS[0]), "the checkpoint has no generator")


def test_a_checkpoint_that_is_a_folder(run: Run, say: Say) -> None:
    (run.path / checkpoints.CHECKPOINTS[0]).unlink()
    (run.path / checkpoints.CHECKPOINTS[0]).mkdir()
    is_one_line(say("evaluate", "runs/run"), "runs/run/checkpoint.safetensors")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "runs/run/config.json cannot be read: maximum recursion depth"),
        (
            '{"schema": 4, "dataset": ["digits"]}',
            r"runs/run/config.json is not a valid configuration: dataset must be a string",
        ),
        ('{"steps": ' + "9" * 5000 + "}", "runs/run/config.json cannot be read: Exceeds the limit"),
        (
            '{"schema": 4, "learning_rate": "fast"}',
            "runs/run/config.json is not a valid configuration: learning_rate must be",
        ),
    ],
)
def test_a_configuration_that_is_none(text: str, message: str, run: Run, say: Say) -> None:
    (run.path / "config.json").write_text(text)
    for verb in VERBS:
        is_one_line(say(*verb), message)
    assert say("report", "runs", "--no-files")[0] == 0


def test_wall_time_that_is_none_is_forgotten(run: Run, say: Say) -> None:
    (run.path / "provenance.json").write_text('{"wall_seconds": "abc"}')
    assert say(*VERBS[0], "--evaluate", "30")[0] == 0
    assert json.loads((run.path / "provenance.json").read_text())["wall_seconds"] > 0


def test_a_loop_of_links(say: Say) -> None:
    Path("loop").symlink_to("loop")
    is_one_line(say("train", *FLAGS, "--runs", "loop"), "loop")


ABSURD = "4000000000000000000"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *(
            (
                ["train", *FLAGS, flag, ABSURD],
                f"does not fit into the memory of cpu: reduce .*{ABSURD}",
            )
            for flag in ("--replicas", "--batch-size", "--num-samples", "--latents")
        ),
        (["train", *FLAGS[:4], "--layers", ABSURD, "3"], "does not fit into the memory of cpu"),
        (
            ["train", *FLAGS, "--latents", "20", "--categories", ABSURD],
            "latents times categories must be an integer",
        ),
        (["train", *FLAGS, "--seed", "1" * 400], "seed must be .*, got 1111"),
        (
            ["evaluate", "runs/run", "--samples", ABSURD],
            "does not fit into memory: use fewer samples",
        ),
        (["variance", "runs/run", "--num-samples", ABSURD], "does not fit into memory"),
        (["variance", "runs/run", "--evaluations", ABSURD], "does not fit into memory"),
        (["toy", "--num-samples", ABSURD], "does not fit into memory"),
        (["toy", "--num-samples", "2", "--replicas", ABSURD], "does not fit into memory"),
        (["toy", "--num-samples", "2", "--seed", "1" * 30], "--seed must be an integer >= 0"),
        (
            ["check", "loorf", "--seed", "9223372036854775807"],
            r"seed must be at most 1,125,899,906,842,624, got 9.2e\+18",
        ),
        (
            ["check", "loorf", "--num-samples", "2147483648"],
            r"num_samples must be at most 1,000,000, got 2.1e\+09",
        ),
        (
            ["check", "loorf", "--draws", ABSURD],
            r"draws must be at most 1,000,000,000, got 4.0e\+18",
        ),
    ],
)
def test_absurd_numbers(words: list[str], message: str, run: Run, say: Say) -> None:
    is_one_line(say(*words, "--name", "absurd") if words[0] == "train" else say(*words), message)


@pytest.mark.parametrize(
    "words",
    [
        ["train", *FLAGS, "--dataset", "~nouser/x.npz"],
        ["train", *FLAGS, "--dataset", "omniglot", "--data-dir", "~nouser/x.npz"],
        ["data", "list", "--data-dir", "~nouser/x.npz"],
        ["sweep", "figure3", "--data-dir", "~nouser/x.npz", "--dry-run"],
        ["evaluate", "runs/run", "--dataset", "~nouser/x.npz"],
    ],
)
def test_an_unknown_home_folder(words: list[str], run: Run, say: Say) -> None:
    is_one_line(
        say(*words),
        "the home folder in the path '~nouser/x.npz' cannot be found: write the full path",
    )


# ---- reports


def test_numbers_beyond_drawing_do_not_end_the_page(run: Run, say: Say) -> None:
    other = Run(Path("runs/huge")).begin(replace(CONFIG, seed=1, replicas=2))
    for step in (10, 20):
        other.append(
            {"step": step, "train_elbo": [-1e200, -2e300], "gradient_variance": [1e307, 1.0]}
        )
    other.finish(
        {
            "steps": 20,
            "note": "",
            "bounds": {"test": {"1": [-1e200, -1.7e308], "100": [-1.0, -2.0]}},
        }
    )
    code, said, error = say("report", "runs", "-o", "page.html")
    assert (code, error) == (0, "")
    assert "2 runs" in said
    page = Path("page.html").read_text()
    assert "not finite" in page
    assert "Infinity" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names themselves")
def test_paths_that_are_no_text(run: Run, say: Say) -> None:
    odd = os.fsdecode(b"runs/\xff")
    run.path.rename(odd)
    for verb in (
        ["evaluate", odd],
        ["sample", odd],
        ["train", *FLAGS, "--name", os.fsdecode(b"\xff")],
    ):
        is_one_line(
            say(*verb), "a path must be valid UTF-8, got runs/\ufffd: rename the file or folder"
        )
    code, said, _ = say("report", "runs", "--no-files")
    assert code == 0
    assert "must be valid UTF-8" in said
    is_one_line(say("report", "runs", "-o", os.fsdecode(b"\xff.html")), "must be valid UTF-8")
    assert not list(Path().glob("*_files"))


# ---- disks and signals


def test_a_full_disk_names_the_file(run: Run, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    is_one_line(
        say("train", *FLAGS, "--name", "new"),
        r"cannot use runs/new/config.json: No space left on device",
    )


LONG = ["train", "--steps", "10000000", "--report-every", "10", "--latents", "4", "--name", "long"]


def wait_for_step(run: Run, step: int) -> None:
    """Wait until there is a checkpoint of this step, or of a later step."""
    end = time.monotonic() + 60
    while run.step() < step:
        assert time.monotonic() < end, f"no checkpoint of step {step} or later"
        time.sleep(0.02)


@signals
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_a_training_in_one_line(number: signal.Signals, tmp_path: Path) -> None:
    run = Run(tmp_path / "runs/long")
    with started([*ARMS, *LONG], cwd=tmp_path) as process:
        wait_for_step(run, 1)
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert re.fullmatch(
        r"arms: stopped; saved at step \d+: the same command resumes from there\n", error
    )
    assert run.step() == int(error.split()[5].rstrip(":"))


@signals
def test_in_the_background_a_training_ignores_ctrl_c_and_still_saves_on_sigterm(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path / "runs/long")
    with started(
        [*IN_BACKGROUND, *ARMS, *LONG, "--checkpoint-seconds", "0"], cwd=tmp_path
    ) as process:
        wait_for_step(run, 1)
        process.send_signal(signal.SIGINT)
        wait_for_step(run, run.step() + 1000)
        process.terminate()
        _, error = process.communicate(timeout=60)
    assert process.returncode == 143
    assert (
        error == f"arms: stopped; saved at step {run.step()}: the same command resumes from there\n"
    )


INTERRUPTED = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from arms_command import main
main()
"""


@signals
@pytest.mark.parametrize("module", ["arms", "torch", "tyro", "arms.bench.cli.sweep"])
def test_interrupted_while_it_starts(module: str, tmp_path: Path) -> None:
    """Interrupt the command at any point of its imports, which take seconds."""
    done = completed([sys.executable, "-c", INTERRUPTED, module], cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "arms: stopped\n")


# ---- small things


def test_version_help_and_guesses(say: Say) -> None:
    import arms

    assert say("--version") == (0, f"arms {arms.__version__}\n", "")
    helped = say("--help")[1]
    assert "data list" in helped
    assert "data:list" not in helped
    helped = say("train", "--help")[1]
    assert not any(
        line.rstrip().endswith("instead of `--estimator`; they must")
        for line in helped.splitlines()
    )
    assert "{None}" not in helped
    is_one_line(
        say("train", "--estimator", "armss"),
        "there is no estimator named 'armss': did you mean arms or arms-ms\\? Otherwise choose",
    )
    is_one_line(say("check", "systematik"), "did you mean systematic\\? Otherwise choose one of")
    is_one_line(
        say("train", "--model", "nowhere"),
        "expected a name in a module, such as my_module:make_model, got 'nowhere'",
    )
    is_one_line(
        say("train", "--model", "math:pi"),
        "must be a function that makes a model for a data set, got float",
    )
    is_one_line(
        say("train", "--model", "math:sqrt", "--network", "linear"),
        "got both --model math:sqrt and --network, which only affects",
    )


def test_rloo_is_loorf(run: Run, say: Say) -> None:
    assert TrainConfig(estimator="rloo") == TrainConfig(estimator="loorf")
    code, said, _ = say("variance", "runs/run", "--repeats", "3", "--estimators", "rloo")
    assert code == 0
    assert "loo" in said


def test_a_file_without_a_checksum_is_readable(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("folder/mnist.npz")
    monkeypatch.setattr("arms.bench.data.fetch", lambda name, data_dir: (path,))
    assert (
        say("data", "get", "dynamic-mnist")[1]
        == "readable (no checksum is known): folder/mnist.npz\n"
    )
    cached = Path("cache/train-images-idx3-ubyte.gz")
    monkeypatch.setattr("arms.bench.data.fetch", lambda name, data_dir: (cached,))
    assert say("data", "get", "dynamic-mnist")[1].startswith("intact: cache/train-images")


# ---- code that ends the process, or asks for too much memory

ENDING = """
import sys
import torch
from arms.designs import Systematic

def leave(*_):
    sys.exit(0)

class Leaving(Systematic):
    def __init__(self):
        sys.exit(0)

class LeavingLater(Systematic):
    def sample_bits(self, logits, n, generator=None):
        sys.exit(0)

class Huge(Systematic):
    def sample_bits(self, logits, n, generator=None):
        return torch.empty(10**15)
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sys:exit"], r"exit>\(1\) raised SystemExit: 1"),
        (["loorf", "--latent", "sys:exit"], r"exit>\(\) raised SystemExit: give a latent"),
        (["ending:leave"], r"leave at .*>\(1\) raised SystemExit: 0"),
        (["ending:Leaving"], r"Leaving'>\(\) raised SystemExit: 0: pass a coupling object"),
        (["ending:Huge"], "does not fit into memory: use fewer samples"),
    ],
)
def test_a_check_ends_in_one_line(words: list[str], message: str, say: Say) -> None:
    Path("ending.py").write_text(ENDING)
    is_one_line(say("check", *words, "--draws", "1000"), message)


def test_a_check_that_is_left_has_failed(say: Say) -> None:
    Path("ending.py").write_text(ENDING)
    code, said, error = say("check", "ending:LeavingLater", "--draws", "1000")
    assert (code, error) == (1, "")
    assert "raised SystemExit: 0" in " ".join(said.replace("│", " ").split())


ENDLESS = 5000 * "x"


@pytest.mark.parametrize(
    "words",
    [
        [ENDLESS],
        ["check", ENDLESS],
        ["check", f"m:{ENDLESS}"],
        ["check", "loorf", f"--{ENDLESS}"],
        ["runs", ENDLESS],
        ["runs", ENDLESS.replace("x", "x y ")],
        ["train", "--steps", ENDLESS],
        ["train", f"--steps={ENDLESS}"],
        ["train", "--dataset", f"./{ENDLESS}"],
        ["train", "--name", ENDLESS, "--steps", "1"],
    ],
)
def test_long_words_of_a_command_are_cut(words: list[str], say: Say) -> None:
    code, said, error = say(*words)
    assert (code, said, error.count("\n")) == (2, "", 1)
    assert "characters)" in error or "File name too long" in error
    assert len(error) < 1500
