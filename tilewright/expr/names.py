"""Names that nothing else has yet."""

from __future__ import annotations

from collections.abc import Collection


def unique(hint: str, taken: Collection[str]) -> str:
    """`hint`, or `hint.1`, `hint.2`, … if it is taken."""
    name, count = hint, 0
    while name in taken:
        count += 1
        name = f"{hint}.{count}"
    return name


def claim(hint: str, taken: set[str]) -> str:
    """A unique name after `hint`, added to `taken`."""
    name = unique(hint, taken)
    taken.add(name)
    return name
