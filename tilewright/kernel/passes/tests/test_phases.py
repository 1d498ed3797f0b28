"""What holds in the phases of the passes for GPUs, and that a pass which breaks it is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from tests.random_blocks import random_blocks
from tilewright.errors import InvalidProgram
from tilewright.kernel.dialect import FuncOp, operations, shape
from tilewright.kernel.passes.cpu.table import run_passes
from tilewright.kernel.passes.gpu.forms import DISTRIBUTED, LAYOUTS, TILE, form_of
from tilewright.kernel.passes.table import PHASES, PIPELINES, pipeline


class Doing(ModulePass):
    """A pass that applies a change."""

    name = "doing"

    def __init__(self, change: Callable[[ModuleOp], None]) -> None:
        self.change = change

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        self.change(op)


def program(seed: int, phases: int) -> ModuleOp:
    """A random program with several elements in some tile, after so many phases."""
    module = random_blocks(seed).module
    for phase in PHASES[:phases]:
        run_passes(module, [each for each in pipeline("gpu") if each in phase.passes])
    return module


def forms(module: ModuleOp) -> set[int | None]:
    return {form_of(op) for op in module.body.ops if isinstance(op, FuncOp)}


@pytest.mark.parametrize("seed", range(4))
def test_each_phase_makes_its_form(seed: int) -> None:
    assert [forms(program(seed, count)) - {None} for count in (1, 2, 3)] == [{TILE}, {LAYOUTS}, {DISTRIBUTED}]


@pytest.mark.parametrize(
    ("phase", "invariant"), [(1, "every tile has a layout"), (2, "every operation is that of one")]
)
def test_what_an_earlier_phase_leaves_breaks_the_invariant_of_a_later_one(phase: int, invariant: str) -> None:
    module = program(0, phase)
    with pytest.raises(InvalidProgram, match=invariant):
        PHASES[phase].check(module)


def test_the_pass_that_breaks_an_invariant_is_named() -> None:
    module, other = program(0, 1), program(0, 2)

    def with_layouts(to: ModuleOp) -> None:
        for op in list(to.body.ops):
            op.detach()
        to.body.block.add_ops([op.clone() for op in other.body.ops])

    run_passes(other, [Doing(lambda _: None)], True, PHASES[1].check)
    run_passes(module, [Doing(with_layouts)], True, PHASES[1].check)
    with pytest.raises(AssertionError, match=r"bug in pass doing.*has no threads"):
        run_passes(module, [Doing(lambda _: None)], True, PHASES[2].check)


def test_tiles_have_powers_of_two() -> None:
    """Some random program has other extents, which the first pass rounds up."""
    odd = [module for module in (random_blocks(seed).module for seed in range(12)) if is_odd(module)]
    assert odd
    for module in odd:
        with pytest.raises(InvalidProgram, match="a power of two"):
            PHASES[0].check(module)
        run_passes(module, PHASES[0].passes, True, PHASES[0].check)
        assert not is_odd(module)


def is_odd(module: ModuleOp) -> bool:
    kernels = [op for op in module.body.ops if isinstance(op, FuncOp)]
    tiles = [result for kernel in kernels for op in operations(kernel.body) for result in op.results if shape(result)]
    return any(extent & (extent - 1) for each in tiles for extent in shape(each))


def test_the_phases_are_the_pipeline() -> None:
    assert PIPELINES["gpu"] == tuple(each for phase in PHASES for each in phase.passes)
