"""What one program of a kernel places at each memory level, by its tile tree (spec 1, sections 2.2 and 5.7).

A tree places a tensor at a level by a stage, in so many slots, or by a scope: a value that one child gives another lies
right inside the tile around the scope. Loops of tiles outside the level of a stage bring one tile after the other
there. Sums of products and of reductions are in registers. What else caches and registers hold, the hardware and the
compiler decide: only what is placed has to fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.tiles.footprints import Accesses, Slices
from tilewright.tiles.parts import RegisterTile, numbers_of, register_tiles
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Factors, Number, Resources, Threads
from tilewright.tiles.tree import (
    Binding,
    Leaf,
    Path,
    Scope,
    Stage,
    Tile,
    TileTree,
    ancestors,
    leaves,
    node_at,
    same_path,
    walk,
)

REGISTERS = "REG"
WORD_BYTES = 4  # of a register of a thread


@dataclass(frozen=True)
class Placed:
    """Tensors that lie in `level` while the node at `path` runs: `bytes` of all their slots together."""

    path: Path
    tensor: str
    level: str
    bytes: Number
    slots: int = 1


def stages(tree: TileTree, problem: Problem, resources: Resources, factors: Factors | None = None) -> list[Placed]:
    """What stages keep: a tile of each tensor in every slot.

    Micro-kernels take their operands as matrices, whole ones where a tile is ragged. `factors` is that of
    `resources.processing_elements`.
    """
    found, by_level, known = [], dict[str, Slices](), problem.tensors()
    for path, node in walk(tree):
        if isinstance(node, Stage) and node.tensor in known:
            if node.level not in by_level:
                outside = resources.levels[: resources.level(node.level)]
                by_level[node.level] = Slices(Accesses(tree, problem), factors, [level.name for level in outside])
            elements = _staged_elements(tree, by_level[node.level], node.tensor, path)
            held = node.slots * elements * _element_bytes(problem, node.tensor)
            found.append(Placed(path, node.tensor, node.level, held, node.slots))
    return found


def _staged_elements(tree: TileTree, slices: Slices, tensor: str, path: Path) -> Number:
    """Elements of one slot of a stage at this path."""
    takers = [
        op for op, (place, leaf) in slices.places.items()
        if leaf.kernel is not None and place[: len(path)] == path and op != tensor
    ]  # fmt: skip
    taken = [slices.matrices(op, tensor, path) for op in takers if slices.takes(op, tensor)]
    if not taken:
        return slices.touched_of(tensor, path)
    return max(_of_stage(tree, tensor, path, each) for each in taken)


def _of_stage(tree: TileTree, tensor: str, path: Path, reads: Sequence[Number]) -> Number:
    """Elements of one stage of a tensor that an expression reads so often: of one read where each has a stage.

    The outermost stage is that of the first read.
    """
    around = [node for _, node in ancestors(tree, path) if isinstance(node, Stage) and node.tensor == tensor]
    inside = [node for _, node in walk(node_at(tree, path)) if isinstance(node, Stage) and node.tensor == tensor]
    if len(around) + len(inside) < len(reads):
        return sum(reads)
    return reads[min(len(around), len(reads) - 1)]


def values(tree: TileTree, problem: Problem, resources: Resources) -> list[Placed]:
    """The values that children of a scope give each other and that no stage keeps, each in the outermost such scope."""
    kept = {node.tensor for _, node in walk(tree) if isinstance(node, Stage)}
    places = {leaf.op: path for path, leaf in leaves(tree)}
    scopes: dict[str, Path] = {}
    for producer, consumer in problem.edges():
        name, path = producer.name, same_path(places[producer.name], places[consumer.name])
        if name not in kept:
            scopes[name] = min(path, scopes.get(name, path), key=len)
    slices, found = Slices(Accesses(tree, problem)), []
    for name, path in scopes.items():
        around = [node.level for _, node in ancestors(tree, path) if isinstance(node, Tile)]
        inside = (resources.level(around[-1]) or 0) + 1 if around else 0
        if 0 < inside < len(resources.levels) and isinstance(node_at(tree, path), Scope):
            held = slices.touched_of(name, path) * _element_bytes(problem, name)
            found.append(Placed(path, name, resources.levels[inside].name, held))
    return found


# Registers ------------------------------------------------------------------------------------------------------------


def threads_of(tree: TileTree, threads: Threads) -> int:
    """The threads of a block: those of the warps that its grid names."""
    return prod(numbers_of(tree, "warps")) * threads.of_warp


def registers(tree: TileTree, problem: Problem, resources: Resources) -> Iterator[Placed]:
    """What is in registers at once, for each time in a program.

    Of a block that is the sums of all its products, or the tile of another value; of a program of a CPU the sums of a
    pass over rows. The register tile of a product of a CPU is that of its intrinsic, which has registers of its own.
    """
    return _of_block(tree, problem) if resources.threads is not None else _of_passes(tree, problem, resources)


def _of_block(tree: TileTree, problem: Problem) -> Iterator[Placed]:
    slices, sums = Slices(Accesses(tree, problem)), dict[str, int]()
    for path, leaf in leaves(tree):
        size, around = _element_bytes(problem, leaf.op), node_at(tree, path[:-1])
        if leaf.kernel is not None:
            (elements,) = slices.matrices(leaf.op, leaf.op, path)
            sums[leaf.op] = elements * max(WORD_BYTES, size)
        elif isinstance(around, Tile) and around.binding is Binding.SP:
            yield Placed(path, leaf.op, REGISTERS, around.trips * size)
    if sums:
        yield Placed((), ", ".join(sums), REGISTERS, sum(sums.values()))


def _of_passes(tree: TileTree, problem: Problem, resources: Resources) -> Iterator[Placed]:
    """The sums of each pass, in whole vectors."""
    tiles = dict(zip((path for path, _ in leaves(tree)), register_tiles(tree), strict=True))
    register_bytes = resources.levels[-1].word_bits // 8
    for path, node in walk(tree):
        if isinstance(node, Tile) and node.level == "L1" and not isinstance(node.child, Leaf):
            inside = [(leaf, tile) for place, (leaf, tile) in tiles.items() if place[: len(path)] == path]
            sums = [(leaf.op, tile) for leaf, tile in inside if _adds_up(leaf, problem)]
            if sums:
                held = sum(_vectors(op, tile, problem, register_bytes) for op, tile in sums)
                yield Placed(path, ", ".join(op for op, _ in sums), REGISTERS, held * register_bytes)


def _adds_up(leaf: Leaf, problem: Problem) -> bool:
    compute = problem.compute(leaf.op)
    return leaf.kernel is None and bool(compute.reduce) and compute.ordered is None


def _vectors(op: str, tile: RegisterTile, problem: Problem, register_bytes: int) -> int:
    """Registers of the sums of one register tile; its points along unrolled loops of the sum share theirs."""
    along = tile.along(tile.vector) if tile.vector else 1
    added = {axis.name for axis in problem.compute(op).reduce}
    rows = prod(points for name, points in tile.points if name != tile.vector and name not in added)
    return rows * -(-along * _element_bytes(problem, op) // register_bytes)


def _element_bytes(problem: Problem, tensor: str) -> int:
    return dtypes.size_bytes(problem.tensors()[tensor].dtype)
