"""Products on the blocks of a GPU: how the tile of a block is divided among the loops of a product, and the tree.

Level 3 says how large a block's tile is, with which instruction its warps compute it, and how many k tiles are on
their way (`BlockShape`); here the rows of the tile become points of the m loops, and a k tile points of the k
loops. Every extent is a power of two, as layouts want; what a tile has beyond the end of a loop is masked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import gcd, prod

from tilewright.dataclass import dataclass
from tilewright.decision import Decision
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis
from tilewright.layouts.copy_engine import FRAGMENT_BYTES, ROW_MULTIPLE, TENSOR_RANK, TRANSPOSED_BYTES, is_distance
from tilewright.operator.block_tree import BlockTree
from tilewright.operator.box_dims import BoxDim, box_dims
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.product import Operand, Product

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


@dataclass(frozen=True)
class TileLoops:
    """The m loops and the k loops that tiles of a product have points of, outermost first.

    A tile is at one point of every other m loop, of which there are `row_points`, and k loop, `depth_points`.
    """

    rows: tuple[Axis, ...]
    depth: tuple[Axis, ...]
    row_points: int = 1
    depth_points: int = 1

    def row_tiles(self, m: int) -> int:
        """Tiles of m rows."""
        return self.row_points * _count(_extents(self.rows), _tile_of(_extents(self.rows), m))

    def k_tiles(self, k: int) -> int:
        """Slices of depth k."""
        return self.depth_points * _count(_extents(self.depth), _tile_of(_extents(self.depth), k))


def loops_of_threads(work: Product) -> TileLoops:
    """Where threads copy the operands: tiles have points of all loops.

    Of a factor with a guard, tiles are boxes of its tensor for threads too: they have points of one k loop, the longest
    one for which no two loops of a tile walk one dimension.
    """
    depth = tuple(_by_stride(work))
    if work.a.guard is None:
        return TileLoops(work.rows, depth)
    dims = box_dims(work.a) or []
    usable = [axis for axis in depth if dims and all(_is_side(dim, (*work.rows, axis)) for dim in dims)]
    assert usable, f"{work.a.tensor.name} has no border in memory, but no tile of it is a box (`leave_border`)"
    walked = max(usable, key=lambda axis: axis.size)
    return TileLoops(work.rows, (walked,), 1, prod(axis.size for axis in depth if axis != walked))


def loops_of_bulk_copies(work: Product, element_bytes: int) -> tuple[TileLoops | None, str]:
    """Where a copy engine brings boxes of the operands, of elements of so many bytes; else None and why not.

    It moves boxes of tensors of 5 dimensions at most, in which one loop walks neighbours and every other one steps by
    multiples of 16 bytes, and which begin at such multiples. A window is part of the dimension of its image; a k tile
    has points of one loop.
    """
    inner: dict[str, Axis] = {}
    away: list[str] = []  # operands that lie along m or n
    for operand, outside in ((work.a, work.rows), (work.b, (work.columns,))):
        name, form = operand.tensor.name, affine(operand.index)
        if form is None:
            return None, f"{name} is read at places that are no sums"
        near = [axis for axis in (*outside, *work.depth) if form.coefficient(axis) == 1]
        if len(near) != 1:
            return None, f"neighbours of {name} are walked by {len(near)} of {len(outside) + len(work.depth)} loops"
        if near[0] not in work.depth:
            away.append(name)
            if operand.guard is not None:
                return None, f"{name} is read outside of its shape and does not lie along k"
        if away and element_bytes not in (TRANSPOSED_BYTES, FRAGMENT_BYTES):
            fact = f"elements of {element_bytes} bytes are not transposed, only those of 2"
            return None, f"{name} does not lie along k: {fact}"
        if len(away) > 1 and element_bytes == FRAGMENT_BYTES:
            fact = f"threads read fragments of {FRAGMENT_BYTES} bytes of one"
            return None, f"{' and '.join(away)} do not lie along k: {fact}"
        if form.constant and operand.guard is None:
            return None, f"{name} is read from element {form.constant} on"
        inner[name] = near[0]
    near_a, near_b = inner[work.a.tensor.name], inner[work.b.tensor.name]
    deep = {axis for axis in (near_a, near_b) if axis in work.depth}
    if len(deep) > 1:
        return None, f"neighbours are walked by {near_a.name} in {work.a.tensor.name}, by {near_b.name} in the other"
    walked = deep.pop() if deep else max(work.depth, key=lambda axis: axis.size)
    rows = work.rows if near_a == walked else (near_a,)
    for operand, outside in ((work.a, rows), (work.b, (work.columns,))):
        refused = _refuse_boxes(work, operand, (*outside, walked), element_bytes)
        if refused:
            return None, refused
    return TileLoops(
        rows, (walked,), prod(axis.size for axis in work.rows if axis not in rows),
        prod(axis.size for axis in work.depth if axis != walked),
    ), ""  # fmt: skip


def _refuse_boxes(work: Product, operand: Operand, tiled: Sequence[Axis], element_bytes: int) -> str:
    """Why tiles of an operand, with points of the loops `tiled`, are no boxes of a tensor; "" where they are."""
    name, form = operand.tensor.name, affine(operand.index)
    assert form is not None, "it was looked at"
    if operand.guard is not None:
        return _refuse_guarded(operand, tiled, element_bytes)
    steps = {axis: form.coefficient(axis) for axis in (*work.spatial, *work.depth)}
    dims = set()
    for axis in tiled:
        if steps[axis] != 1 and not is_distance(steps[axis] * element_bytes):
            fact = f"{steps[axis] * element_bytes} bytes apart along {axis.name}, no multiple of {ROW_MULTIPLE}"
            return f"rows of {name} are {fact}"
        dims.add(steps[axis])
    for axis, step in steps.items():
        if step == 0 or axis in tiled or dimension_of(step, dims):
            continue
        if not is_distance(step * element_bytes):
            return f"{name} steps by {step * element_bytes} bytes along {axis.name}, no multiple of {ROW_MULTIPLE}"
        dims.add(step)
    if len(dims) > TENSOR_RANK:
        return f"{name} is read along {len(dims)} dimensions, {TENSOR_RANK} at most"
    return ""


def _refuse_guarded(operand: Operand, tiled: Sequence[Axis], element_bytes: int) -> str:
    """The same for an operand with a guard, whose places are coordinates of its tensor."""
    name, dims = operand.tensor.name, box_dims(operand)
    if dims is None:
        return f"{name} is read outside of its shape, at places that are no coordinates"
    if len(dims) > TENSOR_RANK:
        return f"{name} is read along {len(dims)} dimensions, {TENSOR_RANK} at most"
    for dim in dims:
        if not _is_side(dim, tiled):
            walked = [axis for axis in tiled if axis in dim.place.terms]
            steps = " + ".join(f"{dim.place.coefficient(axis)} {axis.name}" for axis in walked)
            return f"{name} is read outside of its shape, along {steps}: boxes have neighbours"
        if dim.stride != 1 and not is_distance(dim.stride * element_bytes):
            fact = f"{dim.stride * element_bytes} bytes apart, no multiple of {ROW_MULTIPLE}"
            return f"rows of {name} are {fact}"
        if dim.stride == 1:
            others = (step for axis, step in dim.place.terms.items() if axis not in tiled)
            begin = gcd(dim.place.constant, *others) * element_bytes
            if begin % ROW_MULTIPLE:
                return f"{name} is read at multiples of {begin} bytes in its rows, not of {ROW_MULTIPLE}"
    return ""


def _is_side(dim: BoxDim, tiled: Sequence[Axis]) -> bool:
    """Whether a tile with points of the loops `tiled` has neighbours along a dimension: one loop walks it, by 1."""
    steps = [dim.place.coefficient(axis) for axis in tiled if axis in dim.place.terms]
    return steps in ([], [1])


def dimension_of(step: int, strides: Collection[int]) -> int:
    """The stride of the dimension, not the innermost, along which a loop moves a tile by `step` elements; 0: none.

    >>> dimension_of(3712, (215296, 3712, 64, 1)), dimension_of(96, (215296, 3712, 64, 1))
    (3712, 0)
    """
    return max((stride for stride in strides if stride > 1 and step > 0 and step % stride == 0), default=0)


def schedule_blocks(
    work: Product, shape: BlockShape, subject: str, loops: TileLoops | None = None
) -> tuple[Kernel, Decision]:
    """The tile over the loops of rows with the fewest blocks, and over those of the depth with the fewest k tiles.

    Ties prefer the longer innermost loop. `loops` are those that tiles have points of, all without.
    """
    loops = loops_of_threads(work) if loops is None else loops
    rows, deep = points_of(loops.rows, shape.m), points_of(loops.depth, shape.k)
    points = {**{axis.name: 1 for axis in (*work.rows, *work.depth)}, **rows, **deep, work.columns.name: shape.n}
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
    reason = f"{blocks} blocks with {prod(tree.k_tiles.values())} k tiles of {_text(deep)} each"
    if len(loops.rows) > 1 or len(loops.depth) > 1:
        reason += f", the fewest with {shape.m} rows and {shape.k} deep as powers of two of their loops"
    return Kernel(work.statements, tree.tree()), Decision(f"tile of {subject}", tiles, reason)


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


def _extents(axes: Sequence[Axis]) -> tuple[int, ...]:
    return tuple(axis.size for axis in axes)


def points_of(axes: Sequence[Axis], points: int) -> dict[str, int]:
    """Points along each loop by its name."""
    tile = _tile_of(_extents(axes), points)
    return {axis.name: extent for axis, extent in zip(axes, tile, strict=True)}


@cache
def _tile_of(extents: tuple[int, ...], points: int) -> tuple[int, ...]:
    """Points along each loop, powers of two with this product, such that the fewest tiles cover all loops."""
    return min(_tiles(len(extents), points), key=lambda tile: (_count(extents, tile), [-each for each in tile[::-1]]))


def _tiles(rank: int, points: int) -> Iterator[tuple[int, ...]]:
    if rank == 1:
        yield (points,)
        return
    extent = points
    while extent:
        for others in _tiles(rank - 1, points // extent):
            yield (*others, extent)
        extent //= 2


def _count(extents: Sequence[int], tile: Sequence[int]) -> int:
    return prod(-(-size // extent) for size, extent in zip(extents, tile, strict=True))
