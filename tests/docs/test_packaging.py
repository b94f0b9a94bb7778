"""What is published: the wheel holds the package and nothing else, the source archive all that a checkout needs."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from bare import make_bare_environment

import arms

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "build", "dist", "*.egg-info"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both archives, built by the backend that is installed, from a copy that no build has touched."""
    copy, out = tmp_path_factory.mktemp("copy") / "arms", tmp_path_factory.mktemp("dist")
    known = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if known.returncode == 0:  # a checkout, with whatever else lies in it
        for name in known.stdout.splitlines():
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, copy / name)
    else:
        shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    code = f"from setuptools import build_meta as b; b.build_sdist({str(out)!r}); b.build_wheel({str(out)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


def package_files() -> set[str]:
    files = (path for path in SOURCE.rglob("*") if path.is_file())
    return {
        str(path.relative_to(SOURCE))
        for path in files
        if path.suffix != ".pyc" and not any(part.endswith(".egg-info") for part in path.parts)
    }


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    inside = {name for name in names if ".dist-info/" not in name}
    assert inside == package_files()
    assert {
        "arms/py.typed",
        "arms_command.py",
        "arms/bench/report/templates/page.html.j2",
    } <= inside
    (notice,) = [name for name in names if name.endswith("LICENSE")]
    assert "MIT" in zipfile.ZipFile(wheel).read(notice).decode()


def test_its_metadata_say_what_it_needs(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (path,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    lines = archive.read(path).decode().split("\n\n")[0].splitlines()
    assert f"Version: {arms.__version__}" in lines
    needed = [
        line.split(": ")[1]
        for line in lines
        if line.startswith("Requires-Dist") and "extra" not in line
    ]
    assert sorted(re.split("[>=]", one)[0] for one in needed) == ["numpy", "torch"]
    extras = {line.split(": ")[1] for line in lines if line.startswith("Provides-Extra")}
    assert extras == set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    )


def test_the_source_archive_holds_what_a_checkout_needs(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "constraints.txt",
        "Makefile",
        "README.md",
        "CHANGELOG.md",
        "CITATION.cff",
    } <= names
    assert {"tests/conftest.py", "tests/instances.py", "tests/docs/test_packaging.py"} <= names
    assert {"docs/midpoint.md", "docs/figures/toy_variance.png", "docs/recipes/ddp.py"} <= names
    assert {
        "benchmarks/results/toy_variance.json",
        "results/omniglot-linear.json",
        "examples/gates.py",
    } <= names
    assert {f"src/{name}" for name in package_files()} <= names
    assert not [name for name in names if re.search(r"\.pyc$|__pycache__|^\.|\.venv|/\.git", name)]


# ---- The wheel in an environment that holds torch, numpy and what those two need

BARE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture(scope="module")
def home(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("bare")
    make_bare_environment(home)
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(home / "bin" / "python"),
        "install",
        "--no-deps",
    ]
    done = subprocess.run(
        [*install, "--no-index", str(wheel)],
        env=BARE,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return home


def test_installed_alone_it_computes_a_gradient(home: Path) -> None:
    code = """
import sys, torch, arms
logits = torch.zeros(5, 1, requires_grad=True)
arms.expectation(lambda b: b.sum(-1), logits, num_samples=4).sum().backward()
assert torch.allclose(logits.grad, torch.tensor(0.25))  # of four coupled bits two are ones: exact
print(arms.__file__)
"""
    done = subprocess.run(
        [str(home / "bin" / "python"), "-I", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(home))


def test_its_command_says_in_one_line_what_to_install(home: Path) -> None:
    done = subprocess.run(
        [str(home / "bin" / "arms"), "runs"],
        env=BARE,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        r"arms: the command line needs \w+: pip install 'arms-grad\[bench\]'.*\n", done.stderr
    )


# ---- What the hosting site reads


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == arms.__version__
    assert (
        cited["license"]
        == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    )
    assert {"cff-version", "message", "title", "authors"} <= set(cited)


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name
)
def test_workflows_and_templates_are_well_formed(path: Path) -> None:
    read = yaml.safe_load(path.read_text())
    if path.parent.name == "ISSUE_TEMPLATE":
        assert {"name", "description", "body"} <= set(read)
        assert all({"type", "id", "attributes"} <= set(field) for field in read["body"])
        return
    steps = [step for job in read["jobs"].values() for step in job["steps"]]
    assert all(("uses" in step) != ("run" in step) for step in steps)
    commands = " ".join(step.get("run", "") for step in steps)
    targets = re.findall(r"make (\S+)", commands)
    assert all(f"\n{target}:" in (ROOT / "Makefile").read_text() for target in targets)
    assert all((ROOT / name).is_file() for name in re.findall(r"tests/\S+\.py", commands))
