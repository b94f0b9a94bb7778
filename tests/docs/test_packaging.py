"""Published files: the wheel contains only the package, and the source archive everything that a checkout needs."""

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
from processes import completed

import arms

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "build", "dist", "*.egg-info"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both archives, built by the installed backend from a clean copy."""
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
        "CODE_OF_CONDUCT.md",
        "paper/paper.md",
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


# ---- The wheel in environments that hold torch, numpy and what those two need, and in one with an extra

BARE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def requirements(extra: str) -> list[str]:
    """Return the names of the distributions that an extra needs, including nested extras."""
    found = []
    for line in EXTRAS[extra]:
        own = re.fullmatch(r"arms-grad\[(.*)\]", line)
        found += [one for part in own[1].split(",") for one in requirements(part)] if own else []
        found += [] if own else [re.split(r"[\s;<>=]", line, maxsplit=1)[0]]
    return found


def installed(wheel: Path, home: Path, *packages: str) -> Path:
    """Install the wheel into a new environment with these packages, torch and numpy."""
    make_bare_environment(home, *packages)
    python = str(home / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python]
    done = run([*pip, "install", "--no-deps", "--no-index", str(wheel)])
    assert done.returncode == 0, done.stderr
    return home


def run(words: list[str], cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        words, env=BARE, cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def home(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(wheel, tmp_path_factory.mktemp("bare"))


@pytest.mark.parametrize("extra", [None, "bench"])
def test_examples_in_docstrings_pass_where_it_is_installed(
    extra: str | None, wheel: Path, home: Path, tmp_path: Path
) -> None:
    """Run in a separate folder, so that nothing is imported from the checkout."""
    place = installed(wheel, tmp_path / "extra", *requirements(extra)) if extra else home
    shutil.copy(ROOT / "tests" / "installed.py", tmp_path)
    words = [str(place / "bin" / "python"), "installed.py", *([extra] if extra else [])]
    done = run(words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"arms {arms.__version__} from {place}" in done.stdout
    (tried,) = re.findall(r"(\d+) examples, failures in \[\]", done.stdout)
    assert int(tried) > (160 if extra else 130)


def test_with_the_extra_the_command_trains(wheel: Path, tmp_path: Path) -> None:
    place = installed(wheel, tmp_path / "bench", *requirements("bench"))
    words = "train --steps 20 --replicas 1 --evaluate 20 --device cpu --name short"
    done = run([str(place / "bin" / "arms"), *words.split()], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "short" / "result.json").is_file()


def test_with_the_smallest_extra_the_command_audits(wheel: Path, tmp_path: Path) -> None:
    place = installed(wheel, tmp_path / "cli", *requirements("cli"))
    (tmp_path / "mine.py").write_text(
        "import torch\n\n\n"
        "def reinforce(objective, logits):\n"
        "    p = torch.sigmoid(logits.detach())\n"
        "    b = torch.bernoulli(p)\n"
        "    return objective(b).unsqueeze(-1) * (b - p)\n"
    )
    for words in ("--help", "audit mine:reinforce --draws 2000", "estimators", "audit --help"):
        done = run([str(place / "bin" / "arms"), *words.split()], cwd=tmp_path)
        assert done.returncode == 0, done.stderr


def test_the_source_archive_builds_the_same_wheel(built: Path, wheel: Path, tmp_path: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    done = run([*pip, "--wheel-dir", str(tmp_path), str(source)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (again,) = tmp_path.glob("*.whl")
    assert again.name == wheel.name
    first, second = (zipfile.ZipFile(path) for path in (wheel, again))
    assert {(one.filename, one.CRC) for one in first.infolist()} == {
        (one.filename, one.CRC) for one in second.infolist()
    }


def test_installed_alone_it_computes_a_gradient(home: Path) -> None:
    code = """
import sys, torch, arms
logits = torch.zeros(5, 1, requires_grad=True)
arms.expectation(lambda b: b.sum(-1), logits, num_samples=4).sum().backward()
assert torch.allclose(logits.grad, torch.tensor(0.25))  # of four coupled bits two are ones: exact
print(arms.__file__)
"""
    done = run([str(home / "bin" / "python"), "-I", "-c", code])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(home))


def test_its_command_says_in_one_line_what_to_install(home: Path) -> None:
    done = run([str(home / "bin" / "arms"), "runs"])
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
    page = (ROOT / "docs" / "citing.md").read_text()
    assert f"version = {{{arms.__version__}}}" in page
    assert cited["references"][0]["url"] in page
    assert f"\n## {arms.__version__}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_a_release_needs_its_tag_and_an_address() -> None:
    """The script of the workflow rejects a wrong tag, and a project without an address."""
    script = [sys.executable, str(ROOT / ".ci" / "check_release.py")]
    wrong = completed([*script, "v9.9.9"])
    assert wrong.returncode == 1
    assert f"the tag must be v{arms.__version__}, got v9.9.9" in wrong.stdout
    right = completed([*script, f"v{arms.__version__}"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ready = "ready" if "urls" in project else "fill in its comment"
    assert right.stdout.splitlines()[0].endswith(ready)


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
    assert all((ROOT / name).is_file() for name in re.findall(r"(?:tests|\.ci)/\S+\.py", commands))
