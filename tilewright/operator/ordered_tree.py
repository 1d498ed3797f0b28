"""The tree of an ordered accumulation on a CPU: its decisions as a value, written as a tree and read from one."""

from __future__ import annotations

from tilewright.dataclass import dataclass
from tilewright.expr.core import walk
from tilewright.expr.ordered import PrefixScan, Scatter, Sort
from tilewright.operator.ordered import value_and_places
from tilewright.tiles.build import in_program, register_tile, rooted, tile
from tilewright.tiles.kernel import Kernel, Statement
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.parts import factors, loops_named, number_of, program_of, register_tiles, require_form, tiles_at
from tilewright.tiles.tree import Hint, InvalidTree, Leaf, TileTree

LANES = 16  # of a vector of rows' elements where the tree does not say
MOST_LANES = 64  # bytes of the widest vector


@dataclass(frozen=True)
class OrderedTree:
    """A statement with its outer loops: `lead` are around the inner ones, `trail` inside those over updates.

    The loop with lanes is the vector's; without one, the hints of the leaf say how many elements a vector has.
    """

    statement: Statement
    lead: tuple[SpatialLoop, ...]
    trail: tuple[SpatialLoop, ...] = ()
    hints: tuple[Hint, ...] = ()

    @property
    def vector(self) -> SpatialLoop | None:
        """The loop whose points are lanes."""
        return next((loop for loop in (*self.lead, *self.trail) if loop.vector_lanes), None)

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.vector.vector_lanes if self.vector is not None else number_of(self._leaf, "lanes", LANES)

    @property
    def neighbours(self) -> int:
        """Elements of a row that a prefix scan takes at once; 1 where it takes one after the other."""
        return number_of(self._leaf, "neighbours", 1)

    @property
    def _leaf(self) -> Leaf:
        return Leaf(self.statement.name, None, self.hints)

    def tree(self) -> TileTree:
        """Blocks of the grid around tiles of outer loops around inner loops; of a scatter, around tiles it writes."""
        vector = self.vector
        if vector is None:
            body = rooted(self._leaf)
        else:
            body = register_tile([], (vector.axis.name, vector.quantum), vector.vector_lanes, self._leaf)
        body = rooted(tile("L1", [(loop.axis.name, loop.tiles_per_block) for loop in self.trail], body))
        body = rooted(tile("L1", [(axis.name, axis.size) for axis in self.statement.reduce], body))
        return in_program(self.lead, (*self.lead, *self.trail), body)


def ordered_tree(kernel: Kernel) -> OrderedTree:
    """The decisions of the tree of an ordered accumulation. Raises InvalidTree for one that is not lowered."""
    (statement,) = kernel.statements
    program = program_of(kernel.tree)
    leaf, points = next(iter(register_tiles(kernel.tree)))
    names = [axis.name for axis in statement.axes]
    scatters = isinstance(statement.accum, Scatter)
    trail = dict.fromkeys(name for each in tiles_at(program.body, "L1") for name in factors(each) if name in names)
    trail = trail if scatters else {}
    lead = [*program.tiles, *(name for name in names if name not in program.tiles and name not in trail)]
    lanes = {points.vector: points.lanes} if points.vector else {}
    quantum = {points.vector: points.along(points.vector)}
    found = OrderedTree(
        statement,
        loops_named(lead, statement.axes, quantum, program.grid, lanes),
        loops_named(trail, statement.axes, quantum, program.grid, lanes),
        _hints(statement, leaf, bool(lanes)),
    )
    require_form(kernel.tree, found.tree())
    _require_lanes(found)
    return found


def _hints(statement: Statement, leaf: Leaf, vector: bool) -> tuple[Hint, ...]:
    """The hints that mean something for an ordered accumulation."""
    known = {"sort"} if isinstance(statement.accum, Sort) else set[str]()
    if not vector:
        known |= {"lanes", "neighbours"} if isinstance(statement.accum, PrefixScan) else {"lanes"}
    return tuple(hint for hint in leaf.hints if hint.name in known)


def _require_lanes(tree: OrderedTree) -> None:
    """Raises InvalidTree for a vector that no machine has, or along which the places of updates differ."""
    for fact, count in (("lanes", tree.lanes), ("neighbours", tree.neighbours)):
        if count > MOST_LANES or count & (count - 1):
            raise InvalidTree(f"{count} {fact} in a vector", help=f"a power of two up to {MOST_LANES}")
    _, places = value_and_places(tree.statement)
    if tree.vector is not None and any(tree.vector.axis in walk(place) for place in places):
        message = f"lanes along {tree.vector.axis.name}, on which the places of updates depend"
        raise InvalidTree(message, help="another loop, or none")
