"""Roles of warps: when registers move, when four more warps are too many. `warp_specialize.mlir` has the rewrite."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.codegen.gpu.target import GpuTarget, described
from tilewright.kernel.dialect import FuncOp, operations
from tilewright.kernel.hopper.simt_warpgroup import RegistersOp
from tilewright.kernel.passes.gpu.distribution.tests import programs
from tilewright.kernel.passes.hopper.warp_specialize import REGISTERS
from tilewright.kernel.passes.table import run_pass
from tilewright.kernel.target import ATTRIBUTE
from tilewright.kernel.text import parse_module
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve

PASSES = ("tensor-copies", "assign-layouts", "distribute", "warp-specialize")


def with_roles(asked: str = "", threads: int = 1024) -> FuncOp:
    """A product of 128 x 128 by 8 warps after its roles; `asked` are attributes, `threads` those of a block at most."""
    machine = resolve("sm_90a")
    assert isinstance(machine, Gpu)
    cpu, features, triple, facts = described(machine)
    text = programs.matmul((128, 128, 64), (128, 128, 64), "wgmma_m64n128k16_f16_f32")
    module = parse_module(text.replace(" {", f" attributes {{warps = array<i64: 8, 1>{asked}}} {{", 1))
    module.attributes[ATTRIBUTE] = GpuTarget(cpu, features, triple, replace(facts, threads=threads)).attribute()
    for name in PASSES:
        run_pass(module, name)
    (kernel,) = [op for op in module.body.ops if isinstance(op, FuncOp)]
    return kernel


@pytest.mark.parametrize(
    ("asked", "moves"),
    [
        ("", True),
        (", blocks_per_multiprocessor = 1 : i64", True),
        (", blocks_per_multiprocessor = 2 : i64", False),
        (", registers = 128 : i64", False),
    ],
)
def test_registers_move_unless_the_kernel_asks_for_another_share(asked: str, moves: bool) -> None:
    kernel = with_roles(asked)
    assert kernel.block == (384, 1, 1)
    found = [op.kind.data for op in operations(kernel.body) if isinstance(op, RegistersOp)]
    assert sorted(found) == (["grow", "shrink"] if moves else [])
    limits = [f"{key} = {value}" for key, value in kernel.attributes.items()]
    assert limits == [asked[2:] or "blocks_per_multiprocessor = 1 : i64"]


@pytest.mark.parametrize(("threads", "block"), [(384, 384), (256, 256)])
def test_a_block_that_would_be_too_large_has_no_roles(threads: int, block: int) -> None:
    assert with_roles(threads=threads).block == (block, 1, 1)


def test_spec4_10_2_registers_after_they_moved_are_those_of_a_multiprocessor() -> None:
    """The original gives 40 to a thread that fills and 232 to one that computes; 24 and 240 are as many.

    One elected thread starts copies from coordinates that it counts, which takes fewer than 24: what it leaves goes to
    the sums.
    """
    kernel = with_roles()
    found = {op.kind.data: op.count.value.data for op in operations(kernel.body) if isinstance(op, RegistersOp)}
    assert found == {"shrink": 24, "grow": 240}
    filling, computing = 128, kernel.block[0] - 128
    assert filling * found["shrink"] + computing * found["grow"] == 64512 == 128 * 40 + 256 * 232
    assert filling * found["shrink"] + computing * found["grow"] <= REGISTERS
    assert all(count % 8 == 0 and 24 <= count <= 256 for count in found.values())  # what setmaxnreg takes
