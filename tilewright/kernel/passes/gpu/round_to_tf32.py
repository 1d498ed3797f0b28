"""Factors of products that hardware would cut to tf32, rounded to nearest before."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel.dialect import FuncOp, Tf32Op, operations
from tilewright.kernel.hopper.simt_warpgroup import WarpgroupFenceOp, WarpgroupMmaOp
from tilewright.kernel.passes.gpu.distribution.matrix import reads_tf32
from tilewright.kernel.passes.gpu.factors import computed_once, factors_of, tf32_products
from tilewright.kernel.records import record_of
from tilewright.kernel.rewrite import insert_before
from tilewright.kernel.simt import JoinOp, PartOp


@dataclass(frozen=True)
class RoundToTf32Pass(ModulePass):
    """Round the fragments that products read as tf32, each once: half the error of those that are cut.

    Before:  %d = simt.mma "mma_m16n8k8_tf32_f32" %a, %b, %c
    After:   %x = tile.tf32 "nearest" %a   %y = tile.tf32 "nearest" %b   %d = simt.mma "mma_m16n8k8_tf32_f32" %x, %y, %c
    A fragment that several products read is rounded before the first of them; one that was read a trip ahead, in the
    trip that multiplies; one that a loop does not change, before the loop; one of four warps, where it is read. Legal
    always. What products of four warps read in shared memory themselves stays as it is. Comes after
    `prefetch-fragments`, which looks for products behind what it reads ahead.
    """

    name = "round-to-tf32"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and kernel.block:
                products = [each for each in tf32_products(kernel) if each.precision is None]
                raw = {factor: found for factor, found in factors_of(products).items() if not _is_tf32(factor)}
                for factor, (rounded,) in computed_once(raw, lambda factor: (Tf32Op("nearest", factor),)).items():
                    for product in raw[factor]:
                        for place in (0, 1):
                            if product.operands[place] is factor:
                                product.operands[place] = rounded
                for fence in [each for each in operations(kernel.body) if isinstance(each, WarpgroupFenceOp)]:
                    _round_behind(fence)


def _round_behind(fence: WarpgroupFenceOp) -> None:
    """Round what becomes a factor of products of four warps behind a fence, where it is made: they have time there."""
    for place, (value, made) in enumerate(zip(fence.values, fence.made, strict=True)):
        readers = [use.operation for use in made.uses]
        if any(isinstance(op, WarpgroupMmaOp) and op.a is made and reads_tf32(record_of(op)) for op in readers):
            owner = value.owner
            if isinstance(owner, Operation) and not _is_tf32(value):
                rounded = Tf32Op("nearest", value)
                rounded.location = owner.location
                following = owner.next_op
                assert following is not None, "the fence is behind"
                insert_before(following, rounded)
                fence.operands[place] = rounded.result


def _is_tf32(value: SSAValue) -> bool:
    """Whether reading a fragment as tf32 was thought of before."""
    owner = value.owner
    if isinstance(owner, PartOp | JoinOp):
        return all(_is_tf32(operand) for operand in owner.operands)
    return isinstance(owner, Tf32Op)
