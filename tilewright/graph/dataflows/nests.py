"""What the trees of all dataflows are made of: tiles with open factors, and the nest of one operator inside them."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.expr.core import Axis
from tilewright.graph.open_tiles import follows
from tilewright.tiles.problem import Problem
from tilewright.tiles.tree import ONCE, Binding, Kind, Leaf, Loop, Scope, Tile, TileTree


@dataclass(frozen=True)
class Nests:
    """Makes tiles over the memory levels `levels`, DRAM first. Raises InvalidArgument for fewer than three."""

    problem: Problem
    levels: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.levels) < 3:
            raise InvalidArgument(f"a dataflow over the levels {', '.join(self.levels) or 'none'}", where="levels",
                                  help="DRAM, at least one level on the chip, and that of the units")  # fmt: skip

    def dram(self, loops: Sequence[str], child: TileTree) -> TileTree:
        """A tile over data in DRAM whose loops run in turn; one step where there are none."""
        return Tile(self.levels[0], tuple(map(Loop, loops)) or (Loop(ONCE, 1),), child)

    def units(self, loops: Sequence[str], child: TileTree) -> TileTree:
        """A tile over data in DRAM whose loops distinct units run; the child alone where there are none."""
        return Tile(self.levels[0], tuple(map(Loop, loops)), child, Binding.SP) if loops else child

    def nest(self, op: str, above: Sequence[str], whole: Sequence[str] = ()) -> TileTree:
        """The nest of an operator inside tiles with the loops `above`, from the level inside DRAM to the innermost.

        Each level has the operator's loops in turn, and its spatial ones on distinct units; the innermost one has one
        step of all loops but those that are `whole`, such as windows: these stand in the two innermost levels only, in
        the innermost one as far as its capacity goes. Loops that follow from consumers' loops above run one by one
        through what these need: their factors are their extents, of which analyses take what there is.
        """
        loops = self.loops(op, above)
        following = {self.problem.names[op, axis.name]: axis.size for axis in self._following(op, above)}
        cut = [name for name in loops if name not in whole]
        spread = [name for name in cut if name not in self.problem.reductions(op)]
        inner = tuple(Loop(name) if name in whole else Loop(name, 1) for name in (*following, *loops))
        tree: TileTree = Tile(self.levels[-1], inner or (Loop(ONCE, 1),), Leaf(op))
        for level in reversed(self.levels[1:-1]):
            if spread:
                tree = Tile(level, tuple(map(Loop, spread)), tree, Binding.SP)
            innermost = level == self.levels[-2]
            own = [Loop(name) for name in (loops if innermost else cut)]
            own += [Loop(name, size) for name, size in following.items() if innermost]
            tree = Tile(level, tuple(own) or (Loop(ONCE, 1),), tree)
        return tree

    def loops(self, op: str, above: Sequence[str] = ()) -> list[str]:
        """The loops of an operator, spatial ones first, but for those that follow from consumers' loops above."""
        following = self._following(op, above)
        axes = self.problem.compute(op).body_loops
        return [self.problem.names[op, axis.name] for axis in axes if axis not in following]

    def _following(self, op: str, above: Sequence[str]) -> list[Axis]:
        axes, taken = self.problem.compute(op).body_loops, frozenset(above)
        return [axis for axis in axes if follows(self.problem, op, axis.name, taken)]


def in_turn(trees: Sequence[TileTree]) -> TileTree:
    """One after the other; a single tree alone."""
    return trees[0] if len(trees) == 1 else Scope(Kind.SEQ, tuple(trees))
