"""Programs in a folder: one file for each graph and machine."""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

SUFFIX = ".tile.xz"
SHOWN_LINES = 20  # of a difference


@dataclass(frozen=True)
class Store:
    """The programs of one version of the compiler."""

    folder: Path

    def put(self, name: str, machine: str, text: str) -> None:
        path = self._path(name, machine)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lzma.compress(text.encode(), preset=1))

    def get(self, name: str, machine: str) -> str | None:
        """The text, None where there is none."""
        path = self._path(name, machine)
        return lzma.decompress(path.read_bytes()).decode() if path.exists() else None

    def difference(self, name: str, machine: str, text: str) -> str:
        """What differs from the stored text, as a few lines; empty where nothing does."""
        stored = self.get(name, machine)
        if stored is None:
            return "not recorded"
        if stored == text:
            return ""
        lines = unified_diff(stored.splitlines(), text.splitlines(), "recorded", "now", n=1, lineterm="")
        return "\n".join(_first(lines))

    def _path(self, name: str, machine: str) -> Path:
        return self.folder / machine / f"{name}{SUFFIX}"


def _first(lines: Iterator[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if number == SHOWN_LINES:
            yield "…"
            return
        yield line
