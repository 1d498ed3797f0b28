"""Level 1: which operators are fused, at which memory level and how they share it: a space of genomes (spec 1, 5.11).

A genome has one column per operator but the last: the memory level in which its result is staged, the operator that it
is fused into, and the kind of their scope. It decodes into a tile tree whose factors are open, which `tree_factors`
searches. Rules of `tiles.legality` refuse genomes; nothing here knows a cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.expr.serialize import compute_digest
from tilewright.graph.open_tiles import Group, OpenTiles, innermost_scope, joined
from tilewright.search.space import NoLegalPoint
from tilewright.tiles.legality import violations
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Resources
from tilewright.tiles.tree import Kind, Scope, TileTree

if TYPE_CHECKING:
    from numpy.random import Generator

Column: TypeAlias = tuple[str, str, str]  #: level, operator, kind of scope
Genome: TypeAlias = tuple[Column, ...]

_TRIES = 2000  # random genomes of which one has to be legal


def spatial_levels(resources: Resources) -> frozenset[str]:
    """The levels of a machine below one instance of which there are several instances or units."""
    levels = resources.levels
    return frozenset(level.name for number, level in enumerate(levels[:-1]) if resources.fanout(number + 1) != 1)


@dataclass(frozen=True)
class TreeSpace:
    """The genomes of a group of operators: a `Space` and a `Genomes`.

    `levels` are memory levels from DRAM inwards, at least two; a result that is staged at the first one is not fused.
    `spatial` are those at which tiles have loops that distinct units run, as the machine has several of what lies
    below. `resources` bound units and capacities; `recompute` lets loops run operators again. Raises InvalidArgument
    for fewer than two levels.
    """

    problem: Problem
    levels: tuple[str, ...]
    spatial: frozenset[str] = frozenset()
    resources: Resources | None = None
    recompute: bool = False

    def __post_init__(self) -> None:
        if len(self.levels) < 2:
            raise InvalidArgument(f"a tree over the levels {', '.join(self.levels) or 'none'}", where="levels",
                                  help="DRAM and at least one level inside it")  # fmt: skip

    @cached_property
    def operators(self) -> tuple[str, ...]:
        """All operators, producers first."""
        return tuple(compute.name for compute in self.problem.computes)

    @property
    def identity(self) -> Any:
        computes = [
            [compute.name, [tensor.name for tensor in compute.inputs()], compute_digest(compute)]
            for compute in self.problem.computes
        ]
        bounds = None
        if self.resources is not None:
            levels = [[level.name, level.capacity_bytes, level.reduce] for level in self.resources.levels]
            bounds = {"levels": levels, "units": self.resources.units}
        return {"computes": computes, "levels": list(self.levels), "spatial": sorted(self.spatial), "resources": bounds,
                "recompute": self.recompute}  # fmt: skip

    @property
    def size(self) -> int:
        return prod(len(self.choices(column, row)) for column in range(len(self.operators) - 1) for row in range(3))

    def points(self) -> Iterator[Genome]:
        cells = [[self.choices(column, row) for row in range(3)] for column in range(len(self.operators) - 1)]
        return product(*(product(levels, into, kinds) for levels, into, kinds in cells))

    def sample(self, numbers: Generator) -> Genome:
        for _ in range(_TRIES):
            drawn = []
            for column in range(len(self.operators) - 1):
                cells = [self.choices(column, row) for row in range(3)]
                drawn.append(tuple(each[int(numbers.integers(len(each)))] for each in cells))
            found = self.repaired(tuple(drawn))
            if found is not None:
                return found
        raise NoLegalPoint(f"no genome of {', '.join(self.operators)} is legal", help="more memory, or fewer operators")

    def neighbours(self, point: Genome) -> Sequence[Genome | None]:
        """One cell changes to any other of its values."""
        found = []
        for number, column in enumerate(point):
            for row, cell in enumerate(column):
                for other in self.choices(number, row):
                    if other != cell:
                        changed = (*column[:row], other, *column[row + 1 :])
                        found.append(self.repaired((*point[:number], changed, *point[number + 1 :])))
        return found

    def to_json(self, point: Genome) -> Any:
        return {name: list(column) for name, column in zip(self.operators[:-1], point, strict=True)}

    def from_json(self, value: Any) -> Genome:
        names = self.operators[:-1]
        if not isinstance(value, dict) or list(value) != list(names):
            raise NoLegalPoint(f"{str(value)[:60]} is no genome", help=f"columns of {', '.join(names)}")
        for number, (name, column) in enumerate(value.items()):
            right = isinstance(column, list) and len(column) == 3
            if not right or any(cell not in self.choices(number, row) for row, cell in enumerate(column)):
                legal = "; ".join(", ".join(self.choices(number, row)) for row in range(3))
                raise NoLegalPoint(f"the column of {name} is {str(column)[:60]}", help=f"one each of {legal}")
        return tuple(tuple(column) for column in value.values())

    # Genomes

    def columns(self, point: Genome) -> Genome:
        return point

    def choices(self, column: int, row: int) -> Sequence[str]:
        """Levels; operators that need the result, or all later ones where none does; kinds."""
        if row == 0:
            return self.levels
        if row == 2:
            return tuple(kind.value for kind in Kind)
        name = self.operators[column]
        return tuple(each for each in self.operators if each in self._needed_by[name]) or self.operators[column + 1 :]

    def repaired(self, columns: Sequence[Sequence[str]]) -> Genome | None:
        """The genome that says what the tree of these columns is; None where the tree breaks a rule."""
        groups = self._groups(columns)
        broken = violations(self._tree(groups), self.problem, recompute=self.recompute, resources=self.resources)
        return None if next(broken, None) is not None else self._genome(groups)

    def tree(self, point: Genome) -> TileTree:
        """The tile tree of a genome, with an open factor for every loop that may stand in a tile."""
        return self._tree(self._groups(point))

    def _groups(self, columns: Sequence[Sequence[str]]) -> list[Group]:
        """From the innermost level outwards, operators are joined to groups, and groups to larger ones."""
        groups = [Group((name,)) for name in self.operators]
        for staged in range(len(self.levels) - 1, 0, -1):
            links = {
                (name, into): Kind(kind)
                for name, (level, into, kind) in zip(self.operators[:-1], columns, strict=True)
                if level == self.levels[staged]
            }
            groups = joined(groups, links, staged - 1, self._needed_by)
        return groups

    def _tree(self, groups: Sequence[Group]) -> TileTree:
        """Groups that share nothing run in turn."""
        tiles = OpenTiles(self.problem, self.levels, self.spatial, self.resources, self.recompute)
        trees = tuple(tiles.around(group, 0) for group in groups)
        return trees[0] if len(trees) == 1 else Scope(Kind.SEQ, trees)

    def _genome(self, groups: Sequence[Group]) -> Genome:
        """Per operator the scope in which it stands beside the first operator that it may be fused into."""
        found = []
        for number, name in enumerate(self.operators[:-1]):
            legal = self.choices(number, 1)
            scope = innermost_scope(groups, name, set(legal))
            if scope is None:
                found.append((self.levels[0], legal[0], Kind.SEQ.value))
            else:
                into = next(each for each in legal if each in scope.operators)
                found.append((self.levels[scope.level + 1], into, scope.kind.value))
        return tuple(found)

    @cached_property
    def _needed_by(self) -> dict[str, set[str]]:
        """Every operator that needs an operator's result, directly or not."""
        found: dict[str, set[str]] = {name: set() for name in self.operators}
        for producer, consumer in reversed(list(self.problem.edges())):
            found[producer.name] |= {consumer.name} | found[consumer.name]
        return found
