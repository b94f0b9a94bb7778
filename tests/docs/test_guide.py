"""The contributor's guide is followed to the letter, on a copy of the package."""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from processes import completed

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "extending.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COPIED = ("src", "tests", "docs", "benchmarks/results", "pyproject.toml", "CHANGELOG.md")


def blocks(kind: str) -> list[str]:
    return [text for found, text in BLOCK.findall(GUIDE) if found == kind]


def files_named_before(kind: str) -> list[str]:
    """Return, for each block in order, the last file that the text before the block names."""
    named = []
    for found in BLOCK.finditer(GUIDE):
        if found[1] == kind:
            before = BLOCK.sub("", GUIDE[: found.start()])
            named.append(re.findall(r"`((?:src|tests)/[\w/]+\.py)`", before)[-1])
    return named


def insert(path: Path, difference: str) -> None:
    """Add the lines that a difference marks with a plus, each after the line above it."""
    text, after = path.read_text(), ""
    for line in difference.splitlines():
        if line.startswith("+"):
            assert text.count(f"{after}\n") == 1, f"{path} has no single line {after!r}"
            text = text.replace(f"{after}\n", f"{after}\n{line[1:]}\n")
        after = line[1:]
    path.write_text(text)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository in which steps 1 to 3 of the guide have been done."""
    folder = tmp_path_factory.mktemp("guide")
    for name in COPIED:
        source = ROOT / name
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.png")
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    (folder / files_named_before("python")[0]).write_text(blocks("python")[0])
    for path, difference in zip(files_named_before("diff"), blocks("diff"), strict=True):
        insert(folder / path, difference)
    return folder


def run(copy: Path, *words: str) -> str:
    paths = os.pathsep.join(str(copy / name) for name in ("src", "docs"))
    told = os.environ | {"PYTHONPATH": paths, "COLUMNS": "200"}
    done = completed([sys.executable, *words], cwd=copy, env=told)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def commands() -> list[list[str]]:
    return [shlex.split(line) for text in blocks("sh") for line in text.splitlines()]


def test_the_guide_touches_one_new_file_and_the_registry() -> None:
    assert [name for name in files_named_before("diff") if name.startswith("src")] == [
        "src/arms/estimators/registry.py"
    ]


def test_the_commands_of_the_guide_know_the_new_estimator(copy: Path) -> None:
    assert len(commands()) == 4
    exact, check, listing, train = (
        run(copy, "-m", *(["arms", *words[1:]] if words[0] == "arms" else words))
        for words in commands()
    )
    # Both numbers of samples on bits, one on categories; each has its value and its expectation.
    assert re.search(r"([6-9]|\d\d) passed", exact)
    assert "exact expectation, n = 4" in check
    assert "FAIL" not in check
    assert re.search(r"split-baseline .* experimental", listing)
    assert "split-baseline" in train
    assert (copy / "runs" / "guide" / "result.json").is_file()


def test_the_registry_test_and_the_doctest_know_the_new_estimator(copy: Path) -> None:
    tests = ("tests/core/estimators/test_registry.py", "tests/core/test_vectors.py")
    said = run(copy, "-m", "pytest", "-q", *tests)
    assert re.search(r"[1-9]\d* passed", said)
    new = files_named_before("python")[0]
    assert "1 passed" in run(copy, "-m", "pytest", "-q", new)


def test_the_documentation_knows_the_new_estimator(copy: Path) -> None:
    code = (
        "from generators import pages; print(pages.estimator_pages()['estimators/experimental.md'])"
    )
    assert "| [`split-baseline`](expectation/split-baseline.md) | " in run(copy, "-c", code)
    code = (
        "from generators import pages; "
        "print(pages.estimator_pages()['estimators/expectation/split-baseline.md'])"
    )
    page = run(copy, "-c", code)
    assert 'arms.as_estimator("split-baseline", 8)' in page
    assert "The estimate is unbiased because that" in page


def test_the_other_code_of_the_guide_runs(copy: Path) -> None:
    """In another process: classes that are defined here must not be found by other tests."""
    printed = run(copy, "-c", "\n".join(blocks("python")[1:]).replace("repeats=100", "repeats=5"))
    assert re.search(r"^split-baseline +8 +8 +0 ", printed, flags=re.MULTILINE)
    for text in blocks("text"):
        assert text in printed
