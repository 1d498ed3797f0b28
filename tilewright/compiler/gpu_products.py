"""Products of a graph on the blocks of a GPU: where results and constant factors are stored, and the kernel."""

from __future__ import annotations

from dataclasses import replace

from tilewright.compiler.packed import place_relayout
from tilewright.compiler.planning import Planning, Stored, points
from tilewright.compiler.products import work_of
from tilewright.compiler.rows import fill_borders
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.rewrite import transform
from tilewright.graph.groups import Group
from tilewright.instruction.block_tiles import is_warpgroup
from tilewright.instruction.gpu_products import block_shape
from tilewright.instruction.panels import with_last
from tilewright.instruction.products import MappedProduct, walked_dimension
from tilewright.instruction.relayout import packed
from tilewright.machine.description import Gpu
from tilewright.operator.block_tree import block_tree
from tilewright.operator.flatten import address
from tilewright.operator.product_loops import merge_product_loops
from tilewright.operator.rules.gpu_product import loops_of_bulk_copies, loops_of_threads, schedule_blocks
from tilewright.tiles.product import Operand


def plan_product(planning: Planning, group: Group, machine: Gpu) -> None:
    """Place the result of a product with its epilogue, and add its kernel."""
    plan, options = planning.plan, planning.options
    node, result = group.main, group.nodes[-1]
    product, decision = planning.find_product(node)
    assert product is not None
    assert decision is not None
    position = len(plan.decisions)
    n_dim = node.axes.index(product.columns)
    planning.place_result(result.output, [d for d in range(len(node.axes)) if d != n_dim] + [n_dim])
    fill_borders(planning, group.stored)
    b = _factor(planning, product)
    factor = Operand(b.flat, address(b.layout, product.b.indices))
    work = merge_product_loops(work_of(planning, group, result.output, product, product.depth, product.a, factor))
    threads = loops_of_threads(work)
    boxes, no_boxes = loops_of_bulk_copies(work, dtypes.size_bytes(product.a.dtype))
    shape, chosen = block_shape(
        product, machine, input_precision=options.input_precision, intrinsics=planning.intrinsics, off=options.disable,
        no_bulk_copies=no_boxes, result=result.output.dtype, loops=(threads, boxes),
        choose=lambda ranking: planning.choose.tile(ranking, node.name), route=options.mma,
        cluster=options.cluster,
    )  # fmt: skip
    records = planning.intrinsics
    running = product.on(records.find(shape.intrinsic)) if shape.intrinsic in records else product  # multiply-adds
    plan.decisions[position:position] = [replace(decision, chosen=str(running))]
    plan.decisions.append(chosen)
    bulk = shape.intrinsic in records and is_warpgroup(records.find(shape.intrinsic))
    kernel, divided = schedule_blocks(work, shape, group.kernel, boxes if bulk and boxes is not None else threads)
    plan.decisions.append(divided)
    name = planning.name_kernel(group.kernel)
    planning.add_scheduled(name, kernel, divided, (result.output.name,), 2 * points(node))
    plan.products[node.name] = {
        "kernel": name, **running.to_json(), "instruction": shape.intrinsic, "precision": shape.precision,
        "block": [shape.m, shape.n, shape.k], "warps": list(shape.warps), "stages": shape.stages,
        "splits": shape.splits, "cluster": shape.cluster, "schedule": {"tile": block_tree(kernel).points},
    }  # fmt: skip


def _factor(planning: Planning, product: MappedProduct) -> Stored:
    """How b is read: in place; a constant along neither n nor the sum that walks neighbours of a is stored along that.

    Such a constant is laid out anew when it is packed, at no cost.
    """
    node, tensor = product.compute, product.b.tensor
    stored = planning.stored(tensor)
    if tensor.name not in planning.constants:
        return stored
    in_a, in_b = (affine(address(planning.layout(read.tensor), read.indices)) for read in (product.a, product.b))
    assert in_a is not None
    assert in_b is not None
    walked = [axis for axis in product.depth if walked_dimension(product.b, axis) is not None]
    near = max(walked, key=lambda axis: (in_a.coefficient(axis) == 1, axis.extent), default=None)
    if near is None or in_b.coefficient(product.columns) == 1 or in_b.coefficient(near) == 1:
        return stored
    dim = walked_dimension(product.b, near)
    assert dim is not None
    read, order = with_last(tensor, dim)
    reason = f"{near.name} walks neighbours of {product.a.tensor.name}"
    relayout, names = packed(read, order), (index.name for index in order.indices)
    moved = relayout.output[order.places(dict(zip(names, product.b.indices, strict=True)))]
    body = transform(node.body, lambda each: moved if each == product.b else None)
    planning.plan.mapped[node.name] = (relayout, replace(node, body=body))
    return place_relayout(planning, relayout, order, read, reason)
