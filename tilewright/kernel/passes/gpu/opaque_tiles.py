"""What may be done to tiles of fragments of an unspecified layout, and in which layout the rest is done."""

from __future__ import annotations

from math import prod

from xdsl.dialects import arith, scf
from xdsl.ir import Operation, SSAValue

from tilewright.kernel import dialect as tile
from tilewright.kernel.dialect import element, shape
from tilewright.kernel.elements import ELEMENT
from tilewright.kernel.passes.gpu.distribution.layout import layout_of
from tilewright.kernel.passes.gpu.distribution.opaque import matrices_at
from tilewright.kernel.readers import readers
from tilewright.kernel.rewrite import uniform
from tilewright.layouts.opaque import Opaque


def takes_fragments(op: Operation, stage_c: bool) -> bool:
    """Whether an operation reads its tiles wherever fragments hold their elements.

    Products and loops do, stores to where a warp can store fragments, and what treats every element alike: element
    operations on tiles in one layout and on what is the same everywhere, as long as elements stay what they are.
    `stage_c` has all results pass through shared memory.
    """
    if isinstance(op, tile.DotOp | scf.ForOp | scf.IfOp | scf.YieldOp):
        return True
    tiles = [operand for operand in op.operands if shape(operand)]
    layouts = {layout for each in tiles if isinstance(layout := layout_of(each), Opaque)}
    if not layouts:
        return True
    (first, *others) = layouts
    if isinstance(op, tile.StoreOp):
        return not stage_c and matrices_at(op, first) is not None
    if others or op.name not in ELEMENT or first.operand != "c":
        return False
    types = {element(each) for each in (*tiles, *op.results)}
    return len(types) == 1 and all(layout_of(each) == first or is_alike(each) for each in tiles)


def is_alike(value: SSAValue) -> bool:
    """Whether all elements of a tile are the same, so that it is made in any layout."""
    owner = value.owner
    if isinstance(owner, tile.BroadcastOp):
        return not shape(owner.value)
    return isinstance(owner, arith.ConstantOp) and uniform(value) is not None


def store_of(value: SSAValue) -> tile.StoreOp | None:
    """The first store that a tile comes to by way of loops, element operations and reshapes, as a tile of its size."""
    found = (op for op in readers(value, _keeps_elements) if isinstance(op, tile.StoreOp))
    return next((op for op in found if prod(shape(op.value)) == prod(shape(value))), None)


def _keeps_elements(op: Operation) -> bool:
    return isinstance(op, tile.ReshapeOp | tile.ConvertOp) or op.name in ELEMENT
