"""Epilogues of products beside LLVM's registers: what functions need, what the loop over k keeps in stack memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from llvmlite import ir

from tilewright.codegen.cpu import pipeline
from tilewright.codegen.cpu.target import described
from tilewright.codegen.math import MATH
from tilewright.compiler.compile import build
from tilewright.expr.core import FUNCTIONS, Tensor, apply
from tilewright.expr.dtypes import DTypeLike
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import elementwise
from tilewright.kernel.text import parse_module
from tilewright.machine import resolve_cpu
from tilewright.operator.registers import FUNCTION_REGISTERS
from tilewright.options import Options


def counted_registers(name: str) -> int:
    """Distinct constants of a function's code on AVX-512, and the most values that are needed at once."""
    target = described(resolve_cpu("znver5"))
    vector = ir.VectorType(ir.FloatType(), 16)
    arity = FUNCTIONS[name].arity
    function = ir.Function(ir.Module(), ir.FunctionType(vector, [vector] * arity), name)
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(MATH[name](builder, *function.args, target))
    instructions = list(function.blocks[0].instructions)
    last: dict[Any, int] = {}
    constants = set()
    for number, instruction in enumerate(instructions):
        for operand in instruction.operands:
            if not isinstance(operand, ir.Constant):
                last[operand] = number
            elif isinstance(operand.type, ir.VectorType):
                constants.add(str(operand))
    live, most = set(function.args), 0
    for number, instruction in enumerate(instructions):
        live = {value for value in live if last.get(value, -1) > number}
        if isinstance(instruction.type, ir.VectorType) and instruction.type.element != ir.IntType(1):
            live.add(instruction)
        most = max(most, len(live))
    return len(constants) + most


@pytest.mark.parametrize("name", sorted(FUNCTION_REGISTERS))
def test_registers_of_functions_are_what_their_code_needs(name: str) -> None:
    assert abs(counted_registers(name) - FUNCTION_REGISTERS[name]) <= 2


def test_every_function_with_code_of_its_own_has_a_number_of_registers() -> None:
    assert set(FUNCTION_REGISTERS) == set(MATH) & set(FUNCTIONS)


# The loop over k ------------------------------------------------------------------------------------------------------

EPILOGUES: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": elementwise.relu,
    "hard swish": elementwise.hard_swish,
    "gelu": elementwise.gelu,
    "gelu by tanh": lambda y: elementwise.gelu(y, approximate="tanh"),
    "silu": elementwise.swish,
    "mish": elementwise.mish,
    "softplus": elementwise.softplus,
    "tanh": lambda y: elementwise.map_elements([y], lambda v: apply("tanh", v)),
    "gate": lambda y: elementwise.gelu(y) * y,
}


def product(epilogue: str, dtype: str) -> Graph:
    """128 x 64 by 64 x 384: 4 rows by 6 vectors of AVX-512, as in the layers of BERT."""
    generator = np.random.default_rng(0)
    b = GraphBuilder()
    x = b.input("x", (128, 64), dtype)
    numbers: DTypeLike = ml_dtypes.bfloat16 if dtype == "bf16" else np.float32
    w = b.constant(generator.standard_normal((64, 384)).astype(numbers), "w")
    bias = b.constant(generator.standard_normal(384).astype(np.float32), "bias")
    return b.finish([EPILOGUES[epilogue](elementwise.cast(x @ w, "f32") + bias)])


def innermost_loops(assembly: str) -> list[list[str]]:
    """The lines of every loop of x86 assembly that has no loop inside."""
    lines = assembly.splitlines()
    labels = {line.split(":")[0]: number for number, line in enumerate(lines) if line.startswith(".L")}
    jumps = [(number, re.match(r"\s+j\w+\s+(\.L\w+)", line)) for number, line in enumerate(lines)]
    loops = [(labels[jump[1]], number) for number, jump in jumps if jump and labels.get(jump[1], number) < number]
    inner = [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    return [lines[begin:end] for begin, end in inner]


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("machine", ["znver5", "x86-64-v3"])
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_the_loop_over_k_keeps_its_sums_in_registers(epilogue: str, machine: str, dtype: str) -> None:
    artifact = build(product(epilogue, dtype), resolve_cpu(machine), 1, Options(cache=False))
    assembly = pipeline.assembly(parse_module(artifact.program))
    multiplying = re.compile(r"\bv(fmadd|dpbf16)")
    loops = [lines for lines in innermost_loops(assembly) if sum(map(bool, map(multiplying.search, lines))) >= 24]
    assert loops
    for lines in loops:
        stack = [line for line in lines if re.search(r"\(%rsp\).*[xyz]mm|[xyz]mm.*\(%rsp\)", line)]
        assert not stack, "\n".join(stack)
