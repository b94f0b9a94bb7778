"""The navigation: `folder/*` in mkdocs.yml stands for the pages of a folder that have no place of their own."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any


def expanded(nav: list[Any], docs: str, generated: Iterable[str]) -> list[Any]:
    """Return the navigation with every `folder/*` replaced by pages, written or generated."""
    there = sorted(path.relative_to(docs).as_posix() for path in Path(docs).rglob("*.md"))
    there += [path for path in generated if path not in there]
    named = set(_named(nav))
    return [_expanded(item, [path for path in there if path not in named]) for item in nav]


def _named(item: Any) -> Iterable[str]:
    if isinstance(item, str):
        return [item]
    parts = item.values() if isinstance(item, dict) else item
    return [path for part in parts for path in _named(part)]


def _expanded(item: Any, free: list[str]) -> Any:
    if isinstance(item, dict):
        return {title: _expanded(part, free) for title, part in item.items()}
    if isinstance(item, str):
        return _pages(item, free) if item.endswith("/*") else item
    flat: list[Any] = []
    for part in item:
        new = _expanded(part, free)
        flat += new if isinstance(new, list) else [new]
    return flat


def _pages(pattern: str, free: list[str]) -> list[str]:
    folder = pattern.removesuffix("*")
    return [
        path for path in free if path.startswith(folder) and "/" not in path.removeprefix(folder)
    ]
