"""Level 1: which operators are fused, at which memory level and how they share it: a space of genomes (spec 1, 5.11).

A genome has one column per operator: the memory level in which its result is staged, the operator that it is fused
into, the kind of their scope, and the order of the loops in its tiles. The last operator has only an order. A genome
decodes into a tile tree whose factors are open, which `tree_factors` searches. Rules of `tiles.legality` refuse
genomes; nothing here knows a cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.expr.serialize import compute_digest
from tilewright.graph.open_tiles import Group, OpenTiles, innermost_scope, joined
from tilewright.graph.orders import Orders, replaced_slices
from tilewright.search.space import NoLegalPoint
from tilewright.tiles.legality import violations
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Resources
from tilewright.tiles.tree import Kind, Scope, TileTree

if TYPE_CHECKING:
    from numpy.random import Generator

Column: TypeAlias = tuple[str, ...]  #: level, operator, kind of scope, order; of the last operator its order
Cell: TypeAlias = Sequence[str] | Orders  #: what a cell may hold
Genome: TypeAlias = tuple[Column, ...]  #: a column that lacks its order, or a genome the last column: the usual order

CELLS = ("level", "operator", "kind", "order")  #: the rows of a genome

_TRIES = 2000  # random genomes of which one has to be legal


def _drawn(cell: Cell, numbers: Generator, usual: bool) -> str:
    """A random value of a cell; of orders the usual one if that is wanted, else at even odds."""
    if isinstance(cell, Orders):
        return " ".join(cell.loops) if usual or numbers.random() < 0.5 else cell.drawn(numbers)
    return cell[int(numbers.integers(len(cell)))]


def _each(cells: Sequence[Cell]) -> Iterator[Column]:
    """Every column of such cells, one at a time, the last cell changing first."""
    if not cells:
        yield ()
        return
    for value in cells[0]:
        for rest in _each(cells[1:]):
            yield (value, *rest)


def spatial_levels(resources: Resources) -> frozenset[str]:
    """The levels of a machine below one instance of which there are several instances or units."""
    outer, last = resources.levels[:-1], len(resources.levels) - 1
    found = {level.name for number, level in enumerate(outer, 1) if number < last and resources.fanout(number) != 1}
    if any(resources.fanout_of(units) != 1 for units in resources.classes):
        found |= {level.name for level in outer[-1:]}
    return frozenset(found)


@dataclass(frozen=True)
class TreeSpace:
    """The genomes of a group of operators: a `Space` and a `Genomes`.

    An order lists all loops of an operator of more than one step, outermost first. Its tiles at every level have them
    in this order; so do tiles around several operators of which it is the last.

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
            bounds = {"levels": levels, **self.resources.counts()}
        return {"computes": computes, "levels": list(self.levels), "spatial": sorted(self.spatial), "resources": bounds,
                "recompute": self.recompute, "cells": list(CELLS)}  # fmt: skip

    @property
    def size(self) -> int:
        cells = [cell for column in self.cells for cell in column]
        return prod(cell.count if isinstance(cell, Orders) else len(cell) for cell in cells)

    def points(self) -> Iterator[Genome]:
        rows = [len(column) for column in self.cells]
        for cells in _each([cell for column in self.cells for cell in column]):
            values = iter(cells)
            yield tuple(tuple(islice(values, count)) for count in rows)

    def sample(self, numbers: Generator) -> Genome:
        """A random legal genome; one of two has the usual orders, as most others need more movement."""
        for _ in range(_TRIES):
            usual = bool(numbers.random() < 0.5)
            found = self.repaired(
                tuple(tuple(_drawn(cell, numbers, usual) for cell in column) for column in self.cells)
            )
            if found is not None:
                return found
        raise NoLegalPoint(f"no genome of {', '.join(self.operators)} is legal", help="more memory, or fewer operators")

    def neighbours(self, point: Genome) -> Sequence[Genome | None]:
        """One cell changes to any other of its values; two loops of an order that follow each other change places."""
        found = []
        for number, (column, cells) in enumerate(zip(point, self.cells, strict=True)):
            for row, (cell, choices) in enumerate(zip(column, cells, strict=True)):
                others: Sequence[str] = choices.swapped(cell) if isinstance(choices, Orders) else choices
                for other in others:
                    if other != cell:
                        changed = (*column[:row], other, *column[row + 1 :])
                        found.append(self.repaired((*point[:number], changed, *point[number + 1 :])))
        return found

    def to_json(self, point: Genome) -> Any:
        return {name: list(column) for name, column in zip(self.operators, point, strict=True)}

    def from_json(self, value: Any) -> Genome:
        if not isinstance(value, dict) or tuple(value) != self.operators:
            raise NoLegalPoint(f"{str(value)[:60]} is no genome", help=f"columns of {', '.join(self.operators)}")
        for (name, column), cells in zip(value.items(), self.cells, strict=True):
            right = isinstance(column, list) and len(column) == len(cells)
            if not right or any(cell not in choices for cell, choices in zip(column, cells, strict=True)):
                legal = "; ".join(str(each) if isinstance(each, Orders) else ", ".join(each) for each in cells)
                raise NoLegalPoint(f"the column of {name} is {str(column)[:60]}", help=f"one each of {legal}")
        return tuple(tuple(column) for column in value.values())

    # Genomes

    def columns(self, point: Genome) -> Genome:
        return point

    def family(self, point: Genome) -> Genome:
        """The genome without its orders: what is fused, where and how."""
        return tuple(column[:-1] for column in point)

    def mutated(self, column: int, row: int, value: str, numbers: Generator) -> str:
        """Any value of the cell; for an order, at even odds, one in which two neighbouring loops changed places."""
        cell = self.cells[column][row]
        if isinstance(cell, Orders):
            near = cell.swapped(value) if numbers.random() < 0.5 else [cell.drawn(numbers)]
            return near[int(numbers.integers(len(near)))] if near else value
        return cell[int(numbers.integers(len(cell)))]

    @cached_property
    def cells(self) -> tuple[tuple[Cell, ...], ...]:
        """The values of every cell: levels; operators that need the result, or all later ones; kinds; orders."""
        found: list[tuple[Cell, ...]] = []
        for number, name in enumerate(self.operators):
            order = self._usual[name]
            into = tuple(each for each in self.operators if each in self._needed_by[name])
            columns = (self.levels, into or self.operators[number + 1 :], tuple(kind.value for kind in Kind), order)
            found.append(columns if name != self.operators[-1] else (order,))
        return tuple(found)

    def repaired(self, columns: Sequence[Sequence[str]]) -> Genome | None:
        """The genome that says what the tree of these columns is; None where the tree breaks a rule.

        Of orders that move the same whatever the factors are it has one.
        """
        groups = self._groups(columns)
        orders = self._canonical(self._orders(columns), groups)
        tree = self._tree(groups, orders)
        broken = violations(tree, self.problem, recompute=self.recompute, resources=self.resources)
        return None if next(broken, None) is not None else self._genome(groups, orders)

    def tree(self, point: Genome) -> TileTree:
        """The tile tree of a genome, with an open factor for every loop that may stand in a tile."""
        return self._tree(self._groups(point), self._orders(point))

    def _orders(self, columns: Sequence[Sequence[str]]) -> dict[str, str]:
        """The order of every operator."""
        found = {}
        for number, (name, cells) in enumerate(zip(self.operators, self.cells, strict=True)):
            column = columns[number] if number < len(columns) else ()
            found[name] = column[-1] if len(column) == len(cells) else " ".join(self._usual[name].loops)
        return found

    def _canonical(self, orders: Mapping[str, str], groups: Sequence[Group]) -> dict[str, str]:
        """The orders of operators in their canonical form, by what stands in the tiles that have them."""
        inside = {name: {name} for name in self.operators}
        pending = list(groups)
        while pending:
            group = pending.pop()
            inside[group.operators[-1]] |= {*group.operators}
            pending += group.children
        found = {}
        for name, order in orders.items():
            usual = self._usual[name]
            within = [each for each in self.operators if each in inside[name]]
            found[name] = usual.canonical(order, replaced_slices(self.problem, within, usual.loops))
        return found

    @cached_property
    def _usual(self) -> dict[str, Orders]:
        """The orders of every operator, the usual one first."""
        return {name: Orders(self._tiles().usual(name)) for name in self.operators}

    def _groups(self, columns: Sequence[Sequence[str]]) -> list[Group]:
        """From the innermost level outwards, operators are joined to groups, and groups to larger ones."""
        groups = [Group((name,)) for name in self.operators]
        for staged in range(len(self.levels) - 1, 0, -1):
            links = {
                (name, into): Kind(kind)
                for name, (level, into, kind, *_) in zip(self.operators[:-1], columns, strict=False)
                if level == self.levels[staged]
            }
            groups = joined(groups, links, staged - 1, self._needed_by)
        return groups

    def _tree(self, groups: Sequence[Group], orders: Mapping[str, str]) -> TileTree:
        """Groups that share nothing run in turn."""
        tiles = self._tiles({name: order.split() for name, order in orders.items()})
        trees = tuple(tiles.around(group, 0) for group in groups)
        return trees[0] if len(trees) == 1 else Scope(Kind.SEQ, trees)

    def _tiles(self, orders: Mapping[str, Sequence[str]] | None = None) -> OpenTiles:
        return OpenTiles(self.problem, self.levels, self.spatial, self.resources, self.recompute, orders or {})

    def _genome(self, groups: Sequence[Group], orders: Mapping[str, str]) -> Genome:
        """Per operator the scope in which it stands beside the first operator that it may be fused into."""
        found: list[Column] = []
        for name, (_, legal, *_) in zip(self.operators[:-1], self.cells, strict=False):
            scope = innermost_scope(groups, name, set(legal))
            if scope is None:
                found.append((self.levels[0], next(iter(legal)), Kind.SEQ.value, orders[name]))
            else:
                into = next(each for each in legal if each in scope.operators)
                found.append((self.levels[scope.level + 1], into, scope.kind.value, orders[name]))
        return (*found, (orders[self.operators[-1]],))

    @cached_property
    def _needed_by(self) -> dict[str, set[str]]:
        """Every operator that needs an operator's result, directly or not."""
        found: dict[str, set[str]] = {name: set() for name in self.operators}
        for producer, consumer in reversed(list(self.problem.edges())):
            found[producer.name] |= {consumer.name} | found[consumer.name]
        return found
