"""Gathers of offsets that lie side by side: the layout in which they coalesce, and how wide a thread reads."""

from __future__ import annotations

from tilewright.dataclass import dataclass
from tilewright.kernel import dialect as tile
from tilewright.kernel.axis_info import AxisAnalysis
from tilewright.kernel.dialect import shape
from tilewright.kernel.passes.gpu.distribution.access import ACCESS_BYTES, neighbours
from tilewright.kernel.passes.gpu.distribution.layout import canonical
from tilewright.kernel.simt import element_bytes
from tilewright.layouts.blocked import coalesced_blocked, widest_access
from tilewright.layouts.linear import LinearLayout


def gathered_layout(
    op: tile.GatherOp, facts: AxisAnalysis, access_bytes: int, warps: int, lanes: int
) -> LinearLayout | None:
    """Neighbouring threads on neighbouring elements, where some dimension has them; else None."""
    info, extents, size = facts.of(op.offsets), shape(op.offsets), element_bytes(op.view)
    order = sorted(range(len(extents)), key=lambda dim: (extents[dim] == 1, -info.contiguity[dim], -dim))
    first = order[0]
    run = _power(info.contiguity[first])
    if run == 1:
        return None
    most = min(widest_access(run, info.divisibility[first] * size, 8 * size), max(1, access_bytes // size))
    return canonical(coalesced_blocked(extents, order, most, warps, lanes).to_linear(extents))


@dataclass(frozen=True)
class Wide:
    """Registers of a thread that one access reads, what it begins at a multiple of, and whether one mask serves it."""

    width: int
    align: int
    together: bool


def wide(op: tile.GatherOp, layout: LinearLayout, facts: AxisAnalysis) -> Wide | None:
    """How a thread reads registers that follow each other; None where every element has to be looked up."""
    info, size = facts.of(op.offsets), element_bytes(op.view)
    for dim in range(len(layout.shape)):
        most = min(_power(info.contiguity[dim]), info.divisibility[dim], max(1, ACCESS_BYTES // size))
        width = neighbours(layout, [int(other == dim) for other in range(len(layout.shape))], most)
        if width > 1:
            together = op.mask is None or facts.of(op.mask).constancy[dim] % width == 0
            return Wide(width, width * size, together)
    return None


def _power(number: int) -> int:
    return number & -number
