"""Kernels that differ only in numbers are one kernel with the numbers as arguments."""

from __future__ import annotations

from textwrap import dedent

import numpy as np
import pytest
from xdsl.dialects.builtin import MemRefType, ModuleOp

from tilewright.compiler.compile import compile_graph, resolve_target
from tilewright.compiler.cpu import tile_program
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.program import Placement
from tilewright.expr import Graph
from tilewright.expr.dtypes import numpy_dtype
from tilewright.expr.evaluate import evaluate
from tilewright.expr.text import parse_graph
from tilewright.kernel.dialect import FuncOp
from tilewright.kernel.interpreter import run_main
from tilewright.kernel.text import parse_module, print_module
from tilewright.options import Options

FRESH = Options(cache=False)
SHARED = {
    "scales of products": """
        input x: f32[5, 37]
        input y: f32[5, 37]
        input w: f32[37, 37]
        a: f32[i:5, j:37] += x[i, k] * w[k, j] over k:37
        b: f32[i:5, j:37] = max(a[i, j] / 0.3, -1.7)
        c: f32[i:5, j:37] += y[i, k] * w[k, j] over k:37
        d: f32[i:5, j:37] = max(c[i, j] / 0.7, -2.9)
        output b
        output d
    """,
    "zero points of bytes": """
        input x: i8[3, 19]
        input y: i8[3, 19]
        a: i8[i:3, j:19] = i8(max(min(f32(i32(x[i, 18 - j]) - i32(i8(-7))) * 0.11, 127.0), -128.0))
        b: i8[i:3, j:19] = i8(max(min(f32(i32(y[i, 18 - j]) - i32(i8(5))) * 1.6, 127.0), -128.0))
        output a
        output b
    """,
    "numbers that are rounded to bf16": """
        input x: bf16[41]
        input y: bf16[41]
        a: bf16[i:41] = x[40 - i] * 0.1 + 0.7
        b: bf16[i:41] = y[40 - i] * 0.3 + 0.9
        output a
        output b
    """,
    "launches of a loop and behind it": """
        input x: f32[33]
        loop turn times 3
        state h of x
        h.next: f32[i:33] = h[32 - i] * 0.7 + 0.3
        carry h to h.next as h.last
        end
        y: f32[i:33] = h.last[32 - i] * 1.3 + 0.9
        output y
    """,
    "rows of a softmax": """
        input x: f32[6, 45]
        input y: f32[6, 45]
        a: f32[i:6, j:45] = x[i, j] * 0.3
        m: f32[i:6] max= a[i, j] over j:45
        e: f32[i:6, j:45] = exp(a[i, j] - m[i])
        s: f32[i:6] += e[i, j] over j:45
        p: f32[i:6, j:45] = e[i, j] / s[i]
        b: f32[i:6, j:45] = y[i, j] * 0.9
        n: f32[i:6] max= b[i, j] over j:45
        f: f32[i:6, j:45] = exp(b[i, j] - n[i])
        t: f32[i:6] += f[i, j] over j:45
        q: f32[i:6, j:45] = f[i, j] / t[i]
        output p
        output q
    """,
}


def parsed(text: str) -> Graph:
    return parse_graph("graph g\n" + dedent(text))


def program_of(graph: Graph) -> tuple[ModuleOp, bytes]:
    machine = resolve_target("host")
    plan = make_plan(graph, machine, 1, FRESH)
    placement = Placement(plan)
    return tile_program(plan, placement, machine, Options(cache=False, verify_each=True)), placement.packed(
        plan
    ).tobytes()


def numbers_of(program: ModuleOp) -> dict[str, int]:
    """How many numbers each kernel takes."""
    kernels = [op for op in program.body.block.ops if isinstance(op, FuncOp)]
    return {
        kernel.sym_name.data: sum(not isinstance(type_, MemRefType) for type_ in kernel.function_type.inputs.data)
        for kernel in kernels
    }


def inputs_of(graph: Graph) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [(generator.standard_normal(t.shape) * 40).astype(numpy_dtype(t.dtype)) for t in graph.inputs]


@pytest.mark.parametrize("name", SHARED)
def test_kernels_that_differ_in_numbers_are_one(name: str) -> None:
    graph = parsed(SHARED[name])
    program, constants = program_of(graph)
    shared = [kernel for kernel, count in numbers_of(program).items() if count]
    assert shared, print_module(program)
    module, values = compile_graph(graph, threads=1, options=FRESH), inputs_of(graph)
    assert len({launch.kernel for launch in module.manifest.launches}) < len(module.manifest.launches)
    results = module(*values)
    found = results if isinstance(results, tuple) else (results,)
    for result, expected in zip(found, evaluate(graph, values), strict=True):
        if expected.dtype.kind == "i":
            np.testing.assert_array_equal(result, expected)
        else:
            exact = expected.astype(np.float64)
            rounding = 2.0**-7 if "bf16" in name else 2.0**-17  # of two sums, or of a product over 37 elements
            assert np.abs(result.astype(np.float64) - exact).max() <= rounding * np.abs(exact).max()
    again = [np.zeros(result.size, result.dtype) for result in found]
    run_main(parse_module(print_module(program)), [value.reshape(-1) for value in values], again, constants)
    for result, interpreted in zip(found, again, strict=True):
        exact = interpreted.astype(np.float64).reshape(result.shape)
        assert np.abs(result.astype(np.float64) - exact).max() <= 2.0**-17 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("x[4 - i] / 4.0", "y[4 - i] / 0.25"),
        ("x[4 - i] * 1.0", "y[4 - i] * 0.5"),
        ("pow(x[4 - i], 2.0)", "pow(y[4 - i], 3.0)"),
    ],
)
def test_numbers_that_make_other_code_stay_literals(first: str, second: str) -> None:
    """A division by a power of two is a product, a factor of 1 is nothing, a square is a product."""
    assert counts_of(first, second) == [0, 0]


def test_a_number_that_its_type_holds_as_zero_stays_a_literal() -> None:
    """The sign of the smaller of two zeros is that of the code for 0."""
    assert counts_of("min(x[4 - i], 1e-40)", "min(y[4 - i], 0.5)", dtype="f16") == [0, 0]
    assert counts_of("min(x[4 - i], 1e-3)", "min(y[4 - i], 0.5)", dtype="f16") == [1]


def test_numbers_that_all_kernels_share_stay_literals() -> None:
    assert counts_of("x[4 - i] * 0.3 + 0.7", "y[4 - i] * 0.9 + 0.7") == [1]


def test_a_kernel_of_its_own_has_no_numbers() -> None:
    assert counts_of("x[4 - i] * 0.3", "exp(y[4 - i]) * 0.7") == [0, 0]


def counts_of(first: str, second: str, dtype: str = "f32") -> list[int]:
    """The numbers that the kernels of two maps take."""
    inputs = f"input x: {dtype}[5]\ninput y: {dtype}[5]\n"
    graph = parsed(f"{inputs}a: {dtype}[i:5] = {first}\nb: {dtype}[i:5] = {second}\noutput a\noutput b\n")
    return list(numbers_of(program_of(graph)[0]).values())
