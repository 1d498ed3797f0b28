"""Functions of several registers at once give, bit for bit, what they give for each alone."""

from __future__ import annotations

import numpy as np
import pytest
from llvmlite import ir

from tilewright.codegen.cpu import interleaved
from tilewright.codegen.cpu.interleaved import FUNCTIONS, emit_registers
from tilewright.codegen.cpu.target import Target, described
from tilewright.codegen.cpu.tests.execute import run_program
from tilewright.kernel.text import parse_module
from tilewright.machine import host, missing_features, resolve_cpu

F32, F64 = ir.FloatType(), ir.DoubleType()
SIZES = (1, 5, 8, 13, 16, 24, 31, 32, 40, 56, 100)
CASES = [
    *((name, SIZES[number % len(SIZES)], "f32") for number, name in enumerate(sorted(FUNCTIONS))),
    *(("math.exp", size, dtype) for size in SIZES for dtype in ("f32", "f64", "f16")),
]
BITS = {"f16": np.dtype("f2"), "f32": np.dtype("f4"), "f64": np.dtype("f8")}


@pytest.mark.skipif(bool(missing_features(resolve_cpu("x86-64-v3"), host())), reason="runs AVX2")
@pytest.mark.parametrize(("name", "size", "dtype"), CASES)
def test_each_register_is_as_if_it_were_alone(
    name: str, size: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = parse_module(_program(name, size, dtype))
    numbers = -np.random.default_rng(size).random(size, np.float32).astype(BITS[dtype])
    numbers = -numbers if name == "math.log" else numbers
    (found,) = run_program(program, [numbers], "x86-64-v3")
    monkeypatch.setattr(interleaved, "VECTORS", 1)
    (alone,) = run_program(program, [numbers], "x86-64-v3")
    assert np.isfinite(alone).all()
    assert found.tobytes() == alone.tobytes()


@pytest.mark.parametrize(
    ("machine", "types", "lanes"),
    [
        ("x86-64-v3", [(F32, 8)] * 4, [32]),
        ("x86-64-v3", [(F32, 8)] * 7, [32, 24]),
        ("x86-64-v3", [(F32, 8), (F32, 8), (F32, 4)], [16, 4]),
        ("x86-64-v3", [(F64, 8)] * 3, [16, 8]),  # a register of the tile is two of the processor
        ("x86-64-v3", [(F32, 1)] * 2, [1, 1]),
        ("x86-64-v2", [(F32, 4)] * 4, [16]),
        ("x86-64-v4", [(F32, 16)] * 4, [16] * 4),  # 32 registers
        ("aarch64", [(F32, 4)] * 4, [4] * 4),
    ],
)
def test_as_many_as_are_four_vectors_of_the_processor(
    machine: str, types: list[tuple[ir.Type, int]], lanes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def noted(builder: ir.IRBuilder, target: Target, name: str, op: None, args: list[ir.Value]) -> ir.Value:
        seen.append(getattr(args[0].type, "count", 1))
        return args[0]

    monkeypatch.setattr(interleaved, "emit_element", noted)
    module = ir.Module()
    of = [each if count == 1 else ir.VectorType(each, count) for each, count in types]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), of), "f")
    builder = ir.IRBuilder(function.append_basic_block())
    results = emit_registers(builder, described(resolve_cpu(machine)), "math.exp", None, [function.args])
    assert seen == lanes
    assert [each.type for each in results] == of


def _program(name: str, size: int, dtype: str) -> str:
    view, values = f"memref<{size}x{dtype}>", f"tensor<{size}x{dtype}>"
    return f"""
    builtin.module {{
      tile.func @f(%0: {view}, %1: {view}) grid [1] {{
        %2 = arith.constant 0 : index
        %3 = tile.load %0[%2] strides [1] : {view} -> {values}
        %4 = {name} %3 : {values}
        tile.store %4, %1[%2] strides [1] : {values}, {view}
        tile.return
      }}
      tile.main arena 0 constants 0 {{
        %0 = tile.buffer "input" 0 : {view}
        %1 = tile.buffer "output" 0 : {view}
        tile.launch @f(%0, %1) : {view}, {view}
      }}
    }}
    """
