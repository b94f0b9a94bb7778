"""An environment that contains only torch, numpy, their dependencies, and the named packages."""

import importlib.metadata
import os
import re
import venv
from pathlib import Path


def make_bare_environment(home: Path, *more: str) -> Path:
    """Link the files of these distributions into a new environment, and return its package folder."""
    venv.create(home, with_pip=False, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    known: set[str] = set()
    for name in ("torch", "numpy", *more):
        _requirements(name, known)
    for name in known:
        distribution = importlib.metadata.distribution(name)
        for top in {
            file.parts[0]
            for file in distribution.files or []
            if file.parts[0] not in ("..", "__pycache__")
        }:
            source, target = Path(str(distribution.locate_file(top))), site / top
            if source.exists() and not target.exists():
                os.symlink(source, target)
    return site


def _requirements(name: str, known: set[str]) -> set[str]:
    """Add a distribution and its dependencies, without extras and without other platforms."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    try:
        wanted = importlib.metadata.requires(key) or []
    except importlib.metadata.PackageNotFoundError:
        return known
    if key not in known:
        known.add(key)
        for line in wanted:
            if "extra ==" not in line:
                _requirements(re.split(r"[\s;<>=!~\[(]", line, maxsplit=1)[0], known)
    return known
