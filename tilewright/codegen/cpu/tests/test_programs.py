"""Tile programs as machine code against the interpreter: random programs, and one per mistake that was once made."""

from __future__ import annotations

import re

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from tests.covering import some
from tests.random_kernels import random_kernel
from tilewright.codegen.cpu import pipeline
from tilewright.codegen.cpu.target import target_of
from tilewright.codegen.cpu.tests.execute import Array, aimed, compile_program, run_program, undefined_symbols
from tilewright.codegen.optimise import simplify, target_machine
from tilewright.compiler.compile import compile_graph
from tilewright.expr import GraphBuilder
from tilewright.expr.ops import conv
from tilewright.kernel.interpreter import run_main
from tilewright.kernel.text import parse_module, print_module
from tilewright.machine.description import missing_features
from tilewright.machine.detect import host
from tilewright.machine.registry import resolve_cpu
from tilewright.options import Options

X86 = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
RUNNABLE = ["host", *(name for name in X86 if not missing_features(resolve_cpu(name), host()))]
ALL = ["host", *X86, "aarch64"]


def program(body: str, views: str, launch: str, buffers: str) -> ModuleOp:
    """A module with one kernel of one program."""
    return parse_module(
        f"""builtin.module {{
  tile.func @kernel({views}) grid [1] {{
{body}
    tile.return
  }}
  tile.main arena 0 constants 0 {{
{buffers}
    tile.launch @kernel({", ".join(f"%{number}" for number in range(launch.count(",") + 1))}) : {launch}
  }}
}}"""
    )


def agrees(module: ModuleOp, inputs: list[Array], outputs: list[Array], machine: str = "host") -> None:
    """Machine code and interpreter give the same numbers, up to the last places of f16."""
    expected = [output.copy() for output in outputs]
    run_main(module, inputs, expected)
    for found, wanted in zip(run_program(module, inputs, machine), expected, strict=True):
        if found.dtype.kind == "i":
            np.testing.assert_array_equal(found, wanted)
        else:
            np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=1e-3, atol=1e-4)


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine", RUNNABLE)
@pytest.mark.parametrize("seed", range(0, 18, 6))
def test_random_programs_agree_with_the_interpreter(seed: int, machine: str) -> None:
    for number in some(range(seed, seed + 6), 2):
        kernel = random_kernel(number, functions=False)
        agrees(kernel.module, list(kernel.inputs), kernel.outputs(), machine)


@pytest.mark.parametrize("machine", ALL)
def test_no_library_is_called(machine: str) -> None:
    """Whatever the features are, all arithmetic is in the object itself, conversions of f16 and bf16 too."""
    for seed in some(range(100, 103), 1):
        kernel = random_kernel(seed, functions=True)
        assert not undefined_symbols(compile_program(kernel.module, machine).code), f"seed {seed}"


def test_x86_64_v2_has_no_avx() -> None:
    for seed in some(range(100, 102), 1):
        text = pipeline.assembly(aimed(random_kernel(seed).module, "x86-64-v2"))
        assert not re.findall(r"%[yz]mm|^\tv[a-z]+", text, re.MULTILINE), f"seed {seed}"


def test_same_text_same_bytes() -> None:
    for seed in some(range(4), 1):
        module = aimed(random_kernel(seed).module)
        first = pipeline.generate(module).code
        assert first == pipeline.generate(parse_module(print_module(module))).code


def test_masked_store_of_one_bf16_leaves_its_neighbour() -> None:
    """LLVM 20 merges a truncation into a masked store of one lane and then stores all 32 bits."""
    module = program(
        """    %2 = arith.constant 0 : index
    %3 = arith.constant 1 : index
    %4 = tile.load %0[%2] strides [1] : memref<16xf32> -> tensor<16xf32>
    %5 = tile.cast %4 : tensor<16xf32> -> tensor<16xbf16>
    %6 = arith.constant 3.000000e+00 : bf16
    %7 = tile.broadcast %6 : bf16 -> tensor<16xbf16>
    tile.store %7, %1[%2] strides [1] : tensor<16xbf16>, memref<16xbf16>
    tile.store %5, %1[%3] bounds(%3) strides [1] : tensor<16xbf16>, memref<16xbf16>""",
        "%0: memref<16xf32>, %1: memref<16xbf16>",
        "memref<16xf32>, memref<16xbf16>",
        """    %0 = tile.buffer "input" 0 : memref<16xf32>
    %1 = tile.buffer "output" 0 : memref<16xbf16>""",
    )
    agrees(module, [np.arange(16, dtype=np.float32)], [np.zeros(16, ml_dtypes.bfloat16)])


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("bound", range(1, 24))
def test_store_of_the_first_columns_leaves_the_others(bound: int, dtype: str) -> None:
    """A known part of a vector is stored in pieces."""
    module = program(
        f"""    %2 = arith.constant 0 : index
    %3 = arith.constant {bound} : index
    %4 = tile.load %0[%2] strides [1] : memref<24x{dtype}> -> tensor<24x{dtype}>
    %5 = arith.constant 0.0 : {dtype}
    %6 = tile.broadcast %5 : {dtype} -> tensor<24x{dtype}>
    tile.store %6, %1[%2] strides [1] : tensor<24x{dtype}>, memref<24x{dtype}>
    tile.store %4, %1[%2] bounds(%3) strides [1] : tensor<24x{dtype}>, memref<24x{dtype}>""",
        f"%0: memref<24x{dtype}>, %1: memref<24x{dtype}>",
        f"memref<24x{dtype}>, memref<24x{dtype}>",
        f"""    %0 = tile.buffer "input" 0 : memref<24x{dtype}>
    %1 = tile.buffer "output" 0 : memref<24x{dtype}>""",
    )
    type_ = np.float32 if dtype == "f32" else ml_dtypes.bfloat16
    for machine in RUNNABLE:
        agrees(module, [np.arange(1, 25).astype(type_)], [np.zeros(24, type_)], machine)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("rows", [2, 3, 4, 8])
@pytest.mark.parametrize("bound", [1, 7, 8, 16, 19, 24])
def test_rows_are_stored_between_each_other(rows: int, bound: int, dtype: str) -> None:
    size = rows * 24
    module = program(
        f"""    %2 = arith.constant 0 : index
    %3 = arith.constant {rows} : index
    %4 = arith.constant {bound} : index
    %5 = tile.load %0[%2] strides [24, 1] : memref<{size}x{dtype}> -> tensor<{rows}x24x{dtype}>
    %6 = arith.constant 0.0 : {dtype}
    %7 = tile.broadcast %6 : {dtype} -> tensor<{size}x{dtype}>
    tile.store %7, %1[%2] strides [1] : tensor<{size}x{dtype}>, memref<{size}x{dtype}>
    tile.store %5, %1[%2] bounds(%3, %4) strides [1, {rows}] : tensor<{rows}x24x{dtype}>, memref<{size}x{dtype}>""",
        f"%0: memref<{size}x{dtype}>, %1: memref<{size}x{dtype}>",
        f"memref<{size}x{dtype}>, memref<{size}x{dtype}>",
        f"""    %0 = tile.buffer "input" 0 : memref<{size}x{dtype}>
    %1 = tile.buffer "output" 0 : memref<{size}x{dtype}>""",
    )
    type_ = np.float32 if dtype == "f32" else ml_dtypes.bfloat16
    for machine in RUNNABLE:
        agrees(module, [np.arange(1, size + 1).astype(type_)], [np.zeros(size, type_)], machine)


def test_nontemporal_stores_ask_for_aligned_addresses_only() -> None:
    """Rows of 17 elements start at any address, whatever the alignment of the view is."""
    module = program(
        """    %2 = arith.constant 0 : index
    %3 = arith.constant 1 : index
    %4 = arith.constant 4 : index
    %5 = arith.constant 17 : index
    scf.for %6 = %2 to %4 step %3 {
      %7 = arith.muli %6, %5 : index
      %8 = tile.load %0[%7] strides [1] : memref<68xf32> -> tensor<16xf32>
      tile.store %8, %1[%7] strides [1] nontemporal : tensor<16xf32>, memref<68xf32>
      %9 = arith.constant 16 : index
      %10 = arith.addi %7, %9 : index
      %11 = tile.load %0[%10] strides [] : memref<68xf32> -> f32
      tile.store %11, %1[%10] strides [] nontemporal : f32, memref<68xf32>
    }""",
        "%0: memref<68xf32>, %1: memref<68xf32>",
        "memref<68xf32>, memref<68xf32>",
        """    %0 = tile.buffer "input" 0 : memref<68xf32>
    %1 = tile.buffer "output" 0 : memref<68xf32>""",
    )
    for machine in RUNNABLE:
        agrees(module, [np.arange(68, dtype=np.float32)], [np.zeros(68, np.float32)], machine)


@pytest.mark.covering
@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 16, 17, 23])
@pytest.mark.parametrize(
    ("intrinsic", "group", "dtypes", "feature"),
    [("vdpbf16ps", 2, ("bf16", "bf16", "f32"), "avx512bf16"), ("vpdpbusd", 4, ("i8", "i8", "i32"), "avx512vnni"),
     (f"vpmaddwd_{host().vector_bits // 32}x2_s16_s32", 2, ("i16", "i16", "i32"), "avx2"),
     ("", 2, ("bf16", "bf16", "f32"), "sse2"), ("widen_i32", 1, ("i8", "i8", "i32"), "sse2")],
)  # fmt: skip
@pytest.mark.parametrize("a_stride", [1, 2])
def test_products_of_words(
    n: int, intrinsic: str, group: int, dtypes: tuple[str, str, str], feature: str, a_stride: int
) -> None:
    """Any number of columns; neighbours of a that are not neighbours in memory."""
    if feature not in host().features:
        pytest.skip(f"this machine has no {feature}")
    m, k = 3, 8
    a, b, c = dtypes
    b_shape = f"{k // group}x{n}x{group}" if group > 1 else f"{k}x{n}"
    b_strides = f"{n * group}, {group}, 1" if group > 1 else f"{n}, 1"
    a_size, b_size, c_size = m * k * a_stride, k * n, m * n
    unsigned = "" if a == "i16" else "a"
    zero = "0" if c == "i32" else "0.000000e+00"
    views = f"memref<{a_size}x{a}>, memref<{b_size}x{b}>, memref<{c_size}x{c}>"
    module = program(
        f"""    %3 = arith.constant 0 : index
    %4 = tile.load %0[%3] strides [{k * a_stride}, {a_stride}] : memref<{a_size}x{a}> -> tensor<{m}x{k}x{a}>
    %5 = tile.load %1[%3] strides [{b_strides}] : memref<{b_size}x{b}> -> tensor<{b_shape}x{b}>
    %6 = arith.constant {zero} : {c}
    %7 = tile.broadcast %6 : {c} -> tensor<{m}x{n}x{c}>
    %8 = tile.dot "{intrinsic}" %4, %5, %7 unsigned "{unsigned}" : tensor<{m}x{k}x{a}>, tensor<{b_shape}x{b}>,
    tensor<{m}x{n}x{c}>
    tile.store %8, %2[%3] strides [{n}, 1] : tensor<{m}x{n}x{c}>, memref<{c_size}x{c}>""",
        f"%0: memref<{a_size}x{a}>, %1: memref<{b_size}x{b}>, %2: memref<{c_size}x{c}>",
        views,
        f"""    %0 = tile.buffer "input" 0 : memref<{a_size}x{a}>
    %1 = tile.buffer "input" 1 : memref<{b_size}x{b}>
    %2 = tile.buffer "output" 0 : memref<{c_size}x{c}>""",
    )
    generator = np.random.default_rng(n)
    if c == "i32":
        stored = np.dtype(np.int16 if a == "i16" else np.int8)
        inputs = [np.frombuffer(generator.bytes(size * stored.itemsize), stored).copy() for size in (a_size, b_size)]
        inputs[0][:2] = inputs[1][:2] = np.iinfo(stored).min
        agrees(module, inputs, [np.zeros(c_size, np.int32)])
    else:
        inputs = [generator.standard_normal(size).astype(ml_dtypes.bfloat16) for size in (a_size, b_size)]
        agrees(module, inputs, [np.zeros(c_size, np.float32)])


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine", RUNNABLE)
@pytest.mark.parametrize("element", ["i8", "i32", "f32", "f64"])
@pytest.mark.parametrize("n", [1, 3, 16, 37])
def test_scan_of_vectors(n: int, element: str, machine: str) -> None:
    """Parts of a register, whole ones, and several; both directions; the total is the last prefix."""
    scans = [f'"{kind}" %4{way}' for kind in ("sum", "max", "min") for way in ("", " reverse")]
    size = len(scans) * (n + 1)
    lines = [
        f"""    %{k}0, %{k}1 = tile.scan {scan} : tensor<{n}x{element}> -> tensor<{n}x{element}>, {element}
    %{k}2 = arith.constant {(k - 1) * (n + 1)} : index
    %{k}3 = arith.constant {k * (n + 1) - 1} : index
    tile.store %{k}0, %1[%{k}2] strides [1] : tensor<{n}x{element}>, memref<{size}x{element}>
    tile.store %{k}1, %1[%{k}3] strides [] : {element}, memref<{size}x{element}>"""
        for k, scan in enumerate(scans, 1)
    ]
    module = program(
        f"""    %3 = arith.constant 0 : index
    %4 = tile.load %0[%3] strides [1] : memref<{n}x{element}> -> tensor<{n}x{element}>
"""
        + "\n".join(lines),
        f"%0: memref<{n}x{element}>, %1: memref<{size}x{element}>",
        f"memref<{n}x{element}>, memref<{size}x{element}>",
        f"""    %0 = tile.buffer "input" 0 : memref<{n}x{element}>
    %1 = tile.buffer "output" 0 : memref<{size}x{element}>""",
    )
    numpy = {"i8": np.int8, "i32": np.int32, "f32": np.float32, "f64": np.float64}[element]
    given = np.random.default_rng(n).integers(-100, 100, n).astype(numpy)
    agrees(module, [given], [np.zeros(size, numpy)], machine)


def test_the_sequence_of_launches_has_no_branches() -> None:
    """LLVM gives up, and ends the process, after simplifying a thousand of them in one function."""
    module = aimed(random_kernel(0, functions=False).module)
    text, _, _ = pipeline.llvm_text(module, pipeline.target_of(module))
    main = text[text.index('define i32 @"tw_main"') :]
    assert "br " not in main[: main.index("\n}")]


def test_simplifying_leaves_nothing_to_combine() -> None:
    """Rotated loops and merged expressions leave addresses that instructions can be combined of."""
    b = GraphBuilder("image")
    weights = b.constant(np.ones((96, 40, 3, 3), np.float32), "w")
    graph = b.finish([conv.conv(b.input("x", (1, 40, 14, 14), "f32"), weights, pads=(1, 1, 1, 1))])
    source = parse_module(compile_graph(graph, threads=1, options=Options(cache=False)).artifact.program)
    target = target_of(source)
    module = llvm.parse_assembly(pipeline.llvm_text(source, target)[0], context=llvm.create_context())
    machine = target_machine(target.triple, cpu=target.cpu, features=target.feature_string())
    simplify(module, machine)
    simplified = str(module)
    manager = llvm.create_new_function_pass_manager()
    manager.add_instruction_combine_pass()
    with llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()) as builder:
        for function in module.functions:
            if not function.is_declaration:
                manager.run(function, builder)
    assert str(module) == simplified
