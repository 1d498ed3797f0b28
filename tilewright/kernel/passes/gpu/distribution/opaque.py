"""Products on fragments that hardware does not tell: their layouts, and where in memory fragments of a tile lie.

A fragment is loaded from a matrix in memory, and a result is stored to one, by a whole warp: all it says is where the
matrix begins and how far its rows (or columns) are apart. So memory between threads and fragments lies in rows, which
padding keeps free of bank conflicts, and no tile of fragments becomes one of another layout but by memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument, InvalidProgram
from tilewright.kernel import dialect as tile
from tilewright.kernel.indices import constant_index, divisor
from tilewright.kernel.passes.gpu.distribution.rows import Rows, padded_rows
from tilewright.kernel.passes.gpu.distribution.staging import memory_of
from tilewright.kernel.records import extents_of_record, is_opaque, lanes_of
from tilewright.kernel.simt import element_bytes
from tilewright.layouts.bits import log2
from tilewright.layouts.linear import LinearLayout
from tilewright.layouts.mma import DotOperand, Wmma, mma_warps
from tilewright.layouts.opaque import Opaque, opaque
from tilewright.layouts.shared import padding_for

if TYPE_CHECKING:
    from tilewright.intrinsics.intrinsic import Intrinsic
    from tilewright.intrinsics.registry import Registry

ALIGNMENT_BYTES = 32  # of the first element of a matrix
ROW_BYTES = 16  # of which the distance of rows is a multiple
_WIDTHS = {"f16": 2, "tf32": 1, "f64": 1}  # neighbours along k that the form of an operand has; f16 is held twice
_OTHER_WIDTH = 4

# Layouts --------------------------------------------------------------------------------------------------------------


def opaque_layouts(
    record: Intrinsic, extents: tuple[int, int, int], warps: int | tuple[int, int], lanes: int
) -> tuple[Opaque, Opaque, Opaque]:
    """Layouts of a (M x K), b (K x N) and c (M x N); `warps` are those along m and n, or how many there are.

    Raises InvalidProgram for a tile smaller than the instruction, or an instruction whose operands are not matrices of
    whole bytes.
    """
    if lanes != lanes_of(record):
        raise InvalidProgram(f"{record.name} is issued by {lanes_of(record)} lanes, a warp here has {lanes}")
    (m, n, k), own = extents, extents_of_record(record)
    if any(size < least for size, least in zip(extents, own, strict=True)):
        smallest = "x".join(map(str, own))
        raise InvalidProgram(f"a product of {m}x{n}x{k} on {record.name}", help=f"tiles of {smallest} at least")
    grid = mma_warps((m, n), warps, instr=(own[0], own[1])) if isinstance(warps, int) else warps
    try:
        parent = Wmma((grid[0], grid[1]), own)
    except InvalidArgument as error:
        raise InvalidProgram(f"{record.name} for a product in a block: {error.message}", help=error.help) from None
    width = _WIDTHS.get(record.sources[0].dtype, _OTHER_WIDTH)
    a, b = (DotOperand(index, parent, width) for index in range(2))
    return opaque(a, (m, k)), opaque(b, (k, n)), opaque(parent, (m, n))


@cache
def record_with_sums(known: Registry, instr: tuple[int, ...], type_: str) -> str:
    """The first record of a shape whose sums have a type: which factors it takes says nothing of c."""
    for record in known:
        if is_opaque(record) and extents_of_record(record) == instr and record.destination.dtype == type_:
            return record.name
    raise InvalidProgram(f"fragments of {'x'.join(map(str, instr))} with sums of {type_}", help="f16, f32, f64 or i32")


# Memory ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Matrices:
    """Where the fragments of a tile lie in memory: a corner's coordinates times `strides`, rows `line` apart.

    With `columns` it is columns that are `line` apart.
    """

    strides: tuple[int, int]
    line: int
    columns: bool

    def place(self, corner: Sequence[int]) -> int:
        """The element at which the fragment at a corner begins, from the start of the tile."""
        return sum(at * stride for at, stride in zip(corner, self.strides, strict=True))


@lru_cache(maxsize=1024)
def memory_between(source: LinearLayout, target: LinearLayout, bits: int, lies: str) -> Rows | LinearLayout:
    """Shared memory through which a tile passes between threads and fragments, one of which the layouts are.

    Rows along what a thread, or else neighbouring ones, hold side by side, as long as the tile, with padding where
    `lies` is not "plain". Fragments whose rows are shorter than their alignment lie behind each other, column of
    fragments after column; so they do where `lies` is "linear", in memory that may be reshaped. Where rows of fragments
    are too short to be apart by what hardware wants, memory has columns.
    """
    told = target if isinstance(source, Opaque) else source
    tile = next(each.tile for each in (source, target) if isinstance(each, Opaque))
    neighbours = (base.index(1) for name in ("register", "lane") for base in told.of(name) if 1 in base)
    fastest = next(neighbours, 1)
    if tile[fastest] * bits // 8 < ROW_BYTES:
        fastest = 1 - fastest
    order = (fastest, 1 - fastest)
    (rows, columns), run = told.shape, tile[fastest]
    if run * bits // 8 < ALIGNMENT_BYTES or lies == "linear":
        along, down = (
            [tuple(1 << bit if dim == each else 0 for dim in range(2)) for bit in range(log2(told.shape[each]))]
            for each in order
        )
        own = log2(run)
        return LinearLayout((("offset", (*along[:own], *down, *along[own:])),), told.outs)
    return Rows((rows, columns), order, 0 if lies == "plain" else padding_for(told.shape[fastest], bits))


def elements_in(memory: Rows | LinearLayout) -> int:
    """Elements of a tile in shared memory, with its padding."""
    return memory.elements if isinstance(memory, Rows) else 1 << memory.in_bits


def matrices_in(memory: str, extents: tuple[int, int], tile: tuple[int, int]) -> Matrices:
    """The fragments of a tile that lies in shared memory as a text says.

    Raises InvalidProgram for memory in which rows of a fragment are not equally far apart.
    """
    rows = padded_rows(memory, extents)
    if rows is not None:
        (first, second), columns = rows.strides, rows.order[0] == 0
        return Matrices((first, second), rows.line, columns)
    return _linear_matrices(memory_of(memory, extents), tile, memory)


@lru_cache(maxsize=1024)
def _linear_matrices(memory: LinearLayout, tile: tuple[int, int], text: str) -> Matrices:
    to_offset = memory.inverse()
    steps = [[base[0] for base in to_offset.of(name)] for name, _ in memory.outs]
    columns = bool(steps[0]) and steps[0][0] == 1
    fastest = 0 if columns else 1
    strides, line = [0, 0], 0
    for dim, offsets in enumerate(steps):
        own = log2(tile[dim])
        inside, outside = offsets[:own], offsets[own:]
        step = inside[0] if inside else 1
        if dim != fastest:
            line = step
        strides[dim] = outside[0] // tile[dim] if outside else step
        wanted = [step << bit for bit in range(own)] + [strides[dim] * tile[dim] << bit for bit in range(len(outside))]
        if offsets != wanted or (dim == fastest and step != 1):
            raise InvalidProgram(f"fragments of {tile[0]}x{tile[1]} in memory {text}", help="rows at equal distances")
    return Matrices((strides[0], strides[1]), line, columns)


def matrices_at(op: tile.LoadOp | tile.StoreOp, layout: Opaque) -> Matrices | None:
    """The fragments of a tile in global memory, where warps load or store them there; None where they cannot.

    Matrices have to be whole, begin at multiples of 32 bytes, and have rows at multiples of 16 bytes.
    """
    strides, size = tile.strides_of(op), element_bytes(op.view)
    if len(strides) != 2 or 1 not in strides or op.mask is not None:
        return None
    fastest = 1 if strides[1] == 1 else 0
    line = strides[1 - fastest]
    known = [constant_index(bound) for bound in op.bounds]
    if any(most is None or most < extent for most, extent in zip(known, layout.shape, strict=False)):
        return None
    if line < layout.tile[fastest] or line * size % ROW_BYTES or layout.tile[fastest] * size % ALIGNMENT_BYTES:
        return None
    if divisor(op.offset) * size % ALIGNMENT_BYTES or layout.tile[1 - fastest] * line * size % ALIGNMENT_BYTES:
        return None
    if op.align is not None and op.align.value.data < ROW_BYTES:
        return None
    return Matrices((strides[0], strides[1]), line, fastest == 0)
