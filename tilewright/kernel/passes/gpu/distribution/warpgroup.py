"""Products of four warps in a block: the layout of a result, and where the part of an operand lies in memory."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram
from tilewright.kernel.passes.gpu.distribution.layout import canonical
from tilewright.kernel.passes.gpu.distribution.matrix import fragment_layout
from tilewright.kernel.records import extents_of_record, is_of_four_warps
from tilewright.kernel.simt_warpgroup import ROWS, WARPS, Matrix
from tilewright.layouts.bits import log2
from tilewright.layouts.linear import LinearLayout, along, dims, product
from tilewright.layouts.shared import NvmmaShared
from tilewright.layouts.text import parse

if TYPE_CHECKING:
    from tilewright.intrinsics.intrinsic import Intrinsic


@lru_cache(maxsize=1024)
def result_layout(record: Intrinsic, extents: tuple[int, int], warps: tuple[int, int]) -> LinearLayout:
    """The layout of a result of `extents`; `warps` are those along m and n.

    Raises InvalidProgram where groups of four warps cannot share it.
    """
    if not is_of_four_warps(record):
        raise InvalidProgram(f"{record.name!r} is no product of four warps", help="a record of the group warpgroup128")
    _, n, _ = extents_of_record(record)
    if warps[0] % WARPS or extents[0] < ROWS * warps[0] // WARPS or extents[1] < n * warps[1]:
        least = f"{ROWS * warps[0] // WARPS}x{n * warps[1]}"
        raise InvalidProgram(
            f"{record.name} on {warps[0]}x{warps[1]} warps: a tile of {extents}", help=f"{least} at least"
        )
    rows, columns = dims(2)
    groups = along("warp", warps[0] // WARPS, rows), along("warp", warps[1], columns)
    return canonical(product(2, one_result(record), *groups).fit(extents, (1, 0)))


@cache
def one_result(record: Intrinsic) -> LinearLayout:
    """The layout of one result in registers, lanes and the warps of a group, as the record tells it."""
    fragments = fragment_layout(record, 2)
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
