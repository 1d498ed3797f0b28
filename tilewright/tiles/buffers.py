"""Double buffering: which tensors a tile streams, so that memory holds two slices of each (spec 1, section 3.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from tilewright.tiles.resources import Factors, Number, factor_of, least
from tilewright.tiles.tree import Binding, Kind, Path, Scope, Stage

if TYPE_CHECKING:
    from tilewright.tiles.footprints import Accesses


def buffers(accesses: Accesses, path: Path, factors: Factors | None = None) -> Mapping[str, Number]:
    """How many slices of each tensor from outside a tile are in memory at once: 2 if it is streamed, else 1.

    A tensor is streamed if a temporal loop of several steps around the tile's child replaces its slice, or if there is
    such a loop and `Seq` drops the tensor in each step.
    """
    steps = _steps_around(accesses, path, factors)
    dropped = _dropped(accesses, path)
    found: dict[str, Number] = {}
    for name in accesses.outside(path):
        moving = _moving(accesses, name, path)
        replaced = prod(trips for loop, trips in steps if loop in moving or name in dropped)
        found[name] = 1 + least(replaced - 1, 1)
    return found


def _steps_around(accesses: Accesses, path: Path, factors: Factors | None) -> Sequence[tuple[str, Number]]:
    """The temporal loops around the child of a tile, by name, with their factors."""
    return [
        (loop.name, factor_of(loop, factors, place, number))
        for place, tile in accesses.tiles.items()
        if tile.binding is not Binding.SP and path[: len(place)] == place
        for number, loop in enumerate(tile.loops)
    ]


def _moving(accesses: Accesses, tensor: str, path: Path) -> set[str]:
    """The loops that replace the slice of a tensor that expressions below a node touch."""
    found: set[str] = set()
    for op in accesses.inside(path):
        for access in accesses.problem.accesses(op):
            if access.tensor == tensor:
                found |= access.moving
    return found


def _dropped(accesses: Accesses, path: Path) -> set[str]:
    """The tensors that some child of a `Seq` right inside a tile does not need, and that the tile does not keep."""
    tile = accesses.tiles[path]
    place, node = (*path, 0), tile.child
    while isinstance(node, Stage):
        place, node = (*place, 0), node.child
    if not isinstance(node, Scope) or node.kind is not Kind.SEQ:
        return set()
    needed: list[set[str]] = [set(accesses.outside((*place, number))) for number in range(len(node.children))]
    common = needed[0].intersection(*needed)
    return needed[0].union(*needed) - common - set(tile.keep)
