"""What a tile tree keeps in memory: elements and bytes in each level (spec 1, section 5.7).

A tile's *working set* is what one execution of it touches of tensors that live outside it: slices are bounding boxes
around the elements that its loops reach. An intermediate that is written and read inside the tile lives a level further
in and is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from math import prod

import numpy as np

from tilewright.expr import dtypes
from tilewright.expr.affine import Affine
from tilewright.expr.core import Axis, Read, Tensor
from tilewright.expr.core import walk as walk_expr
from tilewright.tiles.buffers import buffers
from tilewright.tiles.problem import Problem, Side
from tilewright.tiles.rescaling import Rescaled, rescaled
from tilewright.tiles.resources import Factors, Number, Range, factor_of, greatest, least
from tilewright.tiles.tree import Kind, Leaf, Loop, Node, Path, Scope, Stage, Tile, same_path, walk


def elements(_: Tensor) -> int:
    """The weight that counts elements."""
    return 1


def footprint_bytes(tensor: Tensor) -> int:
    """The weight that counts bytes."""
    return dtypes.size_bytes(tensor.dtype)


def working_set(tree: Node, problem: Problem, path: Path = ()) -> dict[str, Number]:
    """Elements of each outside tensor that one execution of the node at `path` touches."""
    return Slices(Accesses(tree, problem)).outside(path)


def footprints(
    tree: Node,
    problem: Problem,
    *,
    dedupe: bool = False,
    double_buffer: bool = False,
    weight: Callable[[Tensor], int] = elements,
    factors: Factors | None = None,
    tiles: Collection[Path] | None = None,
) -> dict[Path, Number]:
    """For every tile, or these, by path, what its children keep in the next memory level during one of its steps.

    `Seq` needs the largest of its children's working sets, other scopes their sum. With `dedupe`, a tensor that two
    children of `Shar` or `Para` touch counts once; under `Pipe` it is double buffered and counts twice. What a tile
    keeps stays beside each child of `Seq`; what a child's tiles bypass is not there. A running value by which a sum
    elsewhere is rescaled is a result of its tiles; the sum's own tiles multiply before they have their operands, and
    so hold nothing more for it. `factors` is that of `processing_elements`. With `double_buffer` a streamed tensor
    counts twice (`buffers`).
    """
    doubled = [path for path, _ in walk(tree)] if double_buffer else []
    found = Footprints(Accesses(tree, problem), dedupe=dedupe, doubled=doubled, weight=weight, tiles=tiles)
    return found.at(factors)


class Footprints:
    """The `footprints` of one tree: what does not depend on factors is found once.

    What the tiles at the paths `doubled` stream counts twice.
    """

    def __init__(
        self,
        accesses: Accesses,
        *,
        dedupe: bool = False,
        doubled: Collection[Path] = (),
        weight: Callable[[Tensor], int] = elements,
        tiles: Collection[Path] | None = None,
    ) -> None:
        self.accesses, self.dedupe, self.doubled = accesses, dedupe, frozenset(doubled)
        self.weights = {name: weight(tensor) for name, tensor in accesses.shapes.items()}
        self.tiles = {path: tile for path, tile in self.accesses.tiles.items() if tiles is None or path in tiles}

    def at(self, factors: Factors | None = None) -> dict[Path, Number]:
        """As `footprints`, with these factors."""
        slices = Slices(self.accesses, factors)
        found = {}
        for path, tile in self.tiles.items():
            times = buffers(self.accesses, path, factors) if path in self.doubled else {}
            held = self._resident(slices, tile.child, (*path, 0), tile.keep, times)
            found[path] = sum([size * self.weights[name] for name, size in held.items()])
        return found

    def _resident(
        self, slices: Slices, node: Node, path: Path, keep: Sequence[str], times: Mapping[str, Number]
    ) -> Mapping[str, Number]:
        """What a node keeps in the level of its slices, by tensor: `times` its slice, once if it is not there."""
        if isinstance(node, Stage):
            return self._resident(slices, node.child, (*path, 0), keep, times)
        if not isinstance(node, Scope):
            held, passing = slices.outside(path), _bypassed(node)
            if passing or times:
                held = {name: size * times.get(name, 1) for name, size in held.items() if name not in passing}
            return held
        kept: list[Mapping[str, Number]] = [
            self._resident(slices, child, (*path, number), keep, times) for number, child in enumerate(node.children)
        ]
        if node.kind is Kind.SEQ:
            stays = {name: reduce(greatest, (held.get(name, 0) for held in kept)) for name in keep}
            stays = {name: size for name, size in stays.items() if any(name in held for held in kept)}
            return reduce(self._larger, [{**held, **stays} for held in kept])
        once = self.dedupe and node.kind is not Kind.PIPE
        total: dict[str, Number] = {}
        for one in kept:
            for name, size in one.items():
                total[name] = greatest(total.get(name, 0), size) if once else total.get(name, 0) + size
        return total

    def _larger(self, a: Mapping[str, Number], b: Mapping[str, Number]) -> Mapping[str, Number]:
        """The working set with more bytes; the first of equals."""
        weights = self.weights
        more = sum([size * weights[name] for name, size in b.items()]) > sum(
            [size * weights[name] for name, size in a.items()]
        )
        if not isinstance(more, np.ndarray):
            return b if more else a
        return {name: np.where(more, b.get(name, 0), a.get(name, 0)) for name in dict.fromkeys((*a, *b))}


def _bypassed(node: Node) -> set[str]:
    """The tensors that a tile, and the tiles of its level directly inside it, bypass."""
    found: set[str] = set()
    level = node.level if isinstance(node, Tile) else ""
    while isinstance(node, Tile) and node.level == level:
        found.update(node.bypass)
        node = node.child
    return found


#: A loop around a leaf: the depth of its node, and the loop with its place in the tile of this path, or in the kernel.
Around = tuple[int, Loop, Path, int]


class Accesses:
    """The expressions of one tree, and how they index what they touch inside any node of it.

    `again` are the rescalings that the tree carries out, where they are known.
    """

    def __init__(self, tree: Node, problem: Problem, again: Collection[Rescaled] | None = None) -> None:
        self.tree, self.problem = tree, problem
        self.shapes = problem.tensors()
        self.places: dict[str, tuple[Path, Leaf]] = {}
        self.tiles: dict[Path, Tile] = {}
        for path, node in walk(tree):
            if isinstance(node, Leaf):
                self.places[node.op] = (path, node)
            elif isinstance(node, Tile):
                self.tiles[path] = node
        self.users = dict(problem.users)
        for one in rescaled(tree, problem) if again is None else again:
            self.users[one.value.name] |= {one.rescaling.total}
        self._outside: dict[tuple[str, ...], Mapping[str, Sequence[Side]]] = {}
        self._loops: dict[str, Mapping[str, Sequence[Around]]] = {}
        self._consumers: dict[tuple[str, str], Sequence[tuple[str, Affine, Path]]] = {}

    def inside(self, path: Path) -> list[str]:
        """The expressions below a node."""
        return [op for op, (place, _) in self.places.items() if place[: len(path)] == path]

    def outside(self, path: Path) -> Mapping[str, Sequence[Side]]:
        """How each tensor from outside a node is indexed in it."""
        ops = tuple(self.inside(path))
        if ops not in self._outside:
            inside = frozenset(ops)
            sides = self.problem.sides(ops)
            self._outside[ops] = {name: own for name, own in sides.items() if not self._lives_inside(name, inside)}
        return self._outside[ops]

    def touched(self, path: Path) -> Mapping[str, Sequence[Side]]:
        """How each tensor is indexed in a node."""
        return self.problem.sides(tuple(self.inside(path)))

    def _lives_inside(self, tensor: str, inside: frozenset[str]) -> bool:
        users = self.users[tensor]
        return tensor in inside and bool(users) and users <= inside

    def consumers(self, op: str, axis: str) -> Sequence[tuple[str, Affine, Path]]:
        """The forms by which consumers in the tree ask for an axis, each with the node that it shares with `op`."""
        key = (op, axis)
        if key not in self._consumers:
            place = self.places[op][0]
            self._consumers[key] = [
                (consumer, form, same_path(place, self.places[consumer][0]))
                for consumer, form in self.problem.axis(op, axis).forms
                if consumer in self.places
            ]
        return self._consumers[key]

    def loops(self, op: str) -> Mapping[str, Sequence[Around]]:
        """The loops around a leaf by name, outermost first, the micro-kernel's included."""
        if op not in self._loops:
            place, leaf = self.places[op]
            found: dict[str, list[Around]] = {}
            for depth in range(len(place)):
                tile = self.tiles.get(place[:depth])
                for number, loop in enumerate(tile.loops if tile is not None else ()):
                    found.setdefault(loop.name, []).append((depth, loop, place[:depth], number))
            for number, loop in enumerate(leaf.kernel.quantum if leaf.kernel is not None else ()):
                found.setdefault(loop.name, []).append((len(place), loop, place, number))
            self._loops[op] = found
        return self._loops[op]


class Slices:
    """Extents of loops and tensors inside any node of one tree; loops of tiles at the `levels` given have one step."""

    def __init__(self, accesses: Accesses, factors: Factors | None = None, levels: Collection[str] = ()) -> None:
        self.accesses, self.problem = accesses, accesses.problem
        self.factors, self.levels = factors, levels
        self.places = accesses.places
        self._extents: dict[tuple[str, str, Path], Number] = {}
        self._products: dict[tuple[str, str], Sequence[tuple[int, Number]]] = {}
        self._outside: dict[Path, dict[str, Number]] = {}
        self._touched: dict[Path, dict[str, Number]] = {}

    def outside(self, path: Path) -> dict[str, Number]:
        """Elements of each tensor from outside the node at `path` that one execution of it touches."""
        if path not in self._outside:
            self._outside[path] = self._sizes(path, self.accesses.outside(path))
        return self._outside[path]

    def touched_of(self, tensor: str, path: Path) -> Number:
        """Elements of one tensor, from outside or from inside, that one execution of the node at `path` touches."""
        if path not in self._touched:
            self._touched[path] = self._sizes(path, self.accesses.touched(path))
        return self._touched[path].get(tensor, 0)

    def takes(self, op: str, tensor: str) -> bool:
        """Whether an expression reads a tensor."""
        return any(read.tensor.name == tensor for read in self.problem.compute(op).reads())

    def matrices(self, op: str, tensor: str, path: Path) -> list[Number]:
        """Elements of a tensor as an expression takes them in one execution, for each of its reads or its result: one
        for each point of the loops that the indices have, of whole tiles. The elements of a window are there as often
        as they are taken.
        """
        compute, found = self.problem.compute(op), []
        for read in dict.fromkeys((*compute.reads(), Read(compute.output, compute.axes))):
            if read.tensor.name == tensor:
                axes = (axis for index in read.indices for axis in walk_expr(index) if isinstance(axis, Axis))
                names = {self.problem.names[op, axis.name] for axis in axes}
                found.append(prod(self._covered(op, name, path) for name in names))
        return found

    def _sizes(self, path: Path, touched: Mapping[str, Sequence[Side]]) -> dict[str, Number]:
        """Elements in the bounding boxes of what expressions reach."""
        sizes: dict[str, Number] = {}
        for name, sides in touched.items():
            size: Number = 1
            for side in sides:
                size = size * self._side(path, side)
            sizes[name] = size
        return sizes

    def _side(self, path: Path, side: Side) -> Number:
        """Elements of a bounding box along one dimension; all where one access has no affine index there."""
        extent, axes, forms = side
        if axes is not None:
            return least(reduce(greatest, [self.extent(op, axis, path) for op, axis in axes]), extent)
        ranges = [(0, extent) if form is None else self._range(op, form, path) for op, form in forms]
        low, high = ranges[0]
        for first, end in ranges[1:]:
            low, high = least(low, first), greatest(high, end)
        return least(high - low, extent)

    def _range(self, op: str, form: Affine, path: Path) -> Range:
        """Where an index reaches, relative to the tile's origin."""
        low: Number = form.constant
        high: Number = form.constant + 1
        for axis, coefficient in form.terms.items():
            key = (op, axis.name, path)
            extent = self._extents.get(key)
            if extent is None:
                extent = self.extent(*key)
            last = coefficient * (extent - 1)
            if coefficient > 0:
                high = high + last
            else:
                low = low + last
        return low, high

    def extent(self, op: str, axis: str, path: Path) -> Number:
        """How many values of a loop one execution of the node at `path` covers."""
        key = (op, axis, path)
        if key not in self._extents:
            self._extents[key] = self._extent(op, axis, path)
        return self._extents[key]

    def _extent(self, op: str, axis: str, path: Path) -> Number:
        one = self.problem.axis(op, axis)
        if one.given:
            return one.extent
        covered = self._covered(op, one.name, path)
        consumers = self.accesses.consumers(op, axis) if one.forms else ()
        if not consumers:
            return least(covered, one.extent)
        ranges = [
            self._range(consumer, form, path if shared[: len(path)] == path else shared)
            for consumer, form, shared in consumers
        ]
        hull = reduce(greatest, (b for _, b in ranges)) - reduce(least, (a for a, _ in ranges))
        cut = one.name in self.accesses.loops(op)
        return least(least(hull, one.extent), covered) if cut else least(hull, one.extent)

    def _covered(self, op: str, name: str, path: Path) -> Number:
        """The product of the factors of an expression's loops of one name inside a node."""
        if (op, name) not in self._products:
            self._products[op, name] = self._factors_inwards(op, name)
        for depth, size in self._products[op, name]:
            if depth >= len(path):
                return size
        return 1

    def _factors_inwards(self, op: str, name: str) -> Sequence[tuple[int, Number]]:
        """The loops of one name around a leaf, outermost first: depth, and the product of all factors from there."""
        found: list[tuple[int, Number]] = []
        size: Number = 1
        for depth, loop, place, number in reversed(self.accesses.loops(op).get(name, ())):
            tile = self.accesses.tiles.get(place)
            if tile is None:  # the micro-kernel
                size = size * loop.trips
            elif tile.level not in self.levels:
                size = size * factor_of(loop, self.factors, place, number)
            found.append((depth, size))
        return found[::-1]
