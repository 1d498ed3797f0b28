"""`verify_each` names the pass that breaks a rule, also on an operation that an earlier check found right."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import DenseArrayBase, FloatAttr, MemRefType, ModuleOp, StringAttr, f16, f64, i1, i64
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from tests.random_kernels import random_kernel
from tilewright.errors import InvalidProgram
from tilewright.kernel import verify
from tilewright.kernel.dialect import FuncOp, LoadOp, StoreOp
from tilewright.kernel.passes.cpu.table import CPU, run_passes
from tilewright.kernel.text import parse_module

OperationT = TypeVar("OperationT", bound=Operation)


class Breaking(ModulePass):
    """A pass that applies a change which breaks a rule."""

    name = "breaking"

    def __init__(self, change: Callable[[ModuleOp], None]) -> None:
        self.change = change

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        self.change(op)


def first(module: ModuleOp, kind: type[OperationT]) -> OperationT:
    return next(op for op in module.walk() if isinstance(op, kind))


def type_of_a_result(module: ModuleOp) -> None:
    load = first(module, LoadOp)
    Rewriter.replace_value_with_new_type(load.result, f64 if load.result.type == f16 else f16)


def type_of_an_operand(module: ModuleOp) -> None:
    view = first(module, LoadOp).operands[0]
    Rewriter.replace_value_with_new_type(view, i1)


def operand_replaced(module: ModuleOp) -> None:
    store = first(module, StoreOp)
    store.operands[0] = store.operands[1]


def operand_dropped(module: ModuleOp) -> None:
    store = first(module, StoreOp)
    store.operands = list(store.operands)[:-1]


def property_of_another_kind(module: ModuleOp) -> None:
    leaf = next(op for op in module.walk() if op.properties and not op.regions)
    leaf.properties[min(leaf.properties)] = StringAttr("none")


def unknown_attribute(module: ModuleOp) -> None:
    first(module, FuncOp).attributes["grid"] = StringAttr("none")


def terminator_moved(module: ModuleOp) -> None:
    block = first(module, FuncOp).body.block
    terminator, before = block.last_op, block.first_op
    assert terminator is not None
    assert before is not None
    terminator.detach()
    block.insert_op_before(terminator, before)


def definition_after_its_use(module: ModuleOp) -> None:
    block = first(module, FuncOp).body.block
    for op in block.ops:
        users = [use.operation for result in op.results for use in result.uses if use.operation.parent is block]
        if users:
            op.detach()
            block.insert_op_after(op, users[0])
            return


CHANGES = (
    type_of_a_result,
    type_of_an_operand,
    operand_replaced,
    operand_dropped,
    property_of_another_kind,
    unknown_attribute,
    terminator_moved,
    definition_after_its_use,
)


@pytest.mark.covering(1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("change", CHANGES)
def test_the_pass_that_breaks_a_rule_is_named(change: Callable[[ModuleOp], None], seed: int) -> None:
    module = random_kernel(seed).module
    with pytest.raises(AssertionError, match="bug in pass breaking: "):
        run_passes(module, [*CPU, Breaking(change)], verify_each=True)
    with pytest.raises(InvalidProgram):
        verify.verify(module)


TWO_KERNELS = """
tile.func @first(%v: memref<8xf32>) grid [1] {
  %o = arith.constant 0 : index
  %x = tile.load %v[%o] strides [1] : memref<8xf32> -> tensor<8xf32>
  tile.store %x, %v[%o] strides [1] : tensor<8xf32>, memref<8xf32>
  tile.return
}
tile.func @second(%v: memref<8xf32>) grid [1] {
  %o = arith.constant 0 : index
  %x = tile.load %v[%o] strides [1] : memref<8xf32> -> tensor<8xf32>
  tile.store %x, %v[%o] strides [1] : tensor<8xf32>, memref<8xf32>
  tile.return
}
tile.main arena 64 constants 0 {
  %a = tile.buffer "arena" 0 : memref<8xf32>
  tile.launch @first(%a) : memref<8xf32>
  tile.launch @second(%a) : memref<8xf32>
}
"""


def store_of_the_second(module: ModuleOp) -> None:
    store = [op for op in module.walk() if isinstance(op, StoreOp)][1]
    store.operands[0] = store.operands[1]


def arguments_of_the_first(module: ModuleOp) -> None:
    view = first(module, FuncOp).body.block.args[0]
    Rewriter.replace_value_with_new_type(view, MemRefType(f16, [8]))


def first_removed(module: ModuleOp) -> None:
    kernel = first(module, FuncOp)
    kernel.detach()
    kernel.erase()


@pytest.mark.parametrize("change", [store_of_the_second, arguments_of_the_first, first_removed])
def test_other_kernels_being_as_they_were_hides_no_error(change: Callable[[ModuleOp], None]) -> None:
    checked, module = verify.Checked(), parse_module(TWO_KERNELS)
    verify.verify(module, checked=checked)
    change(module)
    for _ in range(2):
        with pytest.raises(InvalidProgram):
            verify.verify(module, checked=checked)


TWO_BLOCKS = """
tile.func @k(%v: memref<64xf32>) grid [4, 2] {
  %p = tile.program_id 1
  %n = arith.constant 8 : index
  %alone = arith.constant 3 : index
  scf.for %i = %n to %n step %n {
    %inside = arith.addi %i, %n : index
    scf.yield
  }
  %q = arith.constant 2 : index
  %o = arith.muli %p, %q : index
  %x = tile.load %v[%o] strides [1] : memref<64xf32> -> tensor<8xf32>
  tile.store %x, %v[%o] strides [1] : tensor<8xf32>, memref<64xf32>
  tile.return
}
"""


def named(module: ModuleOp, name: str) -> Operation:
    return next(op for op in module.walk() if any(result.name_hint == name for result in op.results))


def type_of_what_nobody_reads(module: ModuleOp) -> None:
    named(module, "alone").results[0]._type = f64


def constant_of_another_type(module: ModuleOp) -> None:
    """It is valid itself; the product that reads it is not."""
    constant = named(module, "q")
    constant.properties["value"] = FloatAttr(2.0, f64)
    constant.results[0]._type = f64


def axis_of_the_grid_removed(module: ModuleOp) -> None:
    kernel = first(module, FuncOp)
    kernel.properties["grid"] = DenseArrayBase.from_list(i64, [4])


def definition_moved_into_an_earlier_loop(module: ModuleOp) -> None:
    constant, inside = named(module, "q"), named(module, "inside")
    constant.detach()
    block = inside.parent
    assert block is not None
    block.insert_op_before(constant, inside)


@pytest.mark.parametrize(
    "change",
    [
        type_of_what_nobody_reads, constant_of_another_type, axis_of_the_grid_removed,
        definition_moved_into_an_earlier_loop,
    ],
)  # fmt: skip
def test_a_change_that_a_single_operation_shows_is_found(change: Callable[[ModuleOp], None]) -> None:
    checked, module = verify.Checked(), parse_module(TWO_BLOCKS)
    verify.verify(module, checked=checked)
    change(module)
    with pytest.raises(InvalidProgram):
        verify.verify(module, checked=checked)


def test_a_kernel_that_is_mended_is_valid_again() -> None:
    checked, module = verify.Checked(), parse_module(TWO_KERNELS)
    verify.verify(module, checked=checked)
    store = first(module, StoreOp)
    value, view = store.operands[0], store.operands[1]
    store.operands[0] = view
    with pytest.raises(InvalidProgram):
        verify.verify(module, checked=checked)
    store.operands[0] = value
    verify.verify(module, checked=checked)
