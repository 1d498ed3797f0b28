"""Tile trees with other parts in their text, given as an option."""

from __future__ import annotations

from typing import Any

from tilewright.compiler.plan import Plan
from tilewright.options import Options
from tilewright.tiles.notation import parse_tree, print_tree
from tilewright.tiles.tree import kernels, to_json

Edits = tuple[tuple[str, str], ...]
"""What stands in a text, and what comes instead."""


def edited(text: str, edits: Edits) -> str:
    """The text with other parts, each of which must stand in it."""
    for before, after in edits:
        assert before in text, text
        text = text.replace(before, after)
    return text


def given(plan: Plan, name: str, *edits: tuple[str, str], **options: Any) -> Options:
    """Options with the tree of one kernel of a plan, edited."""
    (kernel,) = (each for each in plan.kernels if each.name == name)
    tree = kernel.scheduled.tree
    changed = parse_tree(edited(print_tree(tree), edits), kernels(tree))
    return Options(cache=False, trees={name: to_json(changed)}, **options)
