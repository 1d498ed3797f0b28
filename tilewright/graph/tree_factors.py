"""The factors of a tile tree as a space: a number for every open loop, loop by loop and tile by tile (spec 1, 5.11).

Along every path the factors of a loop make up its extent; a tile around several operators has one factor for all of
them. Rules of `tiles.legality`, resources among them, refuse trees, also while factors are open: an open factor counts
as 1, with which a tree needs least.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from math import gcd, prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.graph.factor_draws import Array, Draws, OpenLoop
from tilewright.graph.open_tiles import follows
from tilewright.search.factors import divisors, prime_powers
from tilewright.search.space import NoLegalPoint
from tilewright.search.tree_search import completed
from tilewright.tiles.capacity import Capacities
from tilewright.tiles.legality import WrongCoverage, violations
from tilewright.tiles.notation import print_tree
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Resources
from tilewright.tiles.tree import (
    SIMULTANEOUS,
    Binding,
    Leaf,
    Node,
    Path,
    Scope,
    Stage,
    Tile,
    TileTree,
    ancestors,
    children,
    leaves,
    walk,
)

if TYPE_CHECKING:
    from numpy.random import Generator

Factors: TypeAlias = tuple[int, ...]  #: of the open loops, in the order in which they stand in the text of the tree
OpenFactors: TypeAlias = tuple[int | None, ...]

_TRIES = 8  # times the rows of the first table that are drawn at most, where few of them are legal
_DIVES = 2  # decisions per open loop, after which a legal point is not looked for any longer, factor by factor
_LEAST_ROWS = 64  # of a table


@dataclass(frozen=True)
class _Chain:
    """The factors of one loop on the way to one operator: open loops by number, whose product is `extent`."""

    loop: str
    extent: int
    open: tuple[int, ...]


@dataclass(frozen=True)
class TreeFactors:
    """Every choice of the open factors of a tree: a `Space` and a `Decisions`."""

    open_tree: TileTree
    problem: Problem
    resources: Resources | None = None
    recompute: bool = False

    @property
    def identity(self) -> Any:
        bounds = None
        if self.resources is not None:
            levels = [[level.name, level.capacity_bytes, level.reduce] for level in self.resources.levels]
            double = {"double_buffer": True} if self.resources.double_buffer else {}
            bounds = {"levels": levels, **self.resources.counts(), **double}
        extents = sorted({(chain.loop, chain.extent) for chain in self._chains})
        return {"tree": print_tree(self.open_tree), "extents": list(map(list, extents)), "resources": bounds,
                "recompute": self.recompute}  # fmt: skip

    def filled(self, factors: OpenFactors) -> TileTree:
        """The tree with these factors; None leaves one open."""
        numbers = iter(factors)

        def rebuilt(node: Any) -> Any:
            if isinstance(node, Scope):
                return replace(node, children=tuple(map(rebuilt, node.children)))
            if isinstance(node, Tile):
                loops = tuple(loop if loop.factor else replace(loop, factor=next(numbers)) for loop in node.loops)
                return replace(node, loops=loops, child=rebuilt(node.child))
            return replace(node, child=rebuilt(node.child)) if isinstance(node, Stage) else node

        tree: TileTree = rebuilt(self.open_tree)
        return tree

    def refuses(self, factors: OpenFactors) -> bool:
        """Whether no completion of these factors is legal, as far as it shows."""
        return self.reason(factors) is not None

    def reason(self, factors: OpenFactors | None = None) -> str | None:
        """Why no completion of these factors, or of none, is legal, as far as it shows; None where one may be."""
        factors = (None,) * len(self._labels) if factors is None else factors
        broken = violations(
            self.filled(factors), self.problem, recompute=self.recompute, resources=self.resources
        )  # fmt: skip
        return next((each.message for each in broken), None)

    @property
    def size(self) -> int:
        return prod(self._ways((), self.open_tree, name, extent) for name, extent in self._extents.items())

    def points(self) -> Iterator[Factors]:
        names = list(self._extents)
        choices = [list(self._assignments((), self.open_tree, name, self._extents[name])) for name in names]
        for chosen in product(*choices):
            table = {number: factor for each in chosen for number, factor in each.items()}
            yield tuple(table[number] for number in range(len(table)))

    def sample(self, numbers: Generator) -> Factors:
        """One of the `completions` of no decision; where nearly all are refused, factors are decided one by one.

        Raises NoLegalPoint where a few ways to decide them lead to no legal point.
        """
        start = self.start()
        found = None
        if start is not None:
            drawn = self.completions(start, 1, numbers)
            found = drawn[0] if drawn else completed(self, start, numbers, _DIVES * len(start))
        if found is None:
            raise NoLegalPoint(
                f"no factors of {print_tree(self.open_tree)} were found to be legal", help="more memory, or levels"
            )
        return found

    def neighbours(self, point: Factors) -> Sequence[Factors | None]:
        """A prime factor of one open loop moves to another on its way, further in or out.

        Tiles around several operators give it to, or take it from, every other operator's nearest tile.
        """
        moved = [
            self._moved(point, chain.loop, outer, inner, prime, inwards)
            for chain in self._chains
            for place, outer in enumerate(chain.open)
            for inner in chain.open[place + 1 :]
            for prime, _ in prime_powers(chain.extent)
            for inwards in (True, False)
        ]
        reached = list(dict.fromkeys(each for each in moved if each is not None))
        legal = dict(zip(reached, self.legal(np.array(reached)).tolist(), strict=True)) if reached else {}
        return [each if each is not None and legal[each] else None for each in moved]

    def to_json(self, point: Factors) -> Any:
        return dict(zip(self._labels, point, strict=True))

    def from_json(self, value: Any) -> Factors:
        if not isinstance(value, dict) or tuple(value) != self._labels:
            raise NoLegalPoint(f"{str(value)[:60]} is no list of factors", help=f"factors of {', '.join(self._labels)}")
        factors = tuple(value.values())
        if any(type(each) is not int or each < 1 for each in factors) or not self._complete(factors):
            raise NoLegalPoint(
                f"{str(value)[:60]} does not make up the extents", help="factors whose products are them"
            )
        return factors

    # Decisions

    def start(self) -> OpenFactors | None:
        return self._start

    @cached_property
    def _start(self) -> OpenFactors | None:
        undecided = (None,) * len(self._labels)
        return None if self.refuses(undecided) else self._propagated(undecided)

    def candidates(self, state: OpenFactors) -> Mapping[int, Sequence[int]]:
        """Divisors of what is left of the extent on every path through an open loop."""
        rests = {number: 0 for number, factor in enumerate(state) if factor is None}
        for chain in self._chains:
            rest = chain.extent // prod(state[number] or 1 for number in chain.open)
            for number in chain.open:
                if number in rests:
                    rests[number] = gcd(rests[number], rest)
        return {number: divisors(rest) if rest else (1,) for number, rest in rests.items()}

    def decide(self, state: OpenFactors, variable: int, value: int) -> OpenFactors | None:
        return self._propagated((*state[:variable], value, *state[variable + 1 :]))

    def point(self, state: OpenFactors) -> Factors:
        return tuple(factor for factor in state if factor is not None)

    def completions(self, state: OpenFactors, count: int, numbers: Generator) -> Sequence[Factors]:
        """Loop by loop, all factors that leave a way to make up the extents are equally likely; see `Draws`.

        Where too few rows of a first table are legal, a second one has all that may still be drawn: drawing many rows
        at once takes hardly longer than drawing few.
        """
        found: list[Factors] = []
        possible = self._draws.possible(state)
        rows = max(count, _LEAST_ROWS)
        for drawn in (rows, (_TRIES - 1) * rows):
            table = self._draws.drawn(possible, drawn, numbers)
            found += map(tuple, table[self.legal(table)].tolist())
            if len(found) >= count:
                break
        return found[:count]

    def legal(self, table: Array) -> Array:
        """Which rows, a factor for every open loop in each that make up the extents, are legal: an array of bool."""
        allowed: Any = (table[:, sorted(self._ones)] == 1).all(axis=1)
        if self.resources is not None:
            factors = {place: table[:, number] for number, place in enumerate(self._places)}
            allowed = allowed & self._capacities.fit(factors)
        if self._in_order:
            allowed = allowed & np.array([not self.refuses(tuple(row)) for row in table.tolist()], bool)
        return np.asarray(allowed)

    @cached_property
    def _capacities(self) -> Capacities:
        assert self.resources is not None
        return Capacities(self.open_tree, self.problem, self.resources)

    @cached_property
    def _in_order(self) -> bool:
        """Whether the order of loops with several steps decides, and not every loop for itself (rule L10)."""
        return any(compute.ordered is not None for compute in self.problem.computes)

    def _propagated(self, state: OpenFactors) -> OpenFactors | None:
        """With the factors that follow: the last open one of a path, and all where nothing is left; None if refused."""
        factors, changed = list(state), True
        for number in self._ones:
            factors[number] = 1 if factors[number] is None else factors[number]
        while changed:
            changed = False
            for chain in self._chains:
                done = prod(factors[number] or 1 for number in chain.open)
                undecided = [number for number in chain.open if factors[number] is None]
                if chain.extent % done or (not undecided and done != chain.extent):
                    return None
                if undecided and (done == chain.extent or len(undecided) == 1):
                    for number in undecided:
                        factors[number] = chain.extent // done
                    changed = True
        return None if self.refuses(tuple(factors)) else tuple(factors)

    # The open loops of the tree

    @cached_property
    def _numbers(self) -> dict[tuple[Path, str], int]:
        """The open loops, by the path of their tile and their name."""
        places = [(path, loop.name) for path, node in walk(self.open_tree) if isinstance(node, Tile)
                  for loop in node.loops if loop.factor is None]  # fmt: skip
        return {place: number for number, place in enumerate(places)}

    @cached_property
    def _places(self) -> tuple[tuple[Path, int], ...]:
        """Of the open loops, the path of the tile and the place in it."""
        return tuple((path, place) for path, node in walk(self.open_tree) if isinstance(node, Tile)
                     for place, loop in enumerate(node.loops) if loop.factor is None)  # fmt: skip

    @cached_property
    def _labels(self) -> tuple[str, ...]:
        return tuple(f"{'.'.join(map(str, path))}:{name}" for path, name in self._numbers)

    @cached_property
    def _chains(self) -> tuple[_Chain, ...]:
        """Each loop of each operator but those that follow from loops of consumers above."""
        found, problem = [], self.problem
        for path, leaf in leaves(self.open_tree):
            compute = problem.compute(leaf.op)
            for axis in compute.body_loops:
                if self._follows(leaf.op, axis.name):
                    continue
                name, extent = problem.names[leaf.op, axis.name], axis.size
                above = [self._numbers.get((path[:depth], name)) for depth in range(len(path))]
                extent //= self._given(path, leaf, name)
                found.append(_Chain(name, extent, tuple(number for number in above if number is not None)))
        return tuple(found)

    def _given(self, path: Path, leaf: Leaf, name: str) -> int:
        """The product of a loop's factors that the tree has already, on the way to a leaf and in its kernel."""
        node, given = self.open_tree, 1
        for number in path:
            if isinstance(node, Tile):
                given *= prod(loop.trips for loop in node.loops if loop.name == name)
            node = children(node)[number]  # type: ignore[assignment]
        quantum = leaf.kernel.quantum if leaf.kernel is not None else ()
        return given * prod(loop.trips for loop in quantum if loop.name == name)

    @cached_property
    def _ones(self) -> frozenset[int]:
        """The open loops that run once in every legal tree: more steps break a rule, whatever the others are."""
        unlimited = None if self.resources is None else self.resources.unlimited()

        def breaks(numbers: Sequence[int]) -> bool:
            """Whether a rule is broken where these loops have two steps; if one of them alone breaks it, all do."""
            tree = self.filled(tuple(2 if number in numbers else None for number in range(len(self._labels))))
            broken = violations(tree, self.problem, recompute=self.recompute, resources=unlimited)
            return any(not isinstance(each, WrongCoverage) for each in broken)

        def found(numbers: Sequence[int]) -> set[int]:
            if not numbers or not breaks(numbers):
                return set()
            middle = len(numbers) // 2
            return found(numbers[:middle]) | found(numbers[middle:]) if middle else set(numbers)

        return frozenset(found(range(len(self._labels))) | self._too_large_alone())

    def _too_large_alone(self) -> set[int]:
        """The open loops whose least factor besides 1 is too large for the machine even if all others are 1."""
        if self.resources is None or not self._labels:
            return set()
        names = [name for _, name in self._numbers]
        table = np.ones((len(names), len(names)), np.int64)
        for number, name in enumerate(names):
            table[number, number] = next((prime for prime, _ in prime_powers(self._extents[name])), 1)
        factors = {place: table[:, number] for number, place in enumerate(self._places)}
        allowed = self._capacities.fit(factors)
        return set(np.flatnonzero(~np.broadcast_to(allowed, len(names))).tolist())

    @cached_property
    def _draws(self) -> Draws:
        places = {path: number for number, (path, _) in enumerate(leaves(self.open_tree))}
        computes = [self.problem.compute(leaf.op) for _, leaf in leaves(self.open_tree)]
        given = []
        for path, node in walk(self.open_tree):
            if isinstance(node, Tile) and node.binding is Binding.SP:
                below = [leaf for place, leaf in places.items() if place[: len(path)] == path]
                given += [(leaf, node.level, loop.trips) for leaf in below for loop in node.loops if loop.factor]
        together = []
        for path, node in walk(self.open_tree):
            if isinstance(node, Scope) and node.kind in SIMULTANEOUS:
                tiles = [tile for _, tile in ancestors(self.open_tree, path) if isinstance(tile, Tile)]
                around = self.resources.level(tiles[-1].level) if self.resources is not None and tiles else None
                parts = [[leaf for place, leaf in places.items() if place[: len(path) + 1] == (*path, number)]
                         for number in range(len(node.children))]  # fmt: skip
                together.append((around or 0, parts))
        loops = tuple(self._open_loops((), self.open_tree, places))
        units = [] if self.resources is None else [self.resources.units_of(each) for each in computes]
        return Draws(loops, self._extents, self._ones, units, tuple(given), together, self.resources)

    def _open_loops(self, path: Path, node: Node, places: Mapping[Path, int]) -> list[OpenLoop]:
        """The open loops below a node in the order in which they are drawn.

        Of tiles directly inside each other the spatial ones come first, as they are bounded: others take the rest.
        """
        nest: list[tuple[Path, Tile]] = []
        while isinstance(node, Tile):
            nest.append((path, node))
            path, node = (*path, 0), node.child
        below = [each for place, child in self._below(path, node) for each in self._open_loops(place, child, places)]
        leaves_below = [(leaf.op, places[path + place]) for place, leaf in leaves(node)]
        for at, tile in sorted(nest, key=lambda each: each[1].binding is Binding.SP):
            for loop in tile.loops:
                if loop.factor is None:
                    below.insert(0, self._open_loop(at, tile, loop.name, below, leaves_below))
        return below

    def _open_loop(
        self, path: Path, tile: Tile, name: str, below: Sequence[OpenLoop], leaves_below: Sequence[tuple[str, int]]
    ) -> OpenLoop:
        inner = [each for each in below if each.name == name]
        later = {number for each in inner for number in each.below}
        covered = {leaf for each in inner for leaf in each.leaves}
        having = [leaf for op, leaf in leaves_below if self._has(op, name)]
        return OpenLoop(
            self._numbers[path, name], name, tile.level if tile.binding is Binding.SP else "",
            tuple(each.number for each in inner if each.number not in later),
            any(leaf not in covered for leaf in having), not having, tuple(leaf for _, leaf in leaves_below),
        )  # fmt: skip

    @cached_property
    def _extents(self) -> dict[str, int]:
        """What the open factors of every loop make up; loops that no operator below has stay at 1."""
        extents = {name: 1 for _, name in self._numbers}
        return extents | {chain.loop: chain.extent for chain in self._chains}

    def _has(self, op: str, name: str) -> bool:
        compute = self.problem.compute(op)
        return any(
            self.problem.names[op, axis.name] == name and not self._follows(op, axis.name)
            for axis in compute.body_loops
        )

    def _follows(self, op: str, axis: str) -> bool:
        return follows(self.problem, op, axis, self._above[op])

    @cached_property
    def _above(self) -> dict[str, frozenset[str]]:
        """The loops of all tiles above each operator."""
        found = {}
        for path, leaf in leaves(self.open_tree):
            tiles = [node for _, node in ancestors(self.open_tree, path) if isinstance(node, Tile)]
            found[leaf.op] = frozenset(loop.name for tile in tiles for loop in tile.loops)
        return found

    def _complete(self, factors: Factors) -> bool:
        bound = {number for chain in self._chains for number in chain.open}
        return all(factors[number] == 1 for number in range(len(factors)) if number not in bound) and all(
            prod(factors[number] for number in chain.open) == chain.extent for chain in self._chains
        )

    def _below(self, path: Path, node: Node) -> list[tuple[Path, Node]]:
        return [((*path, number), child) for number, child in enumerate(children(node))]

    def _needed(self, node: Node, name: str) -> bool:
        return any(self._has(leaf.op, name) for _, leaf in leaves(node))

    def _ways(self, path: Path, node: Node, name: str, rest: int) -> int:
        """In how many ways the open factors below a node make up `rest` for every operator that has the loop."""
        key = (path, name, rest)
        if key not in self._counted:
            self._counted[key] = self._count(path, node, name, rest)
        return self._counted[key]

    @cached_property
    def _counted(self) -> dict[tuple[Path, str, int], int]:
        return {}

    def _count(self, path: Path, node: Node, name: str, rest: int) -> int:
        if isinstance(node, Leaf):
            return int(rest == 1 or not self._has(node.op, name))
        if (path, name) in self._numbers:
            ((below, child),) = self._below(path, node)
            return sum(self._ways(below, child, name, rest // each) for each in self._choices(node, name, rest))
        return prod(self._ways(below, child, name, rest) for below, child in self._below(path, node))

    def _choices(self, node: Node, name: str, rest: int) -> Sequence[int]:
        return divisors(rest) if self._needed(node, name) else (1,)

    def _assignments(self, path: Path, node: Node, name: str, rest: int) -> Iterator[dict[int, int]]:
        if isinstance(node, Leaf):
            if rest == 1 or not self._has(node.op, name):
                yield {}
            return
        number = self._numbers.get((path, name))
        if number is not None:
            ((below, child),) = self._below(path, node)
            for factor in self._choices(node, name, rest):
                for each in self._assignments(below, child, name, rest // factor):
                    yield {number: factor, **each}
            return
        parts = [list(self._assignments(below, child, name, rest)) for below, child in self._below(path, node)]
        for chosen in product(*parts):
            yield {number: factor for each in chosen for number, factor in each.items()}

    def _moved(
        self, point: Factors, loop: str, outer: int, inner: int, prime: int, inwards: bool
    ) -> Factors | None:  # fmt: skip
        """The factors with `prime` moved between two open loops; None where a path has nowhere to put or take it."""
        factors = list(point)
        through = [chain.open for chain in self._chains if chain.loop == loop and outer in chain.open]
        partners = set()
        for path in through:
            below = path[path.index(outer) + 1 :]
            able = [number for number in below if inwards or point[number] % prime == 0]
            partner = inner if inner in able else next(iter(able), None)
            if partner is None:
                return None
            partners.add(partner)
        for number in (outer, *partners):
            if (number == outer) == inwards:
                if factors[number] % prime:
                    return None
                factors[number] //= prime
            else:
                factors[number] *= prime
        return tuple(factors) if self._complete(tuple(factors)) else None
