"""Element work on the factors of products of fragments: once for each fragment, where it costs least."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from xdsl.ir import Block, Operation, SSAValue

from tilewright.kernel.dialect import FuncOp, operations
from tilewright.kernel.passes.gpu.distribution.matrix import reads_tf32
from tilewright.kernel.records import record_of
from tilewright.kernel.rewrite import insert_before
from tilewright.kernel.simt import MmaOp


def tf32_products(kernel: FuncOp) -> list[MmaOp]:
    """The products of a kernel that read f32 as tf32, in order."""
    products = [op for op in operations(kernel.body) if isinstance(op, MmaOp)]
    return [op for op in products if reads_tf32(record_of(op))]


def factors_of(products: Iterable[MmaOp]) -> dict[SSAValue, list[MmaOp]]:
    """The fragments that products multiply, and by which they are read."""
    found: dict[SSAValue, list[MmaOp]] = {}
    for product in products:
        for factor in dict.fromkeys((product.a, product.b)):
            found.setdefault(factor, []).append(product)
    return found


def computed_once(
    factors: Mapping[SSAValue, list[MmaOp]], make: Callable[[SSAValue], tuple[Operation, ...]]
) -> dict[SSAValue, tuple[SSAValue, ...]]:
    """The results of `make` for every factor, made before the first product that reads it.

    What is read in a loop and not changed there is made before the loop.
    """
    orders: dict[Block, dict[Operation, int]] = {}
    places: dict[SSAValue, Operation] = {}
    for factor, products in factors.items():
        block = factor.owner if isinstance(factor.owner, Block) else factor.owner.parent
        assert block is not None, "factors are made in blocks"
        order = orders.setdefault(block, {op: number for number, op in enumerate(block.ops)})
        places[factor] = min((_in(block, product) for product in products), key=order.__getitem__)
    found: dict[SSAValue, tuple[SSAValue, ...]] = {}
    for factor, place in places.items():
        ops = make(factor)
        for op in ops:
            op.location = factors[factor][0].location
        insert_before(place, *ops)
        found[factor] = tuple(op.results[0] for op in ops)
    return found


def _in(block: Block, op: Operation) -> Operation:
    """The operation of a block that an operation is, or is inside of."""
    found: Operation | None = op
    while found is not None and found.parent is not block:
        found = found.parent_op()
    assert found is not None, "what is read was made before, outside or beside"
    return found
