"""The wait for other kernels: where it is legal, and what moves across it. `overlap_launches.mlir` has the rewrite."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, StringAttr

from tests.covering import tries
from tests.random_distributed import random_distributed
from tests.random_kernels import RandomKernel
from tilewright.errors import InvalidProgram
from tilewright.kernel.attributes import MOST_RESIDENT, most_resident_of
from tilewright.kernel.dialect import FuncOp, LoadOp, operations
from tilewright.kernel.hopper.simt_launches import LaunchDependentsOp, WaitForLaunchesOp, touches_global, waits
from tilewright.kernel.interpreter import run_kernel, run_main
from tilewright.kernel.passes.common.canonicalise import CanonicalisePass
from tilewright.kernel.passes.common.cse import CsePass
from tilewright.kernel.passes.common.dce import DcePass
from tilewright.kernel.passes.common.licm import LicmPass
from tilewright.kernel.passes.gpu.allocate_shared import AllocateSharedPass
from tilewright.kernel.passes.gpu.barriers import BarriersPass
from tilewright.kernel.passes.hopper.overlap_launches import OverlapLaunchesPass
from tilewright.kernel.simt import AtomicOp
from tilewright.kernel.target import ATTRIBUTE
from tilewright.kernel.text import parse_module, print_module
from tilewright.kernel.verify import verify

HOPPER = DictionaryAttr({"units": StringAttr("griddepcontrol mbarrier tma")})
OTHERS = (CanonicalisePass(), CsePass(), LicmPass(), DcePass(), AllocateSharedPass(least=16), BarriersPass())


def kernel(body: str) -> ModuleOp:
    return parse_module(f"""
    tile.func @k(%a: memref<32xf32>, %b: memref<32xf32>) grid [1] threads [32, 1, 1] warp 32 {{
      %t = simt.thread_id 0
      {body}
      tile.return
    }}""")


def only(module: ModuleOp) -> FuncOp:
    (found,) = (op for op in module.body.ops if isinstance(op, FuncOp))
    return found


def overlapped(module: ModuleOp) -> ModuleOp:
    """The module for a machine whose kernels wait themselves."""
    module = module.clone()
    module.attributes[ATTRIBUTE] = HOPPER
    OverlapLaunchesPass().apply(Context(), module)
    return module


def outputs(random: RandomKernel, module: ModuleOp) -> list[np.ndarray]:
    arrays = random.outputs()
    run_main(module, random.inputs, arrays, races=True)
    return arrays


@pytest.mark.parametrize(("blocks", "share"), [(1, 1), (132, 1), (133, 2), (396, 3), (397, None)])
def test_few_blocks_are_shared_out_evenly(blocks: int, share: int | None) -> None:
    text = print_module(kernel("")).replace("grid [1]", f"grid [{blocks}]")
    module = parse_module(text)
    module.attributes[ATTRIBUTE] = DictionaryAttr({**HOPPER.data, "multiprocessors": IntegerAttr(132, 64)})
    OverlapLaunchesPass().apply(Context(), module)
    assert most_resident_of(only(module)) == share
    assert most_resident_of(only(overlapped(parse_module(text)))) is None  # of how many multiprocessors, nobody says


def test_what_a_kernel_asks_for_itself_stays() -> None:
    module = kernel("")
    only(module).attributes[MOST_RESIDENT] = IntegerAttr(7, 64)
    module.attributes[ATTRIBUTE] = DictionaryAttr({**HOPPER.data, "multiprocessors": IntegerAttr(132, 64)})
    OverlapLaunchesPass().apply(Context(), module)
    assert most_resident_of(only(module)) == 7


@settings(max_examples=tries(4, full=40), deadline=None)
@given(st.integers(0, 2**32))
def test_random_kernels_give_what_they_gave(seed: int) -> None:
    """After passes that move operations, too, nothing stands before the wait that touches global memory: `verify`."""
    random = random_distributed(seed)
    module = overlapped(random.module)
    text = print_module(module)
    assert text.count("simt.launch_dependents") == text.count("simt.wait_for_launches") == 1
    assert print_module(parse_module(text)) == text
    wanted = outputs(random, random.module)
    for each in (None, *OTHERS):
        if each is not None:
            each.apply(Context(), module)
        verify(module)
        assert all(np.array_equal(*pair, equal_nan=True) for pair in zip(outputs(random, module), wanted, strict=True))
    (op,) = (op for op in module.body.ops if isinstance(op, FuncOp))
    assert waits(op)


def test_twice_is_once_and_other_machines_have_none() -> None:
    module = kernel("%x = tile.load %a[%t] strides [] : memref<32xf32> -> f32")
    before = print_module(module)
    OverlapLaunchesPass().apply(Context(), module)
    assert print_module(module) == before
    assert not waits(only(module))
    once = overlapped(module)
    assert print_module(overlapped(once)) == print_module(once)
    kinds = [type(op) for op in only(once).body.block.ops]
    assert kinds[0] is LaunchDependentsOp
    assert kinds.index(WaitForLaunchesOp) == kinds.index(LoadOp) - 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("%x = tile.load %a[%t] strides [] : memref<32xf32> -> f32\nsimt.wait_for_launches",
         "tile.func: tile.load touches global memory before simt.wait_for_launches"),
        ("tile.prefetch %a[%t] 128 : memref<32xf32>\nsimt.wait_for_launches", "tile.prefetch touches global memory"),
        ("%c = arith.constant true\nscf.if %c {\n%x = tile.load %a[%t] strides [] : memref<32xf32> -> f32\n}\n"
         "simt.wait_for_launches", "scf.if touches global memory before"),
        ("%c = arith.constant true\nscf.if %c {\nsimt.wait_for_launches\n}", "inside of a loop or branch"),
    ],
)  # fmt: skip
def test_a_wait_that_comes_too_late_or_not_for_all_is_refused(body: str, message: str) -> None:
    with pytest.raises(InvalidProgram, match=message):
        verify(kernel(body))


def test_outside_of_a_block_there_is_no_wait() -> None:
    for name in ("wait_for_launches", "launch_dependents"):
        with pytest.raises(InvalidProgram, match="outside of a kernel with threads"):
            verify(parse_module(f"tile.func @k() grid [1] {{ simt.{name}\n tile.return }}"))


def test_what_is_global_memory() -> None:
    module = kernel("""
      %s = simt.shared align 16 : memref<32xf32, "shared">
      %o = tile.alloc : memref<1xf32>
      %z = arith.constant 0 : index
      %x = arith.constant 1.0 : f32
      tile.store %x, %s[%t] strides [] : f32, memref<32xf32, "shared">
      tile.store %x, %o[%z] strides [] : f32, memref<1xf32>
      tile.store %x, %b[%t] strides [] : f32, memref<32xf32>
      %y = simt.atomic "add" %x, %a[%t] : f32, memref<32xf32> -> f32""")
    touching = [op for op in operations(only(module).body) if touches_global(op)]
    assert [op.name for op in touching] == ["tile.store", "simt.atomic"]
    assert isinstance(touching[1], AtomicOp)


def test_loads_on_both_sides_of_a_wait_are_two() -> None:
    """Another kernel may have written between them: the wait counts as a write to every argument."""
    load = "{} = tile.load %a[%t] strides [] : memref<32xf32> -> f32"
    store = "tile.store {}, %b[%t] strides [] : f32, memref<32xf32>"
    wait = "simt.wait_for_launches"
    for between, loads in ((wait, 2), ("", 1)):
        first, second = ("\n".join(each.format(name) for each in (load, store)) for name in ("%x", "%y"))
        module = kernel("\n".join([wait, first, between, second]))
        CsePass().apply(Context(), module)
        assert sum(isinstance(op, LoadOp) for op in operations(only(module).body)) == loads


def test_the_interpreter_runs_kernels_one_after_the_other() -> None:
    module = kernel("""simt.launch_dependents
      simt.wait_for_launches
      %x = tile.load %a[%t] strides [] : memref<32xf32> -> f32
      tile.store %x, %b[%t] strides [] : f32, memref<32xf32>""")
    given = [np.arange(32, dtype=np.float32), np.zeros(32, np.float32)]
    run_kernel(module, "k", given)
    np.testing.assert_array_equal(*given)
