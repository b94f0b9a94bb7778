"""The recipes of docs/distributed.md run, and two ranks with separate noise act like one process with more samples."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from marks import needs_cluster, slow
from processes import completed
from torch import Tensor

import arms
from arms.bench.experiments import read_sweep

DOCS = Path(__file__).parents[2] / "docs"
RECIPES = DOCS / "recipes"
REPEATS = 20_000
LOGITS = torch.tensor([-1.0, 0.3, 1.5], dtype=torch.float64)
LIMIT = (
    5.5  # of a standard normal: a failure rate of 4e-8 for each of the 8 numbers that are compared
)

RANK = """
import sys, torch, torch.distributed as dist
import arms
from tests.docs.test_distributed import gradients
dist.init_process_group("gloo")
torch.manual_seed(0)
generator = arms.rank_generator(1_000) if sys.argv[2] == "own" else torch.Generator().manual_seed(1_000)
mean = gradients(generator)
dist.all_reduce(mean)
if dist.get_rank() == 0:
    torch.save(mean / dist.get_world_size(), sys.argv[1])
dist.destroy_process_group()
"""


WARNED = """
import sys, warnings, torch, torch.distributed as dist
import arms

def estimate(generator=None):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            arms.expectation(lambda bits: bits.sum(-1), torch.zeros(2, 3), num_samples=4, generator=generator)
    return [str(warning.message) for warning in caught]

torch.manual_seed(0)
assert not estimate(), "there are no ranks yet"
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank if sys.argv[1] == "apart" else 0)
assert not estimate(arms.rank_generator(0)), "it was told what to draw from"
found = [None, None]
dist.all_gather_object(found, estimate())
if rank == 0:
    print(sum(found, []))
dist.destroy_process_group()
"""


def objective(bits: Tensor) -> Tensor:
    return (bits.sum(-1) - 0.7).square() + bits[..., 0] * bits[..., 2]


def gradients(generator: torch.Generator | None, estimator: str = "arms") -> Tensor:
    """Return independent estimates of one gradient, [repeats, 3]."""
    logits = LOGITS.expand(REPEATS, 3).clone().requires_grad_()
    count = None if estimator == "exact" else 4
    arms.expectation(objective, logits, estimator, count, generator).sum().backward()
    assert logits.grad is not None
    return logits.grad


def torchrun(*words: str) -> str:
    return run_python(
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words
    )


def run_python(*words: str) -> str:
    call = [sys.executable, *words]
    tests = DOCS.parent / "tests"
    path = os.pathsep.join([str(tests.parent), str(tests), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = completed(call, timeout=180, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def averaged(tmp_path: Path, whose: str) -> Tensor:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    torchrun(str(script), str(tmp_path / whose), whose)
    found: Tensor = torch.load(tmp_path / whose)
    return found


def z_of_variances(one: Tensor, other: Tensor) -> float:
    spread = [(grad - grad.mean(0)).square().sum(-1) for grad in (one, other)]
    error = sum(values.var() / REPEATS for values in spread)
    return float((spread[0].mean() - spread[1].mean()) / torch.as_tensor(error).sqrt())


def test_two_ranks_average_to_one_process_in_distribution(tmp_path: Path) -> None:
    alone = gradients(torch.Generator().manual_seed(5))
    exact = gradients(None, "exact")[0]
    own, same = averaged(tmp_path, "own"), averaged(tmp_path, "same")
    z = (own.mean(0) - exact) / (own.std(0) / REPEATS**0.5)
    assert z.abs().max() < LIMIT, "unbiased"
    assert abs(z_of_variances(own, alone / 2**0.5)) < LIMIT, (
        "half the variance, as of two independent estimates"
    )
    assert z_of_variances(same, alone / 2**0.5) > LIMIT, (
        "one seed for all ranks averages nothing: the test sees it"
    )
    assert abs(z_of_variances(same, alone)) < LIMIT


@pytest.mark.parametrize(("seeded", "count"), [("alike", 1), ("apart", 0)])
def test_ranks_that_share_their_noise_are_told_once(
    tmp_path: Path, seeded: str, count: int
) -> None:
    script = tmp_path / "warned.py"
    script.write_text(WARNED)
    (line,) = torchrun(str(script), seeded).splitlines()
    assert line.count("draws the same random numbers as another rank") == count, line
    assert line.count("generator=arms.rank_generator(seed, device)") == count


def test_noise_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {
        (seed, rank): torch.rand(1, generator=arms.rank_generator(seed, rank=rank)).item()
        for seed in range(30)
        for rank in range(30)
    }
    assert len(set(drawn.values())) == len(drawn), "rank 1 of seed 0 is not rank 0 of seed 1"
    monkeypatch.setenv("RANK", "7")  # under torchrun, before there is a process group
    assert torch.rand(1, generator=arms.rank_generator(3)).item() == drawn[3, 7]
    with pytest.raises(ValueError, match="rank must be an integer >= 0, got -1"):
        arms.rank_generator(0, rank=-1)


UNTRAINED = 3.0
"""The loss of a constant model: the variance of the targets."""


def loss_in(said: str) -> float:
    (found,) = re.findall(r"^loss (\S+)", said, re.MULTILINE)
    return float(found)


@slow
def test_the_recipe_trains_and_shards_are_the_same_training() -> None:
    whole, shards = (loss_in(torchrun(str(RECIPES / name))) for name in ("ddp.py", "fsdp.py"))
    assert whole < UNTRAINED / 2
    assert shards == pytest.approx(whole, abs=2e-4), "of numbers that are printed with four digits"


@needs_cluster
def test_the_recipe_of_lightning_trains() -> None:
    said = run_python(str(RECIPES / "lightning_gates.py"))
    assert "on 2 ranks" in said
    assert loss_in(said) < UNTRAINED / 2


@needs_cluster
def test_the_recipe_of_accelerate_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    said = torchrun(str(RECIPES / "accelerate_gates.py"))
    assert "on 2 ranks" in said
    assert loss_in(said) < UNTRAINED / 2


def test_recipes_of_sweeps_can_be_read() -> None:
    assert len(read_sweep(RECIPES / "sweep.toml")) == 12
    for script in RECIPES.glob("*.sh"):
        subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.parametrize(
    "recipe", [path.name for path in RECIPES.iterdir() if path.suffix != ".md" and path.is_file()]
)
def test_a_page_links_every_recipe(recipe: str) -> None:
    pages = [path.read_text() for path in DOCS.rglob("*.md")]
    assert any(re.search(rf"\]\((recipes/)?{re.escape(recipe)}\)", page) for page in pages)


def test_the_page_on_many_machines_has_its_code_in_files() -> None:
    assert "```python" not in (DOCS / "distributed.md").read_text(), "files are run as tests"
