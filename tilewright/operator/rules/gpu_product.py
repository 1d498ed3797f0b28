"""Products on the blocks of a GPU: how the tile of a block is divided among the loops of a product, and the tree.

Level 3 says how large a block's tile is, with which instruction its warps compute it, and how many k tiles are on
their way (`BlockShape`); here the rows of the tile become points of the m loops, and a k tile points of the k
loops. Every extent is a power of two, as layouts want; what a tile has beyond the end of a loop is masked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from tilewright.dataclass import dataclass
from tilewright.decision import Decision
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis
from tilewright.layouts.copy_engine import FRAGMENT_BYTES, ROW_MULTIPLE, TENSOR_RANK, TRANSPOSED_BYTES, is_distance
from tilewright.operator.block_tree import BlockTree
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.product import Product

ASYNC_BYTES = 4  # of the least that an asynchronous copy of a thread brings: PTX ISA, cp.async


@dataclass(frozen=True)
class BlockShape:
    """The tile of a block, ``m x n`` with k tiles of depth `k`; warps along m and n; a record or "fma" computes it.

    K tiles are in `stages` buffers; with fewer than two, one is loaded when it is wanted. `splits` blocks share a
    tile, each with a part of k; a second kernel adds their sums. With a `cluster`, so many blocks bring together what
    all of them read. `precision` is that of `tile.dot`.
    """

    m: int
    n: int
    k: int
    warps: tuple[int, int]
    intrinsic: str
    stages: int = 1
    splits: int = 1
    cluster: int = 1
    precision: str = ""

    def __str__(self) -> str:
        rows, columns = self.warps
        products = self.intrinsic + (f" as {self.precision}" if self.precision else "")
        text = f"{self.m}x{self.n}x{self.k} on {rows}x{columns} warps with {products}, {self.stages} stages"
        text += f", {self.splits} parts of k" if self.splits > 1 else ""
        return text + (f", clusters of {self.cluster} blocks" if self.cluster > 1 else "")


def schedule_blocks(work: Product, shape: BlockShape, subject: str) -> tuple[Kernel, Decision]:
    """The tile over the loops of rows with the fewest blocks, and over those of the depth with the fewest k tiles.

    Ties prefer the longer innermost loop.
    """
    rows, deep = _tile_of(work.rows, shape.m), _tile_of(_by_stride(work), shape.k)
    points = {**rows, **deep, work.columns.name: shape.n}
    mapping = replace(work.mapping, intrinsic=shape.intrinsic, precision=shape.precision)
    tree = BlockTree(
        work=replace(work, mapping=mapping),
        points=points,
        order=tuple(axis.name for axis in work.spatial),
        depth=tuple(axis.name for axis in work.depth),
        warps=shape.warps,
        stages=shape.stages,
        splits=shape.splits,
        cluster=shape.cluster,
    )
    tiles = " by ".join(_text(tile) for tile in (rows, {work.columns.name: shape.n}))
    blocks = prod(loop.programs for loop in tree.grid)
    reason = (
        f"{blocks} blocks with {prod(tree.k_tiles.values())} k tiles of {_text(deep)} each, "
        "the fewest of all tiles with powers of two"
    )
    return Kernel(work.statements, tree.tree()), Decision(f"tile of {subject}", tiles, reason)


def no_bulk_copies(work: Product, element_bytes: int) -> str:
    """Why a copy engine cannot bring tiles of the operands, of elements of so many bytes; "" where it can.

    It moves tiles of tensors in which one loop walks neighbours and every other one steps by multiples of 16 bytes.
    """
    away: list[str] = []  # operands that lie along m or n
    pairs = ((work.a, work.rows, work.depth), (work.b, (work.columns,), work.depth))
    for operand, outside, deep in pairs:
        name, form = operand.tensor.name, affine(operand.index)
        if form is None or len(outside) != 1 or len(deep) != 1:
            return f"{name} is read along {len(outside) + len(deep)} loops"
        steps = {axis: form.coefficient(axis) for axis in (*work.outer, *outside, *deep)}
        inner = [axis for axis in (*outside, *deep) if steps[axis] == 1]
        if len(inner) != 1:
            return f"neighbours of {name} are walked by {len(inner)} of 2 loops"
        if inner[0] not in deep:
            away.append(name)
        if away and element_bytes not in (TRANSPOSED_BYTES, FRAGMENT_BYTES):
            return f"{name} does not lie along k: elements of {element_bytes} bytes are not transposed, only those of 2"
        if len(away) > 1 and element_bytes == FRAGMENT_BYTES:
            return f"{' and '.join(away)} do not lie along k: threads read fragments of {FRAGMENT_BYTES} bytes of one"
        row = next(axis for axis in (*outside, *deep) if axis != inner[0])
        pitch_bytes = steps[row] * element_bytes
        if not is_distance(pitch_bytes):
            return f"rows of {name} are {pitch_bytes} bytes apart, no multiple of {ROW_MULTIPLE}"
        if form.constant:
            return f"{name} is read from element {form.constant} on"
        batches = [axis for axis in work.outer if steps[axis]]
        odd = [axis for axis in batches if not is_distance(steps[axis] * element_bytes)]
        if odd or len(batches) > TENSOR_RANK - 2:
            return f"batches of {name} are walked by {', '.join(axis.name for axis in odd or work.outer)}"
    return ""


def loaded(work: Product, element_bytes: int) -> tuple[bool, bool]:
    """Whether tiles of a and of b, of elements of so many bytes, pass registers on their way to shared memory.

    They do where less than an asynchronous copy brings lies together in memory, or begins at a multiple of that.
    """
    together = max(1, ASYNC_BYTES // element_bytes)
    found = []
    for operand, outside in ((work.a, work.rows), (work.b, (work.columns,))):
        form = affine(operand.index)
        steps = [form.coefficient(axis) for axis in (*outside, *work.depth, *work.outer)] if form is not None else []
        if 1 in steps:
            steps.remove(1)  # of the loop that walks neighbours
            found.append(any(step % together for step in (*steps, form.constant if form is not None else 0)))
        else:
            found.append(together > 1)
    return found[0], found[1]


def _text(tile: Mapping[str, int]) -> str:
    return " x ".join(f"{count} of {name}" for name, count in tile.items() if count > 1) or "1 point"


def _by_stride(work: Product) -> list[Axis]:
    """The k loops, the one that walks neighbours of a operand last."""
    forms = [form for operand in (work.a, work.b) if (form := affine(operand.index)) is not None]
    steps = {axis: min((abs(f.coefficient(axis)) or 1 << 62 for f in forms), default=0) for axis in work.depth}
    return sorted(work.depth, key=lambda axis: -steps[axis])


def _tile_of(axes: Sequence[Axis], points: int) -> dict[str, int]:
    """Points along each loop, powers of two with this product, such that the fewest tiles cover all loops."""
    best = min(_tiles(len(axes), points), key=lambda tile: (_count(axes, tile), [-extent for extent in reversed(tile)]))
    return {axis.name: extent for axis, extent in zip(axes, best, strict=True)}


def _tiles(rank: int, points: int) -> Iterator[tuple[int, ...]]:
    if rank == 1:
        yield (points,)
        return
    extent = points
    while extent:
        for others in _tiles(rank - 1, points // extent):
            yield (*others, extent)
        extent //= 2


def _count(axes: Sequence[Axis], tile: Sequence[int]) -> int:
    return prod(-(-axis.size // extent) for axis, extent in zip(axes, tile, strict=True))
