"""What a tile tree occupies: processing units, and elements in each memory level (spec 1, section 5.7).

A tile's *working set* is what one execution of it touches of tensors that live outside it: slices are bounding boxes
around the elements that its loops reach. An intermediate that is written and read inside the tile lives a level further
in and is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import Read, Tensor
from tilewright.tiles.problem import Problem
from tilewright.tiles.tree import (
    SIMULTANEOUS,
    Binding,
    Kind,
    Leaf,
    Loop,
    Node,
    Path,
    Scope,
    Stage,
    Tile,
    leaves,
    same_path,
    walk,
)


@dataclass(frozen=True)
class Level:
    """One memory level: bytes of one instance (None: enough), and what its network can do.

    With `reduce` it adds up what several units computed; with `multicast` one read serves several instances further in.
    """

    name: str
    capacity_bytes: int | None = None
    reduce: bool = False
    multicast: bool = True


@dataclass(frozen=True)
class Resources:
    """The memory levels of a machine, outermost first, and how many processing units it has (None: enough)."""

    levels: tuple[Level, ...]
    units: int | None = None

    def level(self, name: str) -> int | None:
        """The position of a level, 0 for the outermost."""
        return next((number for number, level in enumerate(self.levels) if level.name == name), None)


def processing_elements(tree: Node) -> int:
    """Units that a tree keeps busy: spatial factors times what the children need, together or one after the other."""
    if isinstance(tree, Leaf):
        return 1
    if isinstance(tree, Tile):
        return processing_elements(tree.child) * (tree.trips if tree.binding is Binding.SP else 1)
    if isinstance(tree, Stage):
        return processing_elements(tree.child)
    needed = [processing_elements(child) for child in tree.children]
    return sum(needed) if tree.kind in SIMULTANEOUS else max(needed)


def elements(_: Tensor) -> int:
    """The weight that counts elements."""
    return 1


def working_set(tree: Node, problem: Problem, path: Path = ()) -> dict[str, int]:
    """Elements of each outside tensor that one execution of the node at `path` touches."""
    return _Slices(tree, problem).outside(path)


def footprints(
    tree: Node, problem: Problem, *, dedupe: bool = False, weight: Callable[[Tensor], int] = elements
) -> dict[Path, int]:
    """For every tile, by path, what its children keep in the next memory level during one of its steps.

    `Seq` needs the largest of its children's working sets, other scopes their sum. With `dedupe`, a tensor that two
    children of `Shar` or `Para` touch counts once; under `Pipe` it is double buffered and counts twice.
    """
    slices = _Slices(tree, problem)
    tensors = problem.tensors()
    weights = {name: weight(tensor) for name, tensor in tensors.items()}

    def resident(node: Node, path: Path) -> Mapping[str, int]:
        if isinstance(node, Stage):
            return resident(node.child, (*path, 0))
        if not isinstance(node, Scope):
            return slices.outside(path)
        kept = [resident(child, (*path, number)) for number, child in enumerate(node.children)]
        if node.kind is Kind.SEQ:
            return max(kept, key=lambda held: sum(size * weights[name] for name, size in held.items()))
        once = dedupe and node.kind is not Kind.PIPE
        total: dict[str, int] = {}
        for held in kept:
            for name, size in held.items():
                total[name] = max(total.get(name, 0), size) if once else total.get(name, 0) + size
        return total

    return {
        path: sum(size * weights[name] for name, size in resident(node.child, (*path, 0)).items())
        for path, node in walk(tree)
        if isinstance(node, Tile)
    }


def footprint_bytes(tensor: Tensor) -> int:
    """The weight that counts bytes."""
    return dtypes.size_bytes(tensor.dtype)


class _Slices:
    """Extents of loops and tensors inside any node of one tree."""

    def __init__(self, tree: Node, problem: Problem) -> None:
        self.tree, self.problem = tree, problem
        self.places = {leaf.op: (path, leaf) for path, leaf in leaves(tree)}
        self.tiles = {path: node for path, node in walk(tree) if isinstance(node, Tile)}

    def outside(self, path: Path) -> dict[str, int]:
        inside = [op for op, (place, _) in self.places.items() if place[: len(path)] == path]
        boxes: dict[str, list[tuple[int, int]]] = {}
        for op in inside:
            compute = self.problem.compute(op)
            for read in (*compute.reads(), Read(compute.output, compute.axes)):
                if not self._lives_inside(read.tensor.name, inside):
                    box = self._box(op, read, path)
                    old = boxes.get(read.tensor.name, box)
                    boxes[read.tensor.name] = [(min(a, c), max(b, d)) for (a, b), (c, d) in zip(box, old, strict=True)]
        shapes = self.problem.tensors()
        return {
            name: prod(min(int(extent), b - a) for (a, b), extent in zip(box, shapes[name].shape, strict=True))  # type: ignore[arg-type]
            for name, box in boxes.items()
        }

    def _lives_inside(self, tensor: str, inside: list[str]) -> bool:
        users = [c.name for c in self.problem.computes if any(t.name == tensor for t in c.inputs())]
        return tensor in inside and bool(users) and all(user in inside for user in users)

    def _box(self, op: str, read: Read, path: Path) -> list[tuple[int, int]]:
        """Where a read reaches, relative to the tile's origin; everywhere along a dimension with no affine index."""
        box = []
        for index, extent in zip(read.indices, read.tensor.shape, strict=True):
            form = affine(index)
            box.append((0, int(extent)) if form is None else self._range(op, form, path))  # type: ignore[arg-type]
        return box

    def _range(self, op: str, form: Affine, path: Path) -> tuple[int, int]:
        low = high = form.constant
        for axis, coefficient in form.terms.items():
            last = coefficient * (self.extent(op, axis.name, path) - 1)
            low, high = low + min(0, last), high + max(0, last)
        return low, high + 1

    def extent(self, op: str, axis: str, path: Path) -> int:
        """How many values of a loop one execution of the node at `path` covers."""
        compute = self.problem.compute(op)
        whole = next(int(a.extent) for a in compute.loops if a.name == axis)  # type: ignore[arg-type]
        if all(axis != a.name for a in compute.body_loops):
            return whole  # an ordered accumulation gives all of it
        place, _ = self.places[op]
        name = self.problem.names[op, axis]
        factors = [loop.trips for loop in self._loops(place, path) if loop.name == name]
        ranges = []
        for consumer, form in self.problem.derived.get((op, axis), ()):
            if consumer in self.places:
                shared = same_path(place, self.places[consumer][0])
                ranges.append(self._range(consumer, form, path if shared[: len(path)] == path else shared))
        if not ranges:
            return min(whole, prod(factors))
        hull = max(b for _, b in ranges) - min(a for a, _ in ranges)
        return min(whole, hull, prod(factors)) if factors else min(whole, hull)

    def _loops(self, place: Path, path: Path) -> list[Loop]:
        """The loops from the node at `path` down to a leaf, the micro-kernel's included."""
        found = [loop for depth in range(len(path), len(place)) for loop in self._own(place[:depth])]
        leaf = next(leaf for at, leaf in self.places.values() if at == place)
        return [*found, *(leaf.kernel.quantum if leaf.kernel is not None else ())]

    def _own(self, path: Path) -> tuple[Loop, ...]:
        tile = self.tiles.get(path)
        return tile.loops if tile is not None else ()
