"""Stop a release whose tag is not its version, or whose addresses are not filled in."""

import sys
import tomllib
from pathlib import Path

import arms

ROOT = Path(__file__).parents[1]


def problems(tag: str) -> list[str]:
    """Return what must be changed before this tag can be released."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    headings = (ROOT / "CHANGELOG.md").read_text().splitlines()
    found = {
        f"the tag must be v{arms.__version__}, got {tag}": tag != f"v{arms.__version__}",
        "pyproject.toml must have [project.urls]: fill in its comment": "urls" not in project,
        f'CHANGELOG.md needs "## {arms.__version__}"': f"## {arms.__version__}" not in headings,
    }
    return [problem for problem, there in found.items() if there]


if __name__ == "__main__":
    found = problems(sys.argv[1])
    print("\n".join(found) or "ready")
    raise SystemExit(bool(found))
