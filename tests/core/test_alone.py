"""The library alone, in an environment with only torch, numpy and their dependencies."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from bare import make_bare_environment

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(os.name == "nt", reason="links packages into an environment")
GUIDE = ROOT / "docs" / "extending.md"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that links only the files of these distributions."""
    home = tmp_path_factory.mktemp("alone")
    site = make_bare_environment(home)
    (site / "arms.pth").write_text(str(ROOT / "src"))
    return home / "bin" / "python"


def run(python: Path, code: str) -> str:
    done = subprocess.run(
        [str(python), "-I", "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_environment_is_bare(python: Path) -> None:
    names = ["scipy", "tyro", "rich", "safetensors", "matplotlib", "pytest"]
    code = f"import importlib.util as u; print([n for n in {names} if u.find_spec(n)])"
    assert run(python, code).strip() == "[]"


def test_it_works_with_torch_and_numpy_alone(python: Path) -> None:
    code = """
import sys, torch, arms
torch.set_num_threads(1)
logits = torch.zeros(5, 3, requires_grad=True)
f = lambda b: (b * torch.arange(3.0)).sum(-1).square()
for name in arms.estimators.ALL_ESTIMATORS:
    chosen = arms.as_estimator(name, 4)
    of_target = arms.importance_bound if chosen.target.subtracts_log_q else arms.expectation
    of_target(f, logits, chosen).sum().backward()
drawn = arms.draw(logits, "arms", 4)
arms.attach(drawn, drawn.samples.numpy().sum(-1)).sum().backward()
print(arms.variance(f, logits, repeats=3))
assert not any(name.startswith("arms.bench") for name in sys.modules)
"""
    assert "arms" in run(python, code)


def test_a_users_estimator_needs_nothing_else(python: Path) -> None:
    """The guide's file and an estimator with a parameter run, learn and pass the check."""
    written = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)[0]
    learnable = (Path(__file__).parents[1] / "learnable.py").read_text()
    code = f"""{written}
{learnable}
import sys, torch, arms
torch.set_num_threads(1)
for make in (SplitBaseline, Scaled):
    report = arms.checks.findings(make, draws=2000, num_samples=[2])
    assert report.passed, str(report)
    estimator = make(4)
    loss = arms.variance_loss(estimator(lambda b: b.sum(-1) + 1, torch.zeros(50, 3)))
    for parameter in estimator.parameters():
        loss.backward()
        assert parameter.grad != 0
    print(report.verdict)
assert not any(name.startswith("arms.bench") for name in sys.modules)
"""
    assert run(python, code).split() == ["pass", "pass"]


def test_this_interpreter_is_another_one(python: Path) -> None:
    assert run(python, "import sys; print(sys.prefix)").strip() != sys.prefix
