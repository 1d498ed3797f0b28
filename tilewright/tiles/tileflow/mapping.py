"""A mapping of TileFlow's artifact as a tile tree.

Tiles of both have the same meaning; only the order of loops is turned round, and leaves name operators. A dimension of
a tile is the loop of the operators below it. Where the first of two convolutions follows from the second, loops around
both are those of the second, and loops around the first alone its own. Factors that are no number and no macro are
open. `split` of a spatial tile says how many of its dimensions, the innermost ones, lie along X of an array. `profile`
and `tag` decide nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidFile
from tilewright.fields import Place
from tilewright.tiles.problem import Problem
from tilewright.tiles.tileflow import schema
from tilewright.tiles.tileflow.problem import Operators, Where
from tilewright.tiles.tree import ONCE, Binding, Hint, InvalidTree, Kind, Leaf, Loop, Scope, Tile, TileTree

_T = TypeVar("_T")
_MAPPING: Final = ("mapping",)


def tree_of(
    mapping: schema.Node, operators: Operators, problem: Problem, macros: Mapping[str, int], levels: Sequence[str],
    where: Where,
) -> TileTree:  # fmt: skip
    """The tree; `levels` are those of the architecture, outermost first, none where it is not known.

    Raises CompileError with the place of what is wrong.
    """
    if isinstance(mapping, schema.Op):
        raise InvalidFile(f"the mapping is the operator {mapping.name} alone", where=where(_MAPPING),
                          help="a Tile around it")  # fmt: skip
    found = _Trees(operators, problem, macros, tuple(levels), where).node(mapping, _MAPPING)
    assert not isinstance(found, Leaf), "bug: only an operator becomes a leaf"
    return found


def spatial_tiles(mapping: schema.Node, place: Place = _MAPPING) -> Iterator[tuple[Place, schema.Tile]]:
    """All tiles whose loops distinct units run, with their places."""
    if isinstance(mapping, schema.Tile) and mapping.type == Binding.SP.value:
        yield place, mapping
    for number, child in enumerate(_children(mapping)):
        yield from spatial_tiles(child, (*place, "subtree", number))


def level_of(target: str | int, levels: Sequence[str], where: str) -> str:
    """The name of a level. Raises InvalidFile for a number without levels, or for what is none of them."""
    if isinstance(target, int) and target < len(levels):
        return levels[len(levels) - 1 - target]
    if isinstance(target, int) or (levels and target not in levels):
        known = f"one of {', '.join(levels)}" if levels else "the name of a level; numbers need an architecture"
        raise InvalidFile(f"target is {target!r}", where=where, help=known)
    return target


def _children(node: schema.Node) -> tuple[schema.Node, ...]:
    return () if isinstance(node, schema.Op) else node.subtree


def _operators(node: schema.Node) -> list[str]:
    if isinstance(node, schema.Op):
        return [node.name]
    return [name for child in node.subtree for name in _operators(child)]


@dataclass(frozen=True)
class _Trees:
    operators: Operators
    problem: Problem
    macros: Mapping[str, int]
    levels: tuple[str, ...]
    where: Where

    def node(self, node: schema.Node, place: Place) -> TileTree | Leaf:
        if isinstance(node, schema.Op):
            if node.name not in self.operators.output:
                raise InvalidFile(f"there is no operator {node.name}", where=self.where((*place, "name")),
                                  help=f"one of {', '.join(self.operators.output)}")  # fmt: skip
            return Leaf(self.operators.output[node.name])
        children = [self.node(child, (*place, "subtree", number)) for number, child in enumerate(node.subtree)]
        if isinstance(node, schema.Scope):
            return self._made(place, lambda: Scope(Kind(node.type), tuple(children)))  # type: ignore[arg-type]
        if len(children) != 1:
            raise InvalidFile(f"a Tile has {len(children)} children", where=self.where((*place, "subtree")),
                              help="one; put a Scope around them")  # fmt: skip
        level = level_of(node.target, self.levels, self.where((*place, "target")))
        loops = self._loops(node, place)
        hints = self._split(node, list(loops), place)
        own = tuple(loops.values()) or (Loop(ONCE, 1),)
        return self._made(place, lambda: Tile(level, own, children[0], Binding(node.type), hints, bypass=node.bypass))

    def _split(self, tile: schema.Tile, dims: Sequence[str], place: Place) -> tuple[Hint, ...]:
        """How many loops of a spatial tile lie along X, where the file says so: those of the innermost dimensions."""
        if tile.split is None or tile.type != Binding.SP.value:
            return ()
        order = self._order(tile, place)
        if tile.split > len(order):
            raise InvalidFile(f"split is {tile.split}, of {len(order)} dimensions", where=self.where((*place, "split")),
                              help=f"at most {len(order)}")  # fmt: skip
        along = order[len(order) - tile.split :]
        return (Hint("along_x", (sum(dim in along for dim in dims),)),)

    def _order(self, tile: schema.Tile, place: Place) -> list[str]:
        """The dimensions of a tile, outermost first: in the order of the factors where there is no permutation."""
        order = list(tile.factors)
        if tile.permutation is not None:
            order = list(reversed("".join(tile.permutation.split())))
            if sorted(order) != sorted(tile.factors):
                raise InvalidFile(f"permutation is {tile.permutation!r}", where=self.where((*place, "permutation")),
                                  help=f"a letter for each of {', '.join(tile.factors)}, innermost first")  # fmt: skip
        return order

    def _loops(self, tile: schema.Tile, place: Place) -> dict[str, Loop]:
        """The loops of a tile by dimension, outermost first."""
        loops = {}
        for dim in self._order(tile, place):
            factor = tile.factors[dim]
            steps = self.macros.get(factor) if isinstance(factor, str) else factor
            name = self._loop(dim, _operators(tile), steps, (*place, "factors"))
            if steps == 0:
                raise InvalidFile(f"the factor of {dim} is 0", where=self.where((*place, "factors")),
                                  help="1 or more")  # fmt: skip
            if name is not None:
                loops[dim] = Loop(name, steps)
        return loops

    def _loop(self, dim: str, operators: list[str], steps: int | None, place: Place) -> str | None:
        """The loop that a dimension is for the operators below; None where it has one step and they lack it."""
        names: dict[str, str] = {}  # by the tensor that is written, consumers last
        for op, axes in self.operators.axes.items():
            axis = axes.get(dim) if op in operators else None
            if axis is not None:
                output = self.operators.output[op]
                names[output] = self.problem.names[output, axis]
        if not names:
            if steps == 1:
                return None
            legal = sorted({each for op in operators for each, axis in self.operators.axes[op].items() if axis})
            raise InvalidFile(f"{dim} is no loop of {', '.join(operators)}", where=self.where(place),
                              help=f"{dim}=1, or some of {', '.join(legal)}")  # fmt: skip
        last = list(names.values())[-1]
        for output, name in names.items():
            if name != last and last not in self.problem.loops_of(output, dim):
                message = f"{dim} is another loop of {output} than of {list(names)[-1]}"
                raise InvalidFile(message, where=self.where(place), help=f"{dim}=1, and a factor in the tile of each")
        return last

    def _made(self, place: Place, make: Callable[[], _T]) -> _T:
        """What `make` returns; where that is no tree, the error says where it is written."""
        try:
            return make()
        except InvalidTree as error:
            error.where = error.where or self.where(place)
            raise
