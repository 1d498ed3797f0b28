"""Products of f32 in the accuracy of f32 by instructions that read tf32: three for one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, IntegerAttr, ModuleOp, TensorType, f32
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel.attributes import BLOCKS, blocks_of, registers_of
from tilewright.kernel.dialect import FuncOp, Tf32Op, shape
from tilewright.kernel.passes.gpu.factors import computed_once, factors_of, tf32_products
from tilewright.kernel.rewrite import insert_before, replace_by_values
from tilewright.kernel.simt import MmaOp

HIGH, LOW = range(2)
LOW_HIGH, HIGH_LOW, HIGH_HIGH = (LOW, HIGH), (HIGH, LOW), (HIGH, HIGH)  # which part of a times which of b
# Products that are computed side by side, each with sums of its own in registers: an instruction wants the result of
# the fourth one before it, while those between them are under way.
TOGETHER = 4


@dataclass(frozen=True)
class Tf32x3Pass(ModulePass):
    """Make three products of each with precision "tf32x3", on fragments that are split once.

    Before:  %d = simt.mma "mma_m16n8k8_tf32_f32" %a, %b, %c precision "tf32x3"
    After:   %x = tile.tf32 "high" %a   %p = tile.tf32 "low" %a   %y = tile.tf32 "high" %b   %q = tile.tf32 "low" %b
             %e = simt.mma "…" %p, %y, %zero   %f = simt.mma "…" %x, %q, %e   %g = simt.mma "…" %x, %y, %f
             %d = arith.addf %c, %g
    The three products of one step of k are summed from zero, and the result is added to the running sum by an addition
    that rounds to nearest. A tensor core rounds its sums toward zero: over a long k the error of a running sum that it
    computes grows with the number of steps, to 3e-5 of the result for k = 4096 (Ootomo and Yokota, "Recovering single
    precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance", 2022).
    The small products come first. Of `TOGETHER` neighbours that do not wait for each other all first products come
    before all second ones. What is left out, products of two low parts, is below 2^-22 of the product. An infinite
    factor has a high part of 1, so that its products are those of f32: its low part is infinite. A kernel that says
    nothing of its registers asks for those of one block on a multiprocessor: `ptxas` 13.0 otherwise keeps registers
    free for further blocks, lets products wait for each other (11 instead of 8 cycles for each) and spills. Legal
    always. Afterwards no product has a precision. Comes after `prefetch-fragments`.
    """

    name = "tf32x3"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and kernel.block:
                products = [each for each in tf32_products(kernel) if each.precision is not None]
                if products and blocks_of(kernel) is None and registers_of(kernel) is None:
                    kernel.attributes[BLOCKS] = IntegerAttr(1, 64)
                parts = computed_once(factors_of(products), lambda each: (Tf32Op("high", each), Tf32Op("low", each)))
                factors = {each: (parts[each.a], parts[each.b]) for each in products}  # a factor may be a sum
                for group in list(_groups(products)):
                    for start in range(0, len(group), TOGETHER):
                        _split(group[start : start + TOGETHER], factors)


def _groups(products: list[MmaOp]) -> Iterator[list[MmaOp]]:
    """Runs of products of which none, and nothing between them, waits for another."""
    group: list[MmaOp] = []
    for each in products:
        if group and not _is_free(each, group):
            yield group
            group = []
        group.append(each)
    if group:
        yield group


def _is_free(op: MmaOp, group: list[MmaOp]) -> bool:
    """Whether nothing from the last of a group to an operation reads a result of the group."""
    between = group[-1].next_op
    while between is not None:
        if any(operand.owner in group for each in between.walk() for operand in each.operands):
            return False
        if between is op:
            return True
        between = between.next_op
    return False


Parts = tuple[SSAValue, ...]  # high and low


def _split(group: list[MmaOp], factors: Mapping[MmaOp, tuple[Parts, Parts]]) -> None:
    zeros = {extents: _zeros(extents) for extents in dict.fromkeys(shape(each.c) for each in group)}
    insert_before(group[0], *zeros.values())
    sums: list[SSAValue] = [zeros[shape(each.c)].result for each in group]
    for of_a, of_b in (LOW_HIGH, HIGH_LOW, HIGH_HIGH):
        for number, each in enumerate(group):
            a, b = factors[each]
            made = MmaOp(each.intrinsic.data, a[of_a], b[of_b], sums[number])
            made.location = each.location
            insert_before(each if (of_a, of_b) == LOW_HIGH else group[-1], made)
            sums[number] = made.result
    for each, total in zip(group, sums, strict=True):
        added = arith.AddfOp(each.c, total)
        added.location = each.location
        insert_before(group[-1], added)
        added.result.name_hint = each.result.name_hint
        replace_by_values(each, [added.result])


def _zeros(extents: tuple[int, ...]) -> arith.ConstantOp:
    return arith.ConstantOp(DenseIntOrFPElementsAttr.from_list(TensorType(f32, extents), [0.0]))
