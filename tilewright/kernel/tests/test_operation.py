"""Operations that are made past xDSL's constructor are those that it makes."""

from __future__ import annotations

import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, MemRefType, TensorType, f32, i1
from xdsl.ir import Block, SSAValue
from xdsl.irdl import IRDLOperation

from tilewright.kernel.dialect import BroadcastOp, LoadOp, SelectOp, StoreOp
from tilewright.kernel.integers import binary, index_constant
from tilewright.kernel.operation import KernelOp
from tilewright.kernel.simt import JoinOp
from tilewright.kernel.tile_types import INDEX

VIEW, OFFSET, MASK = Block(arg_types=[MemRefType(f32, [64]), INDEX, i1]).args


def same(op: IRDLOperation, operands: list[SSAValue | list[SSAValue] | None]) -> bool:
    """Whether an operation has what xDSL's constructor gives one of the same definition."""
    properties = {name: value for name, value in op.properties.items() if name != "operandSegmentSizes"}
    other = type(op).__new__(type(op))
    types = [result.type for result in op.results]
    IRDLOperation.__init__(other, operands=operands, result_types=types, properties=properties)
    return op.is_structurally_equivalent(other)


def test_operands_of_every_number_are_counted() -> None:
    assert same(LoadOp(VIEW, OFFSET), [VIEW, OFFSET, [], None])
    assert same(LoadOp(VIEW, OFFSET, (8, 4), (4, 1), [OFFSET, OFFSET]), [VIEW, OFFSET, [OFFSET, OFFSET], None])
    assert same(LoadOp(VIEW, OFFSET, mask=MASK), [VIEW, OFFSET, [], MASK])
    value = LoadOp(VIEW, OFFSET, (8,), (1,)).result
    assert same(StoreOp(value, VIEW, OFFSET, (1,), [OFFSET], align=4), [value, VIEW, OFFSET, [OFFSET], None])
    assert same(JoinOp([value, value]), [[value, value]])
    assert same(BroadcastOp(OFFSET, (4,)), [OFFSET])


@pytest.mark.parametrize(
    ("operands", "message"),
    [((None,), "OPERAND 0 'value'"), ((OFFSET, OFFSET), "Expected 1 operand, but got 2")],
)
def test_operands_of_another_number_are_refused(operands: tuple[SSAValue | None, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KernelOp.__init__(BroadcastOp.__new__(BroadcastOp), *operands, results=[INDEX])


def test_operands_and_results_are_found_by_their_place() -> None:
    first, second = Block(arg_types=[TensorType(f32, [8]), TensorType(f32, [8])]).args
    choice = SelectOp(MASK, first, second)
    assert (choice.condition, choice.yes, choice.no) == (MASK, first, second)
    assert choice.result is choice.results[0]
    choice.operands[2] = first
    assert choice.no is first


@pytest.mark.parametrize("kind", [arith.AddiOp, arith.MuliOp, arith.AndIOp, arith.ShLIOp, arith.ShRUIOp])
def test_integer_operations(kind: type[arith.SignlessIntegerBinaryOperation]) -> None:
    assert binary(kind, OFFSET, OFFSET).is_structurally_equivalent(kind(OFFSET, OFFSET))


def test_constants_of_type_index() -> None:
    assert index_constant(-3).is_structurally_equivalent(arith.ConstantOp(IntegerAttr(-3, INDEX)))
