"""Products of four warps in a block: the layout of a result, and where the part of an operand lies in memory."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram
from tilewright.kernel.hopper.simt_warpgroup import ROWS, WARPS, Matrix
from tilewright.kernel.passes.gpu.distribution.layout import INPUTS, canonical
from tilewright.kernel.passes.gpu.distribution.matrix import fragment_layout, fragments, turned
from tilewright.kernel.records import extents_of_record, is_of_four_warps
from tilewright.layouts.bits import log2
from tilewright.layouts.linear import LinearLayout, along, dims, linear, product, repeated
from tilewright.layouts.shared import NvmmaShared
from tilewright.layouts.text import parse

if TYPE_CHECKING:
    from tilewright.intrinsics.intrinsic import Intrinsic


# Where rows of an instruction lie in memory if threads read its fragments, by the bits of their number: 1, 2 and 4 are
# of lanes, 8 of registers, 16 and 32 of warps. A thread reads 8 bytes at once, from a swizzled row of 128 bytes for
# each k; the 16 threads that are served together, 4 values of k and the lanes 1 and 2, read every bank once.
_ROW_BITS = {1: 2, 2: 16, 4: 4, 8: 1, 16: 8, 32: 32}


@lru_cache(maxsize=1024)
def result_layout(
    record: Intrinsic, extents: tuple[int, int], warps: tuple[int, int], registers: str = ""
) -> LinearLayout:
    """The layout of a result of `extents`; `warps` are those along m and n.

    `registers` is the operand whose fragments threads read, as `StagedDotOp` has it: rows of an instruction are
    distributed so that a thread's are neighbours, and are rows of the result for "a", columns for "b".
    Raises InvalidProgram where groups of four warps cannot share it.
    """
    if not is_of_four_warps(record):
        raise InvalidProgram(f"{record.name!r} is no product of four warps", help="a record of the group warpgroup128")
    outer = 1 if registers == "b" else 0
    _, n, _ = extents_of_record(record)
    least = [n * count for count in warps]
    least[outer] = ROWS * warps[outer] // WARPS
    if warps[outer] % WARPS or any(extent < each for extent, each in zip(extents, least, strict=True)):
        raise InvalidProgram(
            f"{record.name} on {warps[0]}x{warps[1]} warps: a tile of {extents}", help=f"{least[0]}x{least[1]} at least"
        )
    one = one_fragment(record, 2)
    if registers:
        one = _along_memory(one)
        one = _by_columns(turned(one) if outer else one)
    counts = [warps[0], warps[1]]
    counts[outer] //= WARPS
    groups = (along("warp", count, dim) for count, dim in zip(counts, dims(2), strict=True))
    return canonical(product(2, one, *groups).fit(extents, (1, 0)))


@lru_cache(maxsize=1024)
def held_layout(record: Intrinsic, extents: tuple[int, int], warps: tuple[int, int]) -> LinearLayout:
    """The layout of a first factor (M x K) of `extents` that threads hold; `warps` are those along m and n.

    The result is in the layout of `result_layout`.
    """
    rows, _ = dims(2)
    groups = along("warp", warps[0] // WARPS, rows), repeated("warp", warps[1])
    return canonical(product(2, one_fragment(record, 0), *groups).fit(extents, (1, 0)))


def _along_memory(one: LinearLayout) -> LinearLayout:
    """A fragment with rows distributed by `_ROW_BITS`."""
    bases = {name: [(_ROW_BITS.get(row, row), column) for row, column in one.of(name)] for name in INPUTS}
    return linear(one.shape, **bases)


def _by_columns(one: LinearLayout) -> LinearLayout:
    """A layout whose first registers are neighbours along a row, as stores want them."""
    return LinearLayout(tuple((name, tuple(sorted(v)) if name == "register" else v) for name, v in one.bases), one.outs)


@lru_cache(maxsize=1024)
def fragments_in(
    record: Intrinsic, memory: str, extents: tuple[int, int], warps: tuple[int, int], registers: str
) -> tuple[LinearLayout, LinearLayout]:
    """The layout of operand a (M x K) or b (K x N) of `extents` as fragments, and where its elements lie in memory.

    The result is in the layout of `result_layout`.
    """
    outer = 1 if registers == "b" else 0
    size = extents[outer]
    counts = [repeated("warp", count) for count in warps]
    counts[outer] = along("warp", warps[outer] // WARPS, dims(2)[0])
    one = _along_memory(one_fragment(record, 0))
    found = product(2, one, *counts).fit((size, extents[1 - outer]), (0, 1))
    layout = canonical(turned(found) if outer else found)
    form = parse(memory)
    assert isinstance(form, NvmmaShared), "what `operand_of` takes"
    return layout, layout.then(form.to_linear(extents).inverse())


def fragments_along(
    record: Intrinsic, layout: LinearLayout, number: int, registers: str
) -> dict[tuple[int, ...], tuple[int, ...]]:
    """The registers of every fragment, by where it begins, in `result_layout` (`number` 2) or `fragments_in` (0)."""
    one, turn = one_fragment(record, number), -1 if registers == "b" else 1
    bases = layout.of("register")
    own = tuple(bases.index((_ROW_BITS.get(row, row), column)[::turn]) for row, column in one.of("register"))
    return fragments(layout, canonical(one), own)


@cache
def one_fragment(record: Intrinsic, number: int) -> LinearLayout:
    """The layout of one operand or result in registers, lanes and the warps of a group, as the record tells it."""
    fragments = fragment_layout(record, number)
    lanes = fragments.of("lane")
    own = len(lanes) - log2(WARPS)
    return LinearLayout(
        (("register", fragments.of("register")), ("lane", lanes[:own]), ("warp", lanes[own:])), fragments.outs
    )


@dataclass(frozen=True)
class Operand:
    """An operand of products in shared memory: `outer` (m or n) x `depth` elements of `size` bytes.

    `along_k` says that k runs along the rows of memory; a column of rows is `columns` elements wide.
    """

    outer: int
    depth: int
    size: int
    swizzle: int
    along_k: bool

    @property
    def columns(self) -> int:
        return self.swizzle // self.size

    @property
    def rows(self) -> int:
        return self.outer if self.along_k else self.depth

    def place(self, outer: int, depth: int) -> int:
        """The element at which the part from (outer, depth) on begins, before addresses are swizzled."""
        row, column = (outer, depth) if self.along_k else (depth, outer)
        return column // self.columns * self.rows * self.columns + row * self.columns + column % self.columns

    @property
    def matrix(self) -> Matrix:
        """8 rows are a group; without K along them, columns of rows follow each other."""
        leading = 0 if self.along_k else self.rows * self.swizzle
        return Matrix(leading, 8 * self.swizzle, self.swizzle, not self.along_k)


def operand_of(memory: str, outer: int, depth: int, size: int, index: int) -> Operand:
    """Operand `index` of a product (0: outer x depth, 1: depth x outer) in a memory layout.

    Raises InvalidProgram for a layout that such products do not read.
    """
    form = parse(memory)
    if not isinstance(form, NvmmaShared) or form.bits != 8 * size:
        raise InvalidProgram(f"a product of four warps on {memory}", help="#nvmma<...> of its elements")
    return Operand(outer, depth, size, form.swizzle, form.transposed == (index == 1))
