"""What threads do to load, store and gather tiles of global memory."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.ir import Block, SSAValue

from tilewright.kernel import dialect as tile
from tilewright.kernel import simt
from tilewright.kernel.dialect import INDEX, strides_of
from tilewright.kernel.passes.gpu.distribution.access import Access
from tilewright.kernel.passes.gpu.distribution.expansion import Expansion
from tilewright.kernel.passes.gpu.distribution.gathers import wide
from tilewright.kernel.passes.gpu.distribution.layout import assigned_layout, owners, registers
from tilewright.kernel.passes.gpu.distribution.opaque_moves import load_tile, store_tile
from tilewright.kernel.simt import element_bytes
from tilewright.layouts.linear import LinearLayout
from tilewright.layouts.opaque import Opaque


def load(at: Expansion, op: tile.LoadOp) -> SSAValue:
    """As many elements at once as a thread holds side by side."""
    layout = assigned_layout(op.result)
    if isinstance(layout, Opaque):
        return load_tile(at, op, layout, at.values[op.view], at.values[op.offset])
    access = _access(at, op, layout)
    mask = None if op.mask is None else at.values[op.mask]
    pieces = []
    for start in range(0, registers(op.result), access.width):
        offset, bounds, allowed = access.place(start)
        own = None if mask is None else at.part(mask, start, access.width)
        inside = _both(at, allowed, own, access.width)
        extents, strides = (access.width,), (access.stride,)
        piece = tile.LoadOp(at.values[op.view], offset, extents, strides, bounds, inside, access.align)
        pieces.append(at.add(piece).results[0])
    return at.joined(pieces)


def store(at: Expansion, op: tile.StoreOp) -> None:
    """Every element by the first thread that holds it; between barriers where the kernel reads the view, too."""
    layout = assigned_layout(op.value)
    access = _access(at, op, layout)
    mask = None if op.mask is None else at.values[op.mask]
    value = at.values[op.value]
    free, first = owners(layout)

    def write() -> None:
        for start in range(0, registers(op.value), access.width):
            if start not in first:
                continue
            offset, bounds, allowed = access.place(start)
            own = None if mask is None else at.part(mask, start, access.width)
            inside = _both(at, allowed, own, access.width)
            piece, view, strides = at.part(value, start, access.width), at.values[op.view], (access.stride,)
            streams = op.nontemporal is not None
            at.add(tile.StoreOp(piece, view, offset, strides, bounds, inside, streams, access.align))

    ordered = op.view in at.settings.read
    if ordered:
        at.add(simt.BarrierOp())
    if isinstance(layout, Opaque):
        store_tile(at, op, layout, value, at.values[op.view], at.values[op.offset])
    else:
        at.where_free_is_zero(free, write)
    if ordered:
        at.add(simt.BarrierOp())


def gather(at: Expansion, op: tile.GatherOp) -> SSAValue:
    """Offsets that are known to lie side by side are read as a load reads them."""
    mask, offsets, view = None if op.mask is None else at.values[op.mask], at.values[op.offsets], op.view
    assert at.settings.facts is not None, "made for kernels with gathers"
    found = wide(op, assigned_layout(op.result), at.settings.facts) if isinstance(view.owner, Block) else None
    if found is None:
        return at.add(tile.GatherOp(at.values[view], offsets, mask)).results[0]
    pieces = []
    for start in range(0, registers(op.result), found.width):
        first = at.add(arith.IndexCastOp(at.scalar(at.part(offsets, start)), INDEX)).results[0]
        own = None if mask is None else at.part(mask, start, 1 if found.together else found.width)
        inside = at.repeated(at.scalar(own), found.width) if own is not None and found.together else own
        piece = tile.LoadOp(at.values[view], first, (found.width,), (1,), (), inside, found.align)
        pieces.append(at.add(piece).results[0])
    return at.joined(pieces)


def _access(at: Expansion, op: tile.LoadOp | tile.StoreOp, layout: LinearLayout) -> Access:
    return Access(at, layout, strides_of(op), at.values[op.offset], [at.values[b] for b in op.bounds],
                   1 if op.align is None else op.align.value.data, element_bytes(op.view))  # fmt: skip


def _both(at: Expansion, allowed: SSAValue | None, mask: SSAValue | None, width: int) -> SSAValue | None:
    """Both conditions of an access: one of the thread, one of each element."""
    if allowed is None:
        return mask
    repeated = at.repeated(allowed, width)
    return repeated if mask is None else at.add(arith.AndIOp(repeated, mask)).results[0]
