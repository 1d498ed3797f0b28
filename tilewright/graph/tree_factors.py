"""The factors of a tile tree as a space: a number for every open loop, loop by loop and tile by tile (spec 1, 5.11).

Along every path the factors of a loop make up its extent; a tile around several operators has one factor for all of
them. Rules of `tiles.legality`, resources among them, refuse trees, also while factors are open: an open factor counts
as 1, with which a tree needs least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from math import gcd, prod
from typing import TYPE_CHECKING, Any, TypeAlias

from tilewright.dataclass import dataclass
from tilewright.graph.open_tiles import follows
from tilewright.search.cost import Evaluation
from tilewright.search.factors import divisors, prime_powers
from tilewright.search.space import NoLegalPoint
from tilewright.tiles.legality import violations
from tilewright.tiles.notation import print_tree
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Resources
from tilewright.tiles.tree import Leaf, Node, Path, Scope, Stage, Tile, TileTree, ancestors, children, leaves, walk

if TYPE_CHECKING:
    from numpy.random import Generator

Factors: TypeAlias = tuple[int, ...]  #: of the open loops, in the order in which they stand in the text of the tree
OpenFactors: TypeAlias = tuple[int | None, ...]

_TRIES = 200  # random tables that are drawn before factors are decided one by one


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
            bounds = {"levels": levels, "units": self.resources.units}
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
        broken = violations(
            self.filled(factors), self.problem, recompute=self.recompute, resources=self.resources
        )  # fmt: skip
        return next(broken, None) is not None

    @property
    def size(self) -> int:
        return prod(self._ways((), self.open_tree, name, extent) for name, extent in self._extents.items())

    def points(self) -> Iterator[Factors]:
        names = list(self._extents)
        choices = [list(self._assignments((), self.open_tree, name, self._extents[name])) for name in names]
        for chosen in product(*choices):
            yield self._table(chosen)

    def sample(self, numbers: Generator) -> Factors:
        """Factors of each loop are drawn uniformly among those that make up its extent; refused trees are redrawn.

        Where nearly all are refused, factors are decided one by one instead.
        """
        for _ in range(_TRIES):
            drawn = self._table(
                [self._random((), self.open_tree, name, extent, numbers) for name, extent in self._extents.items()]
            )
            if not self.refuses(drawn):
                return drawn
        start = self.start()
        found = None if start is None else self._completed(start, numbers)
        if found is None:
            raise NoLegalPoint(f"no factors of {print_tree(self.open_tree)} are legal", help="more memory, or levels")
        return found

    def neighbours(self, point: Factors) -> Sequence[Factors | None]:
        """A prime factor of one open loop moves to another on its way, further in or out.

        Tiles around several operators give it to, or take it from, every other operator's nearest tile.
        """
        found: list[Factors | None] = []
        for chain in self._chains:
            for place, outer in enumerate(chain.open):
                for inner in chain.open[place + 1 :]:
                    for prime, _ in prime_powers(chain.extent):
                        for inwards in (True, False):
                            moved = self._moved(point, chain.loop, outer, inner, prime, inwards)
                            found.append(None if moved is None or self.refuses(moved) else moved)
        return found

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
        return self._propagated((None,) * len(self._labels))

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

    def _propagated(self, state: OpenFactors) -> OpenFactors | None:
        """With the factors that follow: the last open one of a path, and all where nothing is left; None if refused."""
        factors, changed = list(state), True
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

    def _completed(self, state: OpenFactors, numbers: Generator) -> Factors | None:
        """Random legal factors that begin so, by trying every choice if need be; None where there are none."""
        undecided = self.candidates(state)
        if not undecided:
            return self.point(state)
        variable = min(undecided, key=lambda number: len(undecided[number]))
        for choice in numbers.permutation(len(undecided[variable])):
            decided = self.decide(state, variable, undecided[variable][choice])
            found = None if decided is None else self._completed(decided, numbers)
            if found is not None:
                return found
        return None

    # The open loops of the tree

    @cached_property
    def _numbers(self) -> dict[tuple[Path, str], int]:
        """The open loops, by the path of their tile and their name."""
        places = [(path, loop.name) for path, node in walk(self.open_tree) if isinstance(node, Tile)
                  for loop in node.loops if loop.factor is None]  # fmt: skip
        return {place: number for number, place in enumerate(places)}

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

    def _table(self, chosen: Sequence[Mapping[int, int]]) -> Factors:
        table = {number: factor for each in chosen for number, factor in each.items()}
        return tuple(table[number] for number in range(len(table)))

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

    def _random(self, path: Path, node: Node, name: str, rest: int, numbers: Generator) -> dict[int, int]:
        """One of the `_assignments`, all equally likely; there is one at least."""
        number = self._numbers.get((path, name))
        if number is None:
            below = self._below(path, node)
            parts = [self._random(place, child, name, rest, numbers) for place, child in below]
            return {number: factor for each in parts for number, factor in each.items()}
        ((place, child),) = self._below(path, node)
        choices = self._choices(node, name, rest)
        ways = [self._ways(place, child, name, rest // each) for each in choices]
        drawn = int(numbers.integers(sum(ways)))
        chosen = next(n for n in range(len(ways)) if drawn < sum(ways[: n + 1]))
        return {number: choices[chosen], **self._random(place, child, name, rest // choices[chosen], numbers)}

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


@dataclass(frozen=True)
class FactorCost:
    """The cost of factors: that of the tree that they fill."""

    space: TreeFactors
    cost: Callable[[TileTree], Evaluation]

    def __call__(self, point: Factors) -> Evaluation:
        return self.cost(self.space.filled(point))
