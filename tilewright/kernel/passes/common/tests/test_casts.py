"""Every chain of two casts, with edge values, means the same after canonicalise."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import IndexType, MemRefType, ModuleOp, bf16, f16, f32, f64, i1, i8, i16, i32, i64
from xdsl.ir import Attribute

from tests.covering import rows
from tilewright.kernel.dialect import CastOp, FuncOp, LoadOp, ReturnOp, StoreOp
from tilewright.kernel.elements import dtype_of
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.passes.table import run_pass
from tilewright.kernel.rewrite import constant

TYPES = (i1, i8, i16, i32, i64, f16, bf16, f32, f64)


def values(type_: Attribute) -> np.ndarray:
    """Limits, small numbers, and numbers beside those that narrower types hold."""
    dtype = dtype_of(type_)
    if dtype == np.bool_:
        return np.asarray([0, 1], np.int8)
    if dtype.kind == "i":
        limits = np.iinfo(dtype)
        near = [
            sign * (1 << power) + step for power in range(limits.bits - 1) for sign in (1, -1) for step in (-1, 0, 1)
        ]
        return np.asarray([limits.min, limits.max, *near]).clip(limits.min, limits.max).astype(dtype)
    with np.errstate(over="ignore"):
        numbers = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 255.0, 256.0, 65504.0, 65520.0, 1e10, -1e30, 1e300, np.inf]
        numbers += [-np.inf, np.nan, 1.0 + 2.0**-8, 1.0 + 2.0**-11, 1.0 + 2.0**-24, 2.0**31, 2.0**63, 1e-40, -3e-45]
        return np.asarray(numbers).astype(dtype)


def run(module: ModuleOp, data: np.ndarray, out: np.dtype) -> np.ndarray:
    result = np.zeros(len(data), out)
    run_kernel(module, "chain", [data, result])
    return result


@pytest.mark.parametrize("first", TYPES, ids=str)
def test_chains(first: Attribute) -> None:
    data = values(first)
    joined = 0
    for second, third, *unsigned in rows(TYPES, TYPES, (False, True), (False, True), strength=3):
        stored = i8 if third == i1 else third
        types = [MemRefType(i8 if first == i1 else first, [len(data)]), MemRefType(stored, [len(data)])]
        kernel = FuncOp("chain", types, [1])
        block = kernel.body.block
        zero = constant(0, IndexType())
        load = LoadOp(block.args[0], zero.result, [len(data)], [1])
        start = [CastOp(load.result, i1)] if first == i1 else []
        one = CastOp((start or [load])[-1].result, second, unsigned=unsigned[0])
        two = CastOp(one.result, third, unsigned=unsigned[1])
        end = [CastOp(two.result, i8)] if third == i1 else []
        store = StoreOp((end or [two])[-1].result, block.args[1], zero.result, [1])
        block.add_ops([zero, load, *start, one, two, *end, store, ReturnOp()])
        module = ModuleOp([kernel])
        before = run(module, data, dtype_of(stored))
        run_pass(module, "canonicalise")
        run_pass(module, "dce")
        after = run(module, data, dtype_of(stored))
        same = (before == after) | ((before != before) & (after != after))
        place = f"{first} {second} {third} {unsigned}"
        assert same.all(), f"{place}: {data[~same]} {before[~same]} {after[~same]}"
        assert (np.signbit(before) == np.signbit(after))[before == 0].all() if before.dtype.kind == "f" else True, place
        joined += sum(isinstance(op, CastOp) for op in module.walk()) < 1 + len(start) + len(end) + 1
    assert joined > 20
