"""The tile tree of a plan: loops level by level, operators in turn at the level of fusion, tensors that stay on stages.

A tile at a level walks over data in it; one step of its loops has its data one level further in. Every expression has
its way: the loops around it. Expressions that share the beginning of their ways share those tiles. The way of a
memory-intensive expression is that of its operator up to the first loop that is none of its own, or that a sum which it
reads runs over.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tilewright.dataclass import dataclass
from tilewright.expr.core import Axis
from tilewright.graph.chain.halo import keepers
from tilewright.graph.chain.hierarchy import Hierarchy
from tilewright.graph.chain.levels import Levels, own_order, steps_between
from tilewright.graph.chain.loops import Chain, Operator
from tilewright.graph.chain.orders import BlockNest, nest_of
from tilewright.tiles.tree import ONCE, Kind, Leaf, Loop, Scope, Stage, Tile, TileTree


@dataclass(frozen=True)
class _Turn:
    """One loop of a way: the level that its steps fill, and the operators inside, by which two nests differ."""

    level: int
    loop: str
    operators: tuple[int, ...]


_Way = tuple[str, tuple[_Turn, ...]]  # an expression and the loops around it, outermost first


def tree_of(levels: Levels, hierarchy: Hierarchy) -> TileTree:
    """The tree of a solved candidate. Factors may exceed extents: tiles at the edge are clipped."""
    return _Builder(levels, hierarchy).tree()


class _Builder:
    def __init__(self, levels: Levels, hierarchy: Hierarchy) -> None:
        self.levels, self.candidate = levels, levels.candidate
        self.chain: Chain = levels.candidate.moves.chain
        self.names = [store.name for store in hierarchy.levels]
        self.steps = steps_between(self.chain, levels.tiles)
        self.begins: dict[_Turn, list[str]] = {}

    def tree(self) -> TileTree:
        ways: list[_Way] = []
        nest = nest_of(self.chain, self.candidate.order, self.candidate.whole)
        for number, operator in enumerate(self.chain.operators):
            way = self._way(nest, number)
            self._stage(operator, way)
            ways.append((operator.name, way))
            ways += ((op, self._shortened(op, number, way)) for op in operator.computes[1:])
        return self._merged(ways, ())

    # Ways -------------------------------------------------------------------------------------------------------------

    def _way(self, nest: BlockNest, number: int) -> tuple[_Turn, ...]:
        """The loops of several steps around an operator, down to the level of fusion."""
        turns = [_Turn(level, loop, nest.operators) for level in range(1, self.levels.fused) for loop in nest.loops]
        turns += [
            _Turn(self.levels.fused, loop, each.operators)
            for each in nest.walk()
            if number in each.operators
            for loop in each.loops
        ]
        return tuple(turn for turn in turns if self.steps[turn.level - 1][turn.loop] > 1)

    def _stage(self, operator: Operator, way: tuple[_Turn, ...]) -> None:
        """Note the first loop that each tensor of an operator which stays survives: the one behind its own."""
        shared = [turn for turn in way if len(turn.operators) > 1]
        for access in operator.accesses:
            if access.tensor in self.candidate.moves.stays:
                own = [place for place, turn in enumerate(shared) if turn.loop in access.loops]
                place = own[-1] + 1 if own else 0
                if place < len(shared):  # what accumulates is the sum, not what is made of it in the end
                    name = operator.name if access.tensor == operator.output else access.tensor
                    self.begins.setdefault(shared[place], []).append(name)

    def _shortened(self, op: str, number: int, way: tuple[_Turn, ...]) -> tuple[_Turn, ...]:
        """The way of an expression behind its operator."""
        problem = self.chain.problem
        own = problem.loops(op) | set(self.candidate.moves.again[number])
        awaited = self._awaited(op, number)
        for place, turn in enumerate(way):
            if turn.loop not in own or turn.loop in awaited:
                return way[:place]
        return way

    def _awaited(self, op: str, number: int) -> frozenset[str]:
        """The loops of sums that an expression reads the result of, among the expressions of its operator."""
        problem, inside = self.chain.problem, self.chain.operators[number].computes
        found: frozenset[str] = frozenset()
        for tensor in problem.compute(op).inputs():
            if tensor.name in inside:
                found |= problem.reductions(tensor.name) | self._awaited(tensor.name, number)
        return found

    # Trees ------------------------------------------------------------------------------------------------------------

    def _merged(self, ways: Sequence[_Way], outside: tuple[_Turn, ...]) -> TileTree:
        """One tree of several expressions, in order."""
        nodes: list[TileTree] = []
        for first, run in groupby(ways, key=lambda way: way[1][:1]):
            group = list(run)
            if not first:
                nodes += [self._expression(op, outside) for op, _ in group]
                continue
            shared = _shared([way for _, way in group])
            inner = [(op, way[len(shared) :]) for op, way in group]
            nodes.append(self._looped(shared, self._merged(inner, (*outside, *shared))))
        return nodes[0] if len(nodes) == 1 else Scope(Kind.SEQ, tuple(nodes))

    def _looped(self, turns: Sequence[_Turn], child: TileTree) -> TileTree:
        """Loops around a tree, and a stage outside of the first loop that a tensor survives."""
        run: list[_Turn] = []
        for turn in reversed(turns):
            if run and run[0].level != turn.level:
                child, run = self._tile(run, child), []
            run.insert(0, turn)
            if turn in self.begins:
                child, run = self._tile(run, child), []
                for tensor in sorted(self.begins[turn], reverse=True):
                    child = Stage(tensor, self.names[self.levels.fused], child)
        return self._tile(run, child) if run else child

    def _tile(self, turns: Sequence[_Turn], child: TileTree) -> Tile:
        level = turns[0].level
        loops = self._loops(level, [turn.loop for turn in turns])
        keeps = any(turn.loop == self.candidate.halo and len(turn.operators) > 1 for turn in turns)
        kept = [name for operator in keepers(self.chain) for name in operator.computes] if keeps else []
        return Tile(self.names[level - 1], loops, child, keep=tuple(kept))

    def _loops(self, level: int, loops: Sequence[str]) -> tuple[Loop, ...]:
        return tuple(Loop(loop, self.steps[level - 1][loop]) for loop in loops)

    def _expression(self, op: str, outside: tuple[_Turn, ...]) -> TileTree:
        """One expression: its loops that are not around it yet, level by level, and its innermost tile."""
        chain, problem = self.chain, self.chain.problem
        compute = problem.compute(op)
        number = next(n for n, operator in enumerate(chain.operators) if op in operator.computes)
        own = [problem.names[op, a.name] for a in compute.loops if (op, a.name) not in problem.derived and a.size > 1]
        innermost = self.levels.tiles[-1]
        sizes = [Loop(loop, innermost[loop]) for loop in own if innermost[loop] > 1]
        for axis in compute.loops:
            index = chain.derived.get((op, axis.name))
            if index is not None and axis.size > 1:
                sizes.append(Loop(problem.names[op, axis.name], int(index.width(innermost))))
        tree: TileTree = Tile(self.names[-1], tuple(sizes) or (Loop(ONCE, 1),), Leaf(op))
        rows = [axis for axis in compute.loops if (op, axis.name) in chain.derived and axis.size > 1]
        given = {(turn.level, turn.loop) for turn in outside}
        order = [*own_order(chain, self.candidate.order, number), *(loop for loop in own)]
        for level in reversed(range(1, len(self.levels.tiles) + 1)):
            loops = [
                loop for loop in dict.fromkeys(order)
                if loop in own and (level, loop) not in given and self.steps[level - 1][loop] > 1
            ]  # fmt: skip
            found = (*self._loops(level, loops), *self._rows(op, rows, level))
            if found:
                tree = Tile(self.names[level - 1], found, tree)
        return tree

    def _rows(self, op: str, axes: Sequence[Axis], level: int) -> tuple[Loop, ...]:
        """The loops over rows that follow from those of a consumer, inside the level of fusion.

        Further out the loops of the consumer, which all operators share there, advance them.
        """
        if level <= self.levels.fused:
            return ()
        outer, inner = self.levels.tiles[level - 2 : level]
        found = []
        for axis in axes:
            index = self.chain.derived[op, axis.name]
            steps = -(-int(index.width(outer)) // int(index.width(inner)))
            if steps > 1:
                found.append(Loop(self.chain.problem.names[op, axis.name], steps))
        return tuple(found)


def _shared(ways: Sequence[tuple[_Turn, ...]]) -> tuple[_Turn, ...]:
    """The loops with which all ways begin."""
    shared = ways[0]
    for way in ways[1:]:
        length = next(
            (n for n, (a, b) in enumerate(zip(shared, way, strict=False)) if a != b), min(len(shared), len(way))
        )
        shared = shared[:length]
    return shared
