"""Products of tiles on the warps' matrix instructions: layouts of the operands, and which registers are a fragment."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from tilewright.errors import InvalidProgram
from tilewright.kernel.dialect import DotOp, shape
from tilewright.kernel.passes.gpu.distribution.layout import canonical
from tilewright.kernel.passes.gpu.distribution.multiply_add import multiply_add_layouts
from tilewright.kernel.passes.gpu.distribution.opaque import opaque_layouts
from tilewright.kernel.records import FMA, extents_of_record, fragments_record, is_opaque, lanes_of
from tilewright.kernel.simt import ROW_BYTES, THREE_PRODUCTS
from tilewright.layouts.bits import is_power_of_two, log2
from tilewright.layouts.linear import LinearLayout, along, dims, linear, product, repeated
from tilewright.layouts.mma import mma_warps

if TYPE_CHECKING:
    from tilewright.intrinsics.intrinsic import Intrinsic

Layouts = tuple[LinearLayout, LinearLayout, LinearLayout]


@lru_cache(maxsize=1024)
def dot_layouts(
    record: Intrinsic | None, extents: tuple[int, int, int], warps: int | tuple[int, int], lanes: int = 32,
    transposed: bool = False,
) -> Layouts:  # fmt: skip
    """Layouts of a (M x K), b (K x N) and c (M x N) for an instruction of one warp, or (None) for multiply-adds.

    `transposed`: of a product that is computed as ``c^T = b^T a^T``, which `can_transpose` has to say of the
    instruction. `warps` are those along m and n, or how many there are.
    Raises InvalidProgram for another instruction, and for a tile that is smaller than the instruction.
    """
    if record is None:
        grid = mma_warps(extents[:2], warps) if isinstance(warps, int) else warps
        return multiply_add_layouts(extents, (grid[0], grid[1]), lanes)
    if is_opaque(record):
        return opaque_layouts(record, extents, warps, lanes)
    a, b, c = one_warp(record, transposed)
    if 1 << len(c.of("lane")) != lanes:
        own = 1 << len(c.of("lane"))
        raise InvalidProgram(f"{record.name} is issued by {own} lanes, a warp here has {lanes}")
    m, n, k = extents
    own_m, own_n, own_k = *c.shape, a.shape[1]
    if m < own_m or n < own_n or k < own_k:
        smallest = f"{own_m}x{own_n}x{own_k}"
        raise InvalidProgram(f"a product of {m}x{n}x{k} on {record.name}", help=f"tiles of {smallest} at least")
    along_m, along_n = mma_warps((m, n), warps, instr=(own_m, own_n)) if isinstance(warps, int) else warps
    rows, columns = dims(2)
    down, across = along("warp", along_m, rows), along("warp", along_n, columns)
    left = product(2, a, repeated("warp", along_n), down).fit((m, k), (1, 0))
    right = product(2, b, across, repeated("warp", along_m)).fit((k, n), (0, 1))
    order = _order_of_k(record, left)
    return (
        canonical(_reordered(left, 1, order)),
        canonical(_reordered(right, 0, order)),
        canonical(product(2, c, across, down).fit((m, n), (1, 0))),
    )


def _order_of_k(record: Intrinsic, left: LinearLayout) -> dict[int, int]:
    """The place that every bit of k takes, where lanes load what they hold of a: in runs of 16 bytes.

    b takes its terms in the same order, and a sum may take them in any. Where rows of matrices are loaded for other
    lanes, as they are for ``ldmatrix``, bits stay where they are.
    """
    from tilewright.intrinsics.elements import bits

    loads = [move.via for move in record.memory if move.operand == record.sources[0].role]
    held, others = ([base[1] for base in left.of(name) if base[1]] for name in ("register", "lane"))
    if any(via != "vector load" for via in loads):
        return {}
    run = log2(ROW_BYTES * 8 // bits(record.sources[0].dtype))
    return {bit: 1 << place for place, bit in enumerate([*held[:run], *others, *held[run:]])}


def _reordered(layout: LinearLayout, dim: int, order: Mapping[int, int]) -> LinearLayout:
    """The layout with the bits of one coordinate in other places."""
    bases = tuple(
        (name, tuple((*base[:dim], order.get(base[dim], base[dim]), *base[dim + 1 :]) for base in vectors))
        for name, vectors in layout.bases
    )
    return LinearLayout(bases, layout.outs)


@lru_cache(maxsize=1024)
def fragments(
    layout: LinearLayout, one: LinearLayout, own: tuple[int, ...] | None = None
) -> dict[tuple[int, ...], tuple[int, ...]]:
    """The registers of every fragment in a thread's part of a tile, by where the fragment begins in that part.

    `one` is the layout of a single fragment in a single warp. `own` are the bits of the numbers of its registers in
    those of the tile; None: the first ones, as in `dot_layouts`.
    """
    bases = list(layout.of("register"))
    own = tuple(range(len(one.of("register")))) if own is None else own
    assert len(layout.of("lane")) == len(one.of("lane")), f"lanes of {layout} are not those of {one}"
    found = {}
    rest = [bit for bit in range(len(bases)) if bit not in own]
    for number in range(1 << len(rest)):
        start, registers = [0] * len(layout.shape), 0
        for place, bit in enumerate(rest):
            if number >> place & 1:
                registers |= 1 << bit
                start = [s ^ part for s, part in zip(start, bases[bit], strict=True)]
        found[tuple(start)] = tuple(
            registers | sum(1 << bit for place, bit in enumerate(own) if element >> place & 1)
            for element in range(1 << len(own))
        )
    return found


def extents_of(op: DotOp) -> tuple[int, int, int]:
    """M, N and K of a product of tiles; raises InvalidProgram for one that its instruction does not compute."""
    check_signs(op)
    (m, k), (_, n) = shape(op.a), shape(op.c)
    if len(shape(op.b)) != 2:
        raise InvalidProgram(f"grouped operands {op.b.type} in a block", help="b is K x N")
    return m, n, k


def read_as(op: DotOp) -> str:
    """The precision of the products of fragments that a product of tiles becomes.

    Raises InvalidProgram where an instruction reads fewer bits of f32 than the product asks for.
    """
    record = None if op.precision is None else fragments_record(op)
    if op.precision is None or record is None or not reads_tf32(record):
        return ""
    precision = op.precision.data
    if precision == "ieee":
        raise InvalidProgram(f"{record.name} reads f32 as tf32: precision {precision!r}", help=f'"{FMA}"')
    return THREE_PRODUCTS if precision == THREE_PRODUCTS else ""


def reads_tf32(record: Intrinsic) -> bool:
    """Whether an instruction reads its factors, f32, as tf32."""
    return record.sources[0].dtype == "tf32"


def check_signs(op: DotOp) -> None:
    """Raises InvalidProgram where an instruction reads integers with another sign than the product of tiles has."""
    record, said = fragments_record(op), op.unsigned.data
    if record is None:
        return
    kinds = [(name, source.dtype) for name, source in zip("ab", record.sources, strict=False)]
    wanted = "".join(name for name, dtype in kinds if dtype[0] == "u")
    if any(dtype[0] in "iu" and (name in said) != (name in wanted) for name, dtype in kinds):
        types = ", ".join(f"{name} as {dtype}" for name, dtype in kinds)
        raise InvalidProgram(f'{record.name} reads {types}: unsigned "{said}"', help=f'unsigned "{wanted}"')


@cache
def one_warp(record: Intrinsic, transposed: bool = False) -> Layouts:
    """Layouts of the fragments of one instruction: a (M x K), b (K x N), c (M x N), which may be transposed.

    Raises InvalidProgram for a record that is not a product of fragments, or whose fragments are not linear.
    """
    if is_opaque(record):
        return opaque_layouts(record, extents_of_record(record), (1, 1), lanes_of(record))
    found = [fragment_layout(record, number) for number in range(len(record.operands))]
    if len(found) != 3 or any(len(layout.shape) != 2 for layout in found):
        raise InvalidProgram(
            f"intrinsic {record.name!r} for a product in a block",
            help="a record of a warp with documented fragment layouts",
        )
    a, b, c = found
    return a, b, turned(c) if transposed else c


@cache
def can_transpose(record: Intrinsic) -> bool:
    """Whether lanes hold rows of a as they hold columns of b, and neighbours of a column of c.

    Of ``c^T = b^T a^T`` they then hold neighbours of a row of c, which may be side by side in memory.
    """
    if is_opaque(record) or record.sources[0].dtype != record.sources[1].dtype:
        return False
    a, b, c = one_warp(record)
    return a == turned(b) and c.of("register")[:1] == ((1, 0),)


def is_transposed(record: Intrinsic, c: LinearLayout) -> bool:
    """Whether a product that leaves its sums in a layout is computed so."""
    return can_transpose(record) and c.of("register")[:1] == ((0, 1),)


def turned(layout: LinearLayout) -> LinearLayout:
    """The layout of the transposed tile."""
    bases = tuple((name, tuple((column, row) for row, column in vectors)) for name, vectors in layout.bases)
    return LinearLayout(bases, tuple(zip(layout.out_names, reversed(layout.shape), strict=True)))


def fragment_layout(record: Intrinsic, number: int) -> LinearLayout:
    """The layout of one operand of a record: registers and lanes to its tile."""
    from tilewright.intrinsics.fragments import places
    from tilewright.intrinsics.intrinsic import Fragment

    operand = record.operands[number]
    fragment, tile = operand.layout, record.shape(operand)
    fits = isinstance(fragment, Fragment) and is_power_of_two(fragment.lanes) and is_power_of_two(fragment.elements)
    if not isinstance(fragment, Fragment) or not fits or not all(map(is_power_of_two, tile)):
        reason = f"{operand.role} of {record.name} is {operand.layout} of {'x'.join(map(str, tile))}"
        raise InvalidProgram(
            f"{reason}, for a product in a block", help="a record of a warp with documented fragment layouts"
        )
    where = places(fragment)
    lanes = [tuple(int(index[1 << bit, 0]) for index in where) for bit in range(log2(fragment.lanes))]
    registers = [tuple(int(index[0, 1 << bit]) for index in where) for bit in range(log2(fragment.elements))]
    layout = linear(tile, register=registers, lane=lanes)
    if any((table != index).any() for table, index in zip(layout.coordinates(), where, strict=True)):
        raise InvalidProgram(f"{operand.role} of {record.name}: a fragment not linear in the bits of its places")
    return layout
