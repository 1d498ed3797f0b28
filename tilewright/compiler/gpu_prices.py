"""Predicted cycles of products on a GPU before their operands are placed."""

from __future__ import annotations

from math import inf

from tilewright.compiler.gpu_products import tile_of_product
from tilewright.compiler.gpu_relayouts import second_factors
from tilewright.compiler.planning import Planning
from tilewright.compiler.products import guard_of, unit_loops
from tilewright.expr import dtypes
from tilewright.expr.core import Compute, Read, Tensor, static_shape
from tilewright.expr.rewrite import substitute
from tilewright.instruction.products import MappedProduct
from tilewright.layouts import Packed, permuted, row_major
from tilewright.machine.description import Gpu
from tilewright.operator.flatten import address
from tilewright.operator.product_loops import merge_product_loops
from tilewright.operator.rules.gpu_product import loops_of_bulk_copies
from tilewright.tiles.product import Operand, flat_product


def combined_cycles(planning: Planning, node: Compute, machine: Gpu) -> float | None:
    """Predicted cycles of a kernel of a product with its launch; None where there is no price.

    Its first factor is taken to be stored with what is summed innermost.
    """
    product = planning.product_of(node)
    if product is None:
        return None
    read = substitute(product.a, unit_loops(node))
    assert isinstance(read, Read)
    summed = [dim for dim, index in enumerate(read.indices) if index in product.depth]
    shape = static_shape(read.tensor.shape)
    layout = permuted(shape, [*(dim for dim in range(len(shape)) if dim not in summed), *summed])
    cycles = product_cycles(planning, product, layout, machine)
    return None if cycles == inf else cycles + machine.launch_seconds * machine.clock_hz


def product_cycles(
    planning: Planning, product: MappedProduct, layout: Packed, machine: Gpu, boxes: bool = False
) -> float:  # fmt: skip
    """Predicted cycles of a product whose first factor has this layout.

    With `boxes`, tensor-map boxes bring the factor; infinite where the copy engine cannot.
    """
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
