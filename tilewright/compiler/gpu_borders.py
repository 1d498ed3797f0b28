"""Borders of zeros that need not be in memory: what a copy engine brings from outside of a tensor is 0."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from tilewright.compiler.gpu_products import tile_of_product
from tilewright.compiler.gpu_relayouts import second_factors
from tilewright.compiler.planning import Planning
from tilewright.compiler.products import guard_of, outside, unit_loops
from tilewright.decision import Cost, Decision, Refusal
from tilewright.expr import dtypes
from tilewright.expr.core import Compute, Read, Tensor, static_shape
from tilewright.expr.rewrite import substitute
from tilewright.instruction.products import MappedProduct
from tilewright.layouts import Packed, permuted, row_major
from tilewright.machine.description import Gpu
from tilewright.machine.units import WARPGROUP_UNITS
from tilewright.operator.flatten import address
from tilewright.operator.product_loops import merge_product_loops
from tilewright.operator.rules.gpu_product import loops_of_bulk_copies
from tilewright.tiles.product import Operand, flat_product


def leave_border(planning: Planning, tensor: Tensor, order: Sequence[int], machine: Gpu) -> bool:
    """Whether the products that read a border of zeros take fewer predicted cycles without the border in memory.

    Tensor-map boxes have zeros outside of the tensor. No kernel writes a border of zeros in memory
    (`Stored.zero_border`). A border that something else than a product reads stays in memory. The choice is added to
    the plan's decisions.
    """
    border = planning.borders[tensor.name]
    if border.value.value != 0 or not machine.features >= WARPGROUP_UNITS or tensor.name in planning.views:
        return False
    readers = [user for user in planning.users.get(tensor.name, ()) if _reads_outside(user, tensor)]
    products = [planning.product_of(user) for user in readers]
    if any(each is None or each.a.tensor != tensor or each.b.tensor == tensor for each in products):
        return False
    shape = static_shape(tensor.shape)
    bare, bordered = permuted(shape, order, None), permuted(shape, order, border.widths)
    planning.borders_left_out.add(tensor.name)
    without = sum(_cycles(planning, each, bare, machine, boxes=True) for each in products if each is not None)
    planning.borders_left_out.discard(tensor.name)
    with_it = sum(_cycles(planning, each, bordered, machine) for each in products if each is not None)
    subject, boxes, memory = f"border of {tensor.name}", "zeros outside of boxes", "in memory"
    texts = f"{without:.0f} predicted cycles of what reads it", f"{with_it:.0f} predicted cycles of what reads it"
    costs = Cost(cycles=without), Cost(cycles=with_it) if with_it < inf else None
    leaves = _pays(without, with_it)
    if leaves:
        decision = Decision(subject, boxes, texts[0], memory, texts[1], (), costs[0], costs[1])
    elif without < inf:
        decision = Decision(subject, memory, texts[1], boxes, texts[0], (), costs[1], costs[0])
    else:
        refused = (Refusal(boxes, "boxes", "no copy engine brings what reads it"),)
        decision = Decision(subject, memory, texts[1], refused=refused)
    planning.plan.decisions.append(decision)
    return leaves


def _pays(without: float, with_it: float) -> bool:
    """Whether products that take so many cycles `without` a border in memory should read boxes."""
    return without < with_it


def _reads_outside(user: Compute, tensor: Tensor) -> bool:
    return any(outside(read) for read in user.reads() if read.tensor == tensor)


def _cycles(planning: Planning, product: MappedProduct, layout: Packed, machine: Gpu, boxes: bool = False) -> float:
    """Of a product that reads its first factor in a layout; with `boxes` infinite where no copy engine brings it."""
    node, unit = product.compute, unit_loops(product.compute)
    read = substitute(product.a, unit)
    assert isinstance(read, Read)
    flat = Tensor(read.tensor.name, (layout.size,), read.dtype)
    a = Operand(flat, address(layout, read.indices), guard_of(planning, read))
    total, target = Tensor(node.name, (), node.output.dtype), _stored(node)
    index = substitute(address(row_major(static_shape(node.output.shape)), node.axes), unit)
    loops = product.outer, product.rows, product.columns, product.depth

    def cycles(one: Operand, other: Operand) -> float:
        work = merge_product_loops(flat_product(*loops, one, other, total, Read(total, ()), target, index))
        if boxes and loops_of_bulk_copies(work, dtypes.size_bytes(read.dtype))[0] is None:
            return inf
        found = tile_of_product(planning, machine, product, work, node.output.dtype, lambda ranking: None)
        return inf if boxes and not found.bulk else found.cycles

    factors = second_factors(planning, product, machine)
    return min((cycles(a, each.operand) + each.cycles for each in factors), default=inf)


def _stored(node: Compute) -> Tensor:
    return Tensor(f"{node.name}.stored", (node.output.size,), node.output.dtype)
