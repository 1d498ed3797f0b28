"""Groups of operators as tile trees with open factors: which loops may stand in which tile.

A group is an operator alone, or a scope of groups inside a tile; its tree has tiles at every level from a given one
inwards. A tile around several operators has the loops that all of them have and that cut nothing which a consumer
needs whole (rules L3 to L5); a tile around one operator has all of its loops, but for those that follow from loops of
a consumer further out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property

from tilewright.dataclass import dataclass
from tilewright.tiles.build import rooted
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Resources
from tilewright.tiles.tree import ONCE, SIMULTANEOUS, Binding, Kind, Leaf, Loop, Scope, Tile, TileTree


@dataclass(frozen=True)
class Group:
    """Operators under one node, producers first: one alone, or `children` in a scope in a tile at the given level."""

    operators: tuple[str, ...]
    level: int = 0
    kind: Kind = Kind.SEQ
    children: tuple[Group, ...] = ()


def joined(
    groups: Sequence[Group], links: Mapping[tuple[str, str], Kind], level: int, needed_by: Mapping[str, set[str]]
) -> list[Group]:
    """The groups with one scope in a tile at `level` for all that links connect, in an order that producers come first.

    What lies between two operators of a scope belongs to it too. The kind of a scope is that of its first link.
    """
    label = list(range(len(groups)))

    def relabel(a: int, b: int) -> None:
        label[:] = [a if each == b else each for each in label]

    where = {name: number for number, group in enumerate(groups) for name in group.operators}
    for name, other in links:
        relabel(label[where[name]], label[where[other]])
    reaches = _reaches(groups, label, needed_by)
    while mutual := next(((a, b) for a in reaches for b in reaches[a] if a != b and a in reaches[b]), None):
        relabel(*mutual)
        reaches = _reaches(groups, label, needed_by)

    order = sorted(reaches, key=lambda each: (sum(each in reached for reached in reaches.values()), each))
    found = []
    for each in order:
        members = [group for group, own in zip(groups, label, strict=True) if own == each]
        if len(members) == 1:
            found += members
            continue
        kind = next(kind for (name, _), kind in links.items() if label[where[name]] == each)
        names = {name for group in members for name in group.operators}
        found.append(Group(tuple(name for name in needed_by if name in names), level, kind, tuple(members)))
    return found


def follows(problem: Problem, op: str, axis: str, above: frozenset[str]) -> bool:
    """Whether a loop of an operator follows from loops of its consumers that stand above it."""
    return (op, axis) in problem.derived and bool((problem.loops_of(op, axis) - {problem.names[op, axis]}) & above)


def innermost_scope(groups: Sequence[Group], name: str, partners: set[str]) -> Group | None:
    """The innermost scope in which an operator stands with one of its partners."""
    group = next(each for each in groups if name in each.operators)
    if not group.children:
        return None
    return innermost_scope(group.children, name, partners) or (group if partners & {*group.operators} else None)


def _reaches(groups: Sequence[Group], label: Sequence[int], needed_by: Mapping[str, set[str]]) -> dict[int, set[int]]:
    """For every label the others whose operators need a result of its operators, through others too."""
    where = {name: own for group, own in zip(groups, label, strict=True) for name in group.operators}
    found: dict[int, set[int]] = {own: set() for own in label}
    for name, others in needed_by.items():
        found[where[name]] |= {where[other] for other in others} - {where[name]}
    for middle in found:
        for near in found.values():
            if middle in near:
                near |= found[middle]
    return {own: near - {own} for own, near in found.items()}


@dataclass(frozen=True)
class OpenTiles:
    """Makes the trees of groups over these levels.

    `orders` has the loops of operators, outermost first: those of its own tiles, and of tiles around a group whose last
    operator it is. Loops that it does not have follow, as those of operators without an order, in the order of `usual`.
    """

    problem: Problem
    levels: tuple[str, ...]
    spatial: frozenset[str]
    resources: Resources | None
    recompute: bool
    orders: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def around(self, group: Group, outermost: int, above: frozenset[str] = frozenset()) -> TileTree:
        """The group's tree, with tiles from the `outermost`th level on, inside tiles that have the loops `above`."""
        loops = self._loops(group.operators, above)
        if not group.children:
            return self._nest(group.operators, outermost, len(self.levels) - 1, loops, Leaf(group.operators[0]))
        above |= {*loops}
        children = tuple(self.around(child, group.level + 1, above) for child in group.children)
        if group.kind in SIMULTANEOUS:  # L7: what distinct units run stands in each child
            pairs = zip(children, group.children, strict=True)
            own = [self._loops(each.operators, above) for each in group.children]
            children = tuple(
                rooted(self._units(child, each.operators, group.level, loops))
                for (child, each), loops in zip(pairs, own, strict=True)
            )
            scope: TileTree | Leaf = Scope(group.kind, children)
        else:
            scope = self._units(Scope(group.kind, children), group.operators, group.level, loops)
        tile = self._turns(scope, group.level, loops)
        return self._nest(group.operators, outermost, group.level - 1, loops, tile)

    def _nest(
        self, operators: Sequence[str], outermost: int, innermost: int, loops: Sequence[str], child: TileTree | Leaf
    ) -> TileTree:
        for level in range(innermost, outermost - 1, -1):
            child = self._turns(self._units(child, operators, level, loops), level, loops)
        return rooted(child)

    def _turns(self, child: TileTree | Leaf, level: int, loops: Sequence[str]) -> TileTree:
        """A tile whose loops one unit takes in turn."""
        return Tile(self.levels[level], tuple(map(Loop, loops)) or (Loop(ONCE, 1),), child)

    def _units(
        self, child: TileTree | Leaf, operators: Sequence[str], level: int, loops: Sequence[str]
    ) -> TileTree | Leaf:
        """A tile whose loops distinct units run, where the machine has several: not sums, unless units can add up."""
        name = self.levels[level]
        if name not in self.spatial:
            return child
        levels = self.resources.levels if self.resources is not None else ()
        sums = set() if any(each.name == name and each.reduce for each in levels) else self._sums(operators)
        spread = tuple(Loop(each) for each in loops if each not in sums)
        return Tile(name, spread, child, Binding.SP) if spread else child

    def _loops(self, operators: Sequence[str], above: frozenset[str]) -> list[str]:
        """The loops that may stand around these operators inside the loops `above`, outermost first."""
        several = len(operators) > 1
        own = [self.problem.loops(name) if several else self._own(name, above) for name in operators]
        shared = frozenset.union(*own) if self.recompute else frozenset.intersection(*own)
        inside = [(a, b) for a, b in self.problem.edges() if a.name in operators and b.name in operators]
        for producer, consumer in inside:
            shared -= self.problem.reductions(producer.name)
            for read in consumer.reads():
                if read.tensor == producer.output:
                    for dim, axis in enumerate(producer.axes):
                        if not self.problem.follows(read, consumer, dim):
                            shared -= self.problem.loops_of(producer.name, axis.name)
        order = dict.fromkeys((*self.orders.get(operators[-1], ()), *self._order))
        return [name for name in order if name in shared and name not in self._single]

    def usual(self, name: str) -> tuple[str, ...]:
        """The loops of an operator of more than one step, those of its result before those that it sums over."""
        compute = self.problem.compute(name)
        own = {self.problem.names[name, axis.name] for axis in compute.body_loops}
        return tuple(each for each in self._order if each in own and each not in self._single)

    def _own(self, name: str, above: frozenset[str]) -> frozenset[str]:
        """The loops that an operator alone is cut along: one that a consumer's loop above moves follows that."""
        axes = [axis.name for axis in self.problem.compute(name).body_loops]
        return frozenset(
            self.problem.names[name, axis] for axis in axes if not follows(self.problem, name, axis, above)
        )

    def _sums(self, operators: Sequence[str]) -> set[str]:
        return {loop for name in operators for loop in self.problem.reductions(name)}

    @cached_property
    def _single(self) -> frozenset[str]:
        """Loops of one step, which no tile needs."""
        computes = self.problem.computes
        sizes = [(self.problem.names[each.name, axis.name], axis.size) for each in computes for axis in each.loops]
        return frozenset(name for name, size in sizes if size == 1) - {name for name, size in sizes if size > 1}

    @cached_property
    def _order(self) -> tuple[str, ...]:
        """All loops, those of later operators first, spatial before reduction loops."""
        computes = list(reversed(self.problem.computes))
        spatial = [self.problem.names[each.name, axis.name] for each in computes for axis in each.axes]
        sums = [self.problem.names[each.name, axis.name] for each in computes for axis in each.reduce]
        return tuple(dict.fromkeys([*spatial, *sums]))
