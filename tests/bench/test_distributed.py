"""docs/distributed.md is true: its recipes run, and two ranks with own noise are one process with more of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import arms
from arms.bench.sweeps.files import read_sweep

DOCS = Path(__file__).parents[2] / "docs"
RECIPES = DOCS / "recipes"
REPEATS = 20_000
LOGITS = torch.tensor([-1.0, 0.3, 1.5], dtype=torch.float64)
LIMIT = 5.5  # of a standard normal: a failure rate of 4e-8 for each of the 8 numbers that are compared

RANK = """
import sys, torch, torch.distributed as dist
from tests.bench.test_distributed import gradients
dist.init_process_group("gloo")
torch.manual_seed(0)
rank = dist.get_rank()
generator = torch.Generator().manual_seed(1_000 + (rank if sys.argv[2] == "own" else 0))
mean = gradients(generator)
dist.all_reduce(mean)
if rank == 0:
    torch.save(mean / dist.get_world_size(), sys.argv[1])
dist.destroy_process_group()
"""


def objective(bits: Tensor) -> Tensor:
    return (bits.sum(-1) - 0.7).square() + bits[..., 0] * bits[..., 2]


def gradients(generator: torch.Generator | None, estimator: str = "arms-s") -> Tensor:
    """Return independent estimates of one gradient, [repeats, 3]."""
    logits = LOGITS.expand(REPEATS, 3).clone().requires_grad_()
    count = None if estimator == "exact" else 4
    arms.expectation(objective, logits, estimator, count, generator).sum().backward()
    assert logits.grad is not None
    return logits.grad


def torchrun(*words: str) -> str:
    call = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
    path = os.pathsep.join([str(DOCS.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(call, capture_output=True, text=True, timeout=180, check=False, env=environment)
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


def test_two_ranks_average_to_one_process_in_law(tmp_path: Path) -> None:
    alone = gradients(torch.Generator().manual_seed(5))
    exact = gradients(None, "exact")[0]
    own, same = averaged(tmp_path, "own"), averaged(tmp_path, "same")
    z = (own.mean(0) - exact) / (own.std(0) / REPEATS**0.5)
    assert z.abs().max() < LIMIT, "unbiased"
    assert abs(z_of_variances(own, alone / 2**0.5)) < LIMIT, "half the variance, as of two independent estimates"
    assert z_of_variances(same, alone / 2**0.5) > LIMIT, "one seed for all ranks averages nothing: the test sees it"
    assert abs(z_of_variances(same, alone)) < LIMIT


def test_the_recipe_trains() -> None:
    assert "loss " in torchrun(str(RECIPES / "ddp.py"))


def test_recipes_of_sweeps_can_be_read() -> None:
    assert len(read_sweep(RECIPES / "sweep.toml")) == 12
    for script in RECIPES.glob("*.sh"):
        subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.parametrize("name", ["sweep.toml", "slurm_ray.sh", "slurm_array.sh", "ddp.py"])
def test_the_page_names_every_recipe(name: str) -> None:
    page = (DOCS / "distributed.md").read_text()
    assert f"recipes/{name}" in page
    assert "```python" not in page, "Python of this page is in files, which are run"
