"""Shared memory that blocks take for products: what their trees stage there, and what passes take beside that.

Rules that choose tiles and rule L8 read the same numbers here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.expr import dtypes
from tilewright.intrinsics.elements import bits
from tilewright.intrinsics.intrinsic import Intrinsic
from tilewright.tiles.parts import number_of, numbers_of
from tilewright.tiles.placement import Placed
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Resources
from tilewright.tiles.tree import MicroKernelRef, TileTree, leaves

CIRCULAR_STATE_BYTES, ALIGNMENT_BYTES = 16, 1024  # of a slot: two mbarriers; of a swizzled buffer, by PTX
STORED_COLUMN_BYTES, STORED_COLUMNS = 128, 2  # by `tensor-stores`: columns of rows so long, in so many buffers
PADDING_BYTES = 16  # of a row, by `distribute`: one vector
# Counted in compiled kernels, the most: what layouts of what an epilogue reads take, in bytes for an element of the
# link of two products.
READ_BYTES = 36


def is_warpgroup(record: Intrinsic) -> bool:
    """Whether groups of four warps compute a record from tiles that bulk copies bring."""
    return record.group == "warpgroup128"


def is_opaque(record: Intrinsic) -> bool:
    """Whether the fragment layout of a record is unspecified, so that its operands pass through memory in rows."""
    return all(operand.layout == "opaque" for operand in record.operands)


def product_bytes(
    record: Intrinsic | None, staged: int, slots: int, tile: tuple[int, int, int], warps: Sequence[int],
    result_bytes: int, sum_bytes: int, splits: int,
) -> int:  # fmt: skip
    """Shared memory of a product whose operands take `staged` bytes in all slots, and of its result on its way out.

    `tile` is m x n x k of a block; an element of the result is stored in `result_bytes`, or in `sum_bytes` where so
    many blocks `splits` a sum. Where threads copy, the result takes the place of the slots; a circular buffer stays in
    use beside it. Fragments of an unspecified layout come from padded rows, of one order, and leave as the sums that
    they are. Without a record these are multiply-adds, whose rows may be padded on their way out.
    """
    m, n, k = tile
    if record is None:
        return max(staged, m * (n * result_bytes + PADDING_BYTES))
    if is_opaque(record):
        return max(staged + slots * (m + k) * PADDING_BYTES, m * (n * sum_bytes + PADDING_BYTES))
    if not is_warpgroup(record):
        return max(staged, m * n * result_bytes)
    rows = min(STORED_COLUMNS * STORED_COLUMN_BYTES, n // warps[1] * result_bytes) * warps[1]
    if splits > 1 or result_bytes == sum_bytes:
        rows = 0  # sums leave from registers
    return staged + slots * CIRCULAR_STATE_BYTES + m * rows + ALIGNMENT_BYTES


def block_bytes(tree: TileTree, problem: Problem, resources: Resources, staged: Sequence[Placed]) -> int:
    """Shared memory of a block whose tree stages so much there."""
    held: int = sum(each.bytes for each in staged)
    products = [(leaf.op, leaf.kernel) for _, leaf in leaves(tree) if leaf.kernel is not None]
    if not products:
        return held
    (op, kernel), *others = products
    m, n, k = _extents(kernel)
    if others:
        return held + (READ_BYTES * m * n if _epilogue_reads(tree, problem, op) else 0)
    record = _record(kernel, resources)
    stored = problem.computes[-1].output.dtype
    sums = (
        bits(record.destination.dtype) // 8
        if record is not None
        else dtypes.size_bytes(problem.compute(op).output.dtype)
    )
    slots = max((each.slots for each in staged), default=1)
    return product_bytes(
        record, held, slots, (m, n, k), numbers_of(tree, "warps"), dtypes.size_bytes(stored), sums,
        number_of(tree, "splits", 1),
    )  # fmt: skip


def _record(kernel: MicroKernelRef, resources: Resources) -> Intrinsic | None:
    """The record of a product; None for multiply-adds."""
    name, known = kernel.mapping.intrinsic if kernel.mapping is not None else "", resources.intrinsics
    return known.find(name) if known is not None and name in known else None


def _extents(kernel: MicroKernelRef) -> tuple[int, int, int]:
    """Rows, columns and depth of a product of a block."""
    points = {loop.name: loop.trips for loop in kernel.quantum}
    mapping = kernel.mapping
    if mapping is None:
        return 1, 1, 1
    roles = mapping.rows, (mapping.columns,), mapping.depth
    m, n, k = (prod(points.get(name, 1) for name in names) for names in roles)
    return m, n, k


def _epilogue_reads(tree: TileTree, problem: Problem, product: str) -> bool:
    """Whether a value that is computed from a product, tile by tile, reads memory."""
    computed = {compute.name for compute in problem.computes}
    after = [leaf.op for _, leaf in leaves(tree) if leaf.kernel is None]
    return any(
        product in read and not read <= computed
        for op in after
        for read in [{tensor.name for tensor in problem.compute(op).inputs()}]
    )
