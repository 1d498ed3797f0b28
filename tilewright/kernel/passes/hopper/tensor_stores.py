"""Results of products by the copy engine, while threads go on with the next tile."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel import circular_buffer
from tilewright.kernel import dialect as tile
from tilewright.kernel.attributes import warps_of
from tilewright.kernel.bulk_stores import BulkStoreOp, FinishStoresOp
from tilewright.kernel.dialect import FuncOp, ReturnOp, operations, shape
from tilewright.kernel.facts import facts_of
from tilewright.kernel.passes.hopper.linear_form import emitted
from tilewright.kernel.passes.hopper.tensor_copies import tensor_of
from tilewright.kernel.rewrite import erase, insert_before
from tilewright.kernel.simt import element_bytes
from tilewright.layouts.copy_engine import BOX_EXTENT, widest_span
from tilewright.machine.units import WARPGROUP_UNITS

ELEMENT_BYTES = 2  # of what leaves so: wider sums fill sectors of global memory straight from registers


@dataclass(frozen=True)
class TensorStoresPass(ModulePass):
    """Store the result of a product of four warps by boxes, through shared memory.

    Before:  tile.store %r, %c[…]                                          tile.return
    After:   tile.bulk_store %r to %c[%i, %j] extents … box [128, 64] …     tile.finish_stores  tile.return
    Legal for tiles of 16-bit elements that lie in rows of a multiple of 16 bytes, without a mask, in memory that
    nothing else in the kernel touches. Bounds are those of the tensor. For kernels with circular buffers: comes after
    `tensor-copies`.
    """

    name = "tensor-stores"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if not facts_of(op).units >= WARPGROUP_UNITS:
            return
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and not kernel.block:
                ops = operations(kernel.body)
                products = [each for each in ops if isinstance(each, circular_buffer.StagedDotOp)]
                stores = [each for each in ops if isinstance(each, tile.StoreOp)]
                made = [_store(each, kernel, products, ops) for each in stores]
                last = kernel.body.block.last_op
                if any(made):
                    assert isinstance(last, ReturnOp)
                    insert_before(last, FinishStoresOp())


def _store(
    store: tile.StoreOp, kernel: FuncOp, products: list[circular_buffer.StagedDotOp], ops: list[Operation]
) -> bool:
    """Replace a store where that is legal; whether it was."""
    extents, size, warps = shape(store.value), element_bytes(store.view), warps_of(kernel)
    product = next((each for each in products if shape(each.c) == extents), None)
    if product is None or warps is None or size != ELEMENT_BYTES or store.mask is not None:
        return False
    if not isinstance(store.view.owner, Block) or _is_touched_elsewhere(store, ops):
        return False
    strides = tile.strides_of(store)
    swizzle = widest_span(extents[1] * size)
    if strides[1] != 1 or swizzle is None:
        return False
    tensor = tensor_of(store.view, store.offset, store.bounds, extents, strides)
    if tensor is None:
        return False
    width = swizzle // size
    if extents[1] // warps[1] < width:
        return False
    box = tensor.box(min(extents[0], BOX_EXTENT), width, swizzle)
    turns = extents[1] // warps[1] // width

    def add(op: Operation) -> SSAValue:
        insert_before(store, op)
        return op.results[0]

    where = [emitted(form, add) for form in tensor.coordinates]
    insert_before(store, BulkStoreOp(store.value, store.view, where, box, product.intrinsic.data, turns))
    erase(store)
    return True


def _is_touched_elsewhere(store: tile.StoreOp, ops: list[Operation]) -> bool:
    """Whether anything else touches the memory."""
    return any(store.view in op.operands for op in ops if op is not store)
