"""Planted errors: at every site where a kernel synchronises or copies, leaving that out is found by the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np
import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Operation

from tests.covering import FULL
from tilewright.errors import InvalidProgram
from tilewright.kernel import simt
from tilewright.kernel.dialect import INDEX, FuncOp, operations
from tilewright.kernel.elements import dtype_of
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.rewrite import uniform
from tilewright.kernel.simt_interpreter import Order
from tilewright.kernel.tests import kernels

KERNELS: dict[str, Callable[[], ModuleOp]] = {
    "two_stages": partial(kernels.staged_gemm, 64, 64, 128, stages=2),
    "three_stages": partial(kernels.staged_gemm, 64, 64, 128, stages=3),
    "four_stages": partial(kernels.staged_gemm, 64, 64, 160, stages=4),
    "ragged": partial(kernels.staged_gemm, 40, 72, 88, stages=3),
    "fragments": partial(kernels.fragment_gemm, 32, 32, 48),
    "transpose": partial(kernels.transpose, 20, 20),
    "row_sums": partial(kernels.row_sums, 2, 100),
    "histogram": partial(kernels.histogram, 200, 70),
}
DROPPED = (simt.BarrierOp, simt.WaitOp, simt.CommitOp, simt.AsyncCopyOp, simt.StoreMatrixOp)


def only_kernel(module: ModuleOp) -> FuncOp:
    kernel = module.body.block.first_op
    assert isinstance(kernel, FuncOp)
    return kernel


def run(module: ModuleOp, order: Order) -> None:
    kernel = only_kernel(module)
    arrays = [np.zeros(prod(type_.get_shape()), dtype_of(type_)) for type_ in kernel.function_type.inputs.data]  # type: ignore[attr-defined]
    run_kernel(module, kernel.sym_name.data, arrays, races=True, order=order)


def drop(op: Operation) -> None:
    assert op.parent is not None
    op.parent.erase_op(op, safe_erase=False)


def wait_for_one_less(op: Operation) -> None:
    assert isinstance(op, simt.WaitOp)
    block = op.parent
    assert block is not None
    block.insert_op_before(simt.WaitOp(op.pending.value.data + 1), op)
    drop(op)


def mutants(module: ModuleOp) -> list[tuple[str, ModuleOp]]:
    """One for every site and mutation, with a name."""
    found = []
    for number, op in enumerate(operations(only_kernel(module).body)):
        changes = [drop] if isinstance(op, DROPPED) else []
        changes += [wait_for_one_less] if isinstance(op, simt.WaitOp) else []
        for change in changes:
            mutant = module.clone()
            change(operations(only_kernel(mutant).body)[number])
            found.append((f"{change.__name__} {op.name}, number {number}", mutant))
    return found


@pytest.mark.parametrize("name", KERNELS)
def test_every_planted_error_is_found(name: str) -> None:
    module = KERNELS[name]()
    orders: tuple[Order, ...] = ("together", "descending")
    for order in orders:
        run(module, order)
    planted = mutants(module)
    assert planted
    for number, (what, mutant) in enumerate(planted):
        for order in orders if FULL else orders[number % 2 :][:1]:
            try:
                run(mutant, order)
            except InvalidProgram:
                continue
            pytest.fail(f"{name}, {order}: {what} is not found")


def test_the_sites_of_a_staged_product() -> None:
    """2 commits and 2 stages of 4 copies before the loop; a wait (2 mutants), a barrier, 4 copies, a commit inside."""
    names = [what.split(",")[0] for what, _ in mutants(kernels.staged_gemm(64, 64, 128, stages=3))]
    counted = {name: names.count(name) for name in names}
    assert counted == {
        "drop simt.async_copy": 12, "drop simt.commit": 3, "drop simt.wait": 1, "wait_for_one_less simt.wait": 1,
        "drop simt.barrier": 1,
    }  # fmt: skip


@pytest.mark.parametrize("stages", [3, 5])  # nothing else in the kernel is modulo these
def test_every_wrong_slot_is_found(stages: int) -> None:
    """A copy into the next slot, or a product from it, is an error or gives another result."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, (64, 192)).astype(np.float16), rng.integers(-2, 3, (192, 64)).astype(np.float16))
    module = kernels.staged_gemm(64, 64, 192, stages=stages)
    sites = [number for number, op in enumerate(operations(only_kernel(module).body)) if _is_slot(op, stages)]
    assert len(sites) == stages - 1 + 2  # one before the loop for each slice that is ahead, and two in it
    for site in sites:
        mutant = module.clone()
        op = operations(only_kernel(mutant).body)[site]
        assert op.parent is not None
        one = arith.ConstantOp(IntegerAttr(1, INDEX))
        moved = arith.AddiOp(op.operands[0], one)
        op.parent.insert_ops_before([one, moved], op)
        op.operands[0] = moved.result
        c = np.zeros((64, 64), np.float32)
        try:
            run_kernel(mutant, "staged_gemm", [a.ravel(), b.ravel(), c.reshape(-1)])
        except InvalidProgram:
            continue
        assert (c != a.astype(np.float32) @ b.astype(np.float32)).any(), f"{stages} stages, site {site}"


def _is_slot(op: Operation, stages: int) -> bool:
    return isinstance(op, arith.RemUIOp) and uniform(op.rhs) == stages
