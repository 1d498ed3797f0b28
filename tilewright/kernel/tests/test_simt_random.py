"""Random kernels in distributed form: the order of threads and the passes change nothing, the text comes back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from tests.covering import some, tries
from tests.random_distributed import random_distributed
from tests.random_kernels import RandomKernel
from tilewright.errors import InvalidProgram
from tilewright.kernel import simt
from tilewright.kernel.dialect import operations
from tilewright.kernel.interpreter import run_main
from tilewright.kernel.opt import opt
from tilewright.kernel.passes.common.canonicalise import CanonicalisePass
from tilewright.kernel.passes.common.cse import CsePass
from tilewright.kernel.passes.common.dce import DcePass
from tilewright.kernel.passes.common.licm import LicmPass
from tilewright.kernel.passes.common.ranges import RangesPass
from tilewright.kernel.passes.gpu.allocate_shared import AllocateSharedPass
from tilewright.kernel.passes.gpu.barriers import BarriersPass
from tilewright.kernel.passes.gpu.prefetch_fragments import PrefetchFragmentsPass
from tilewright.kernel.passes.gpu.tf32x3 import Tf32x3Pass
from tilewright.kernel.passes.table import run_pipeline
from tilewright.kernel.simt_interpreter import ORDERS, Order
from tilewright.kernel.text import parse_module, print_module
from tilewright.kernel.verify import verify

SEEDS = st.integers(0, 2**32)
PASSES: tuple[ModulePass, ...] = (
    CanonicalisePass(), CsePass(), DcePass(), LicmPass(), RangesPass(), PrefetchFragmentsPass(),
    AllocateSharedPass(least=16), BarriersPass(), Tf32x3Pass(),
)  # fmt: skip


def outputs(kernel: RandomKernel, module: ModuleOp, order: Order = "together") -> list[np.ndarray]:
    arrays = kernel.outputs()
    run_main(module, kernel.inputs, arrays, races=True, order=order)
    return arrays


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bits, any NaN being equal to any other."""
    if a.dtype.kind == "i":
        return bool((a == b).all())
    nan = np.isnan(a)
    return bool((nan == np.isnan(b)).all() and a[~nan].tobytes() == b[~nan].tobytes())


@settings(max_examples=tries(4, full=20), deadline=None)
@given(SEEDS)
def test_orders_agree(seed: int) -> None:
    kernel = random_distributed(seed)
    expected = outputs(kernel, kernel.module)
    for order in ORDERS:
        assert all(map(same, expected, outputs(kernel, kernel.module, order)))


@pytest.mark.parametrize("one", PASSES, ids=lambda each: each.name)
@settings(max_examples=tries(2, full=15), deadline=None)
@example(seed=13773479)  # a factor of a product is the sum of another
@example(seed=6)  # what an atomic operation gives back is not used
@given(SEEDS)
def test_pass_keeps_every_bit(one: ModulePass, seed: int) -> None:
    kernel = random_distributed(seed)
    expected = outputs(kernel, kernel.module)
    one.apply(Context(), kernel.module)
    verify(kernel.module)
    assert all(map(same, expected, outputs(kernel, kernel.module, "descending")))


@settings(max_examples=tries(4, full=20), deadline=None)
@given(SEEDS, st.sets(st.sampled_from([each.name for each in PASSES[:5]]), max_size=2))
def test_pipeline_keeps_every_bit(seed: int, disable: set[str]) -> None:
    kernel = random_distributed(seed)
    expected = outputs(kernel, kernel.module)
    run_pipeline(kernel.module, disable=sorted(disable), verify_each=True)
    assert all(map(same, expected, outputs(kernel, kernel.module, "random")))


@settings(max_examples=tries(2, full=20), deadline=None)
@given(SEEDS)
def test_text_comes_back(seed: int) -> None:
    kernel = random_distributed(seed)
    text = print_module(kernel.module)
    assert print_module(parse_module(text)) == text == opt(text, [])
    assert all(map(same, outputs(kernel, kernel.module), outputs(kernel, parse_module(text))))


def test_kernels_use_every_kind_of_operation() -> None:
    used = {type(op) for seed in range(30) for op in operations(random_distributed(seed).module.body)}
    assert used >= {
        simt.ThreadIdOp, simt.BarrierOp, simt.ShuffleOp, simt.SharedOp, simt.AsyncCopyOp, simt.CommitOp, simt.WaitOp,
        simt.AtomicOp, simt.LoadMatrixOp, simt.StoreMatrixOp, simt.LoadFragmentOp, simt.StoreFragmentOp, simt.MmaOp,
        simt.PartOp, simt.JoinOp,
    }  # fmt: skip


def test_most_dropped_barriers_are_found() -> None:
    """Barriers that separate what threads of different numbers do; one behind the last use of memory may go."""
    found = tried = 0
    for seed in some(range(12), 6):
        kernel = random_distributed(seed)
        barriers = [op for op in operations(kernel.module.body) if isinstance(op, simt.BarrierOp)]
        for number in range(len(barriers)):
            mutant = kernel.module.clone()
            barrier = [op for op in operations(mutant.body) if isinstance(op, simt.BarrierOp)][number]
            assert barrier.parent is not None
            barrier.parent.erase_op(barrier)
            tried += 1
            try:
                outputs(kernel, mutant)
            except InvalidProgram:
                found += 1
    assert tried > 10
    assert found > tried // 4
