"""Products of words on registers that are wider than those of their record: in parts, here of any number of lanes."""

from __future__ import annotations

import ctypes
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir

from tilewright.codegen.cpu.dot import Emission, product_of_record
from tilewright.codegen.cpu.target import described
from tilewright.codegen.values import I32, vector_type
from tilewright.intrinsics.registry import standard
from tilewright.machine import host

pytestmark = pytest.mark.skipif(host().architecture != "x86_64", reason="instructions of x86-64")


@pytest.mark.parametrize("lanes", [2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17])
def test_a_record_of_four_lanes_on_any_register(lanes: int) -> None:
    random = np.random.default_rng(lanes)
    a, b = (np.frombuffer(random.bytes(4 * lanes), np.int16).astype(np.int64) for _ in "ab")
    c = np.frombuffer(random.bytes(4 * lanes), np.int32).astype(np.int64)
    pairs = (a * b).reshape(lanes, 2).sum(1)
    found = _multiplied("vpmaddwd_4x2_s16_s32", a.astype(np.int16), b.astype(np.int16), c.astype(np.int32))
    np.testing.assert_array_equal(found, (c + pairs).astype(np.int32))


def _multiplied(name: str, *operands: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What the step of a record makes of a, b and the accumulators, which are one register."""
    lanes, pointer = len(operands[2]), ir.PointerType()
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer] * 4), "run")
    builder = ir.IRBuilder(function.append_basic_block())
    a, b, c = (builder.load(each, align=1, typ=vector_type(I32, lanes)) for each in function.args[:3])
    at = Emission(builder, described(host()), I32, "")
    builder.store(product_of_record(standard().find(name)).step(at, a, b, c), function.args[3], align=1)
    builder.ret_void()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(cpu=llvm.get_host_cpu_name())
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(module)), machine)
    engine.finalize_object()
    result = np.zeros(lanes, np.int32)
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(engine.get_function_address("run"))
    run(*(array.ctypes.data for array in (*operands, result)))
    return result
