"""Which sums a tile tree multiplies while a value that their terms use is still running (rule L5 b of spec 1).

A tree in which a loop over the row stands around both expressions runs them in turn, part by part. In each step of
these loops but the first one, every element of the sum is multiplied by the factor, which reads the running value
again: its place in the sum's expression is that of its own loops.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.dataclass import dataclass
from tilewright.expr.affine import Affine
from tilewright.expr.core import Read, Tensor
from tilewright.expr.core import walk as nodes_of
from tilewright.tiles.problem import Problem, Rescaling
from tilewright.tiles.tree import Binding, Node, Path, Tile, leaves, node_at, same_path


@dataclass(frozen=True, eq=False)
class Rescaled:
    """A sum that a tree rescales in every step but the first of `loops` around the node at `meeting`.

    `value` is the tensor of the running value. The sum's expression reads an element of it by `forms`: per dimension an
    affine form of its axes, None where it has no loop of the dimension. `reads` is how often the factor has it.
    """

    rescaling: Rescaling
    meeting: Path
    loops: frozenset[str]
    value: Tensor
    forms: tuple[Affine | None, ...]
    reads: int


def rescaled(tree: Node, problem: Problem, places: Mapping[str, Path] | None = None) -> tuple[Rescaled, ...]:
    """The rescalings that a tree carries out: those whose expressions share a loop in turn of both reductions.

    `places` has the leaves by expression, where they are known.
    """
    if not problem.rescaled:
        return ()
    if places is None:
        places = {leaf.op: path for path, leaf in leaves(tree)}
    found = []
    for one in problem.rescaled:
        if one.total in places and one.running in places:
            meeting = same_path(places[one.total], places[one.running])
            around = (node_at(tree, meeting[:depth]) for depth in range(len(meeting)))
            tiles = (node for node in around if isinstance(node, Tile) and node.binding is Binding.TP)
            names = {loop.name for tile in tiles for loop in tile.loops}
            loops = names & problem.reductions(one.total) & problem.reductions(one.running)
            if loops:
                value = problem.compute(one.running).output
                count = sum(isinstance(node, Read) for node in nodes_of(one.factor))
                found.append(Rescaled(one, meeting, frozenset(loops), value, _forms(one, problem), count))
    return tuple(found)


def readers(found: tuple[Rescaled, ...]) -> Mapping[str, tuple[Rescaled, ...]]:
    """The rescalings by the sum that they multiply."""
    return {
        name: tuple(one for one in found if one.rescaling.total == name)
        for name in dict.fromkeys(one.rescaling.total for one in found)
    }


def _forms(one: Rescaling, problem: Problem) -> tuple[Affine | None, ...]:
    """Where the sum's expression finds the running value: along loops of the same name."""
    own = {problem.names[one.total, axis.name]: axis for axis in problem.compute(one.total).loops}
    axes = [own.get(problem.names[one.running, axis.name]) for axis in problem.compute(one.running).axes]
    return tuple(None if axis is None else Affine(0, {axis: 1}) for axis in axes)
