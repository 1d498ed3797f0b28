"""Every rule of the dialect refuses something, and says so."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tilewright.errors import InvalidProgram
from tilewright.kernel import dialect, programs, verify
from tilewright.kernel.text import parse_module

VALUES = """\
  %o = arith.constant 0 : index
  %x = arith.constant dense<1.0> : tensor<4x8xf32>
  %w = arith.constant dense<1.0> : tensor<8x4xf32>
  %s = arith.constant dense<1.0> : tensor<4x4xf32>
  %i = arith.constant dense<1> : tensor<8x4xi32>
  %l = arith.constant dense<1> : tensor<4x8xi64>
  %b = arith.constant dense<true> : tensor<4x8xi1>
  %d = arith.constant 1.0 : f64
  %t = arith.constant true
"""


def _loop(body: str, trips: int = 4) -> str:
    buffer = '%b = tile.buffer "arena" 0 : memref<16xf32>'
    return f"tile.main arena 64 constants 0 {{ {buffer}\n tile.loop %t of {trips} {{ {body} }} }}"


# Body of a kernel with view %v : memref<64xf32> and the values above, or a whole module; then the error.
CASES = [
    # tile.func
    ('"tile.func"() <{sym_name = "k", function_type = (memref<8xf32>) -> (), grid = array<i64: 1>}> ({\n'
     "^bb0(%a: memref<9xf32>):\n  tile.return\n}) : () -> ()", "argument types differ from the function type"),
    ('"tile.func"() <{sym_name = "k", function_type = () -> index, grid = array<i64: 1>}> ({\n'
     "  tile.return\n}) : () -> ()", "kernel k: returns values; kernels write to views instead"),
    ("tile.func @k(%a: index) grid [1] { tile.return }", "kernel k: argument index is not a view (memref) or a number"),
    ("tile.func @k(%a: f32) grid [1] threads [32, 1, 1] warp 32 { tile.return }",
     "kernel k: argument f32 is not a view (memref)"),
    ("tile.func @k() grid [1] attributes {stages = 0 : i64} { tile.return }", "kernel k: stages = 0 : i64 (buffers: "),
    ("tile.func @k() grid [-1] { tile.return }", "kernel k: grid (-1,) has a negative extent"),
    ("tile.func @k() grid [4] cluster 0 { tile.return }", "kernel k: a cluster of 0 blocks; 2 or more"),
    ("tile.func @k(%a: memref<4x4xf32>) grid [1] { tile.return }", "is not a flat view"),
    ("tile.func @k(%a: memref<?xf32>) grid [1] { tile.return }", "is not a flat view"),
    ("tile.func @k(%a: memref<4xi1>) grid [1] { tile.return }", "bool is stored as i8"),
    ("tile.func @k() grid [1] { scf.yield }", "kernel k: its body does not end with tile.return"),
    ("tile.func @k() grid [1] { }", "a region does not end with its terminator"),
    ("tile.func @k() grid [1] { tile.return tile.return }", "tile.return in the middle of a region"),
    ("tile.func @k() grid [1] { tile.return }\ntile.func @k() grid [1] { tile.return }", "Redefinition of symbol"),
    ("tile.func @k() grid [1] threads [32, 1] warp 32 { tile.return }", "kernel k: threads [32, 1] in warps of 32"),
    ("tile.func @k() grid [1] threads [32, 0, 1] warp 32 { tile.return }", "kernel k: threads [32, 0, 1] in warps"),
    ("tile.func @k() grid [1] threads [40, 1, 1] warp 32 { tile.return }", "kernel k: 40 threads in warps of 32"),
    # tile.program_id
    ("%p = tile.program_id 2", "axis 2 of the grid [4, 2]"),
    ("%p = tile.program_id -1", "axis -1 of the grid [4, 2]"),
    # tile.main, tile.buffer, tile.launch
    ("tile.main arena -1 constants 0 {}", "arena of -1 bytes, constants of 0 bytes"),
    ("tile.main arena 64 zeroed 65 constants 0 {}", "zeros in the first 65 bytes of an arena of 64"),
    ("tile.main arena 0 constants 0 {\n^bb0(%a: index):\n}", "tile.main takes no arguments"),
    ("tile.main arena 0 constants 0 { %p = tile.program_id 0 }", "buffers, numbers, launches and loops only, not"),
    ("tile.main arena 0 constants 0 { %c = arith.constant 1 : index }", "numbers that launches give kernels, not"),
    (_loop("", trips=0), "a loop of 0 trips"),
    (_loop("%c = arith.constant 1 : i8"), "views, launches and loops only, not arith.constant"),
    (_loop("%s = tile.slice %b at %t from 0 by 4 period 0 : memref<16xf32> -> memref<8xf32>"), "12 to 20 of 16"),
    (_loop("%s = tile.slice %b at %t from 0 by 4 period 0 : memref<16xf32> -> memref<4xi8>"), "a slice of memref"),
    (_loop("%s = tile.slice %b at %t from 0 by 0 period -1 : memref<16xf32> -> memref<4xf32>"), "a period of -1"),
    ("tile.main arena 0 constants 0 {}\ntile.main arena 0 constants 0 {}", "2 tile.main in one module"),
    ('tile.main arena 0 constants 0 { %c = tile.buffer "heap" 0 : memref<4xf32> }', "unknown buffer space 'heap'"),
    ('tile.main arena 0 constants 0 { %c = tile.buffer "arena" -4 : memref<4xf32> }', "buffer at -4"),
    ('%c = tile.buffer "arena" 0 : memref<4xf32>', "tile.buffer outside of tile.main"),
    ("tile.main arena 0 constants 0 { tile.launch @none() : }", "launches @none, which is not a kernel of this module"),
    ('tile.func @k(%a: memref<8xf32>) grid [1] { tile.return }\ntile.main arena 0 constants 0 {\n'
     '%c = tile.buffer "input" 0 : memref<4xf32> tile.launch @k(%c) : memref<4xf32> }',
     "launches @k on (memref<4xf32>); it takes (memref<8xf32>)"),
    # accesses
    ("%r = tile.load %v[%o] strides [1] : memref<64xf32> -> tensor<4x8xf32>", "1 strides for a tile of 2 dimensions"),
    ("tile.store %x, %v[%o] strides [1] : tensor<4x8xf32>, memref<64xf32>", "1 strides for a tile of 2 dimensions"),
    ("tile.store %x, %v[%o] bounds(%o) strides [8, 1] : tensor<4x8xf32>, memref<64xf32>", "1 bounds for a tile of 2"),
    ("%r = tile.load %v[%o] strides [] : memref<64xf32> -> f64", "a tile of f64 from a view of f32"),
    # tile.load_box
    ("%r = tile.load_box %v[%o] extents [4, 4] strides [4, 1] : memref<64xf32> -> tensor<4x4xf32>",
     "extents [4, 4], strides [4, 1], 1 coordinates, a box of tensor<4x4xf32>"),
    ("%r = tile.load_box %v[%o, %o] extents [4, 4] strides [4, 1] : memref<64xf32> -> tensor<4x4xf16>",
     "reads memref<64xf32> as tensor<4x4xf16>"),
    ("%r = tile.load_box %v[%o, %o] extents [4, 4] strides [32, 1] : memref<64xf32> -> tensor<4x4xf32>",
     "a tensor of [4, 4] with strides [32, 1] in memref<64xf32>"),
    ("%r = tile.load_box %v[%o, %o] extents [4, 0] strides [4, 1] : memref<64xf32> -> tensor<4x4xf32>",
     "a tensor of [4, 0] with strides [4, 1] in memref<64xf32>"),
    ("%r = tile.load %v[%o] mask %t : i1 strides [1] : memref<64xf32> -> tensor<8xf32>", "mask i1 for a tile"),
    ("%r = tile.load %v[%o] mask %x : tensor<4x8xf32> strides [8, 1] : memref<64xf32> -> tensor<4x8xf32>", "mask tens"),
    ("%r = tile.load %v[%o] strides [1] align 12 : memref<64xf32> -> tensor<8xf32>", "alignment of 12 bytes"),
    ("%a = tile.alloc : memref<2x2xf32>", "is not a flat view"),
    ("%r = tile.gather %v[%i : tensor<8x4xi32>] : memref<64xf32> -> tensor<8x4xf32>", "offsets of i32, not i64"),
    ("%r = tile.gather %v[%l : tensor<4x8xi64>] : memref<64xf32> -> tensor<8x4xf32>", "gathers tensor<8x4xf32> with"),
    ("%r = tile.gather %v[%l : tensor<4x8xi64>] mask %t : i1 : memref<64xf32> -> tensor<4x8xf32>", "mask i1 for te"),
    ("tile.prefetch %v[%o] 0 : memref<64xf32>", "prefetches 0 bytes"),
    # shared memory
    ('tile.stage %v[%o] to %v[%o] when %t strides [1] align 4 memory "" tensor<4x8xf32> : memref<64xf32>, '
     "memref<64xf32>", "1 strides for tensor<4x8xf32>"),
    ('tile.stage %v[%o] to %v[%o] when %t strides [1] align 4 memory "" tensor<8xf64> : memref<64xf32>, memref<64xf32>',
     "stages tensor<8xf64> from memref<64xf32> in memref<64xf32>"),
    ("tile.await -1", "waits for -1 groups"),
    ('%r = tile.unstage %v[%o] memory "" : memref<64xf32> -> tensor<8xf64>', "reads tensor<8xf64> from memref<64xf32>"),
    # tiles
    ("%r = tile.iota 2 : tensor<4x8xi64>", "axis 2 of tensor<4x8xi64>"),
    ("%r = tile.iota 0 : tensor<4x8xi32>", "axis 0 of tensor<4x8xi32>"),
    ("%r = tile.broadcast %x : tensor<4x8xf32> -> tensor<8x8xf32>", "cannot repeat tensor<4x8xf32> to tensor<8x8xf32>"),
    ("%r = tile.broadcast %x : tensor<4x8xf32> -> tensor<2x4x8xf32>", "cannot repeat"),
    ("%r = tile.broadcast %d : f64 -> tensor<8xf32>", "changes the element type of f64 to f32"),
    ("%r = tile.reshape %x : tensor<4x8xf32> -> tensor<31xf32>", "reshapes tensor<4x8xf32> to tensor<31xf32>"),
    ("%r = tile.reshape %x : tensor<4x8xf32> -> tensor<32xf64>", "changes the element type of tensor<4x8xf32> to f64"),
    ("%r = tile.convert %x : tensor<4x8xf32> -> tensor<8x4xf32>", "converts tensor<4x8xf32> to tensor<8x4xf32>"),
    ("%r = tile.remainder %l, %l : tensor<4x8xi64>", "the remainder of tensor<4x8xi64>, which are no floats"),
    ('%r = tile.compare "lower" %x, %x : tensor<4x8xf32> -> tensor<4x8xi1>', "unknown predicate 'lower'; one of eq"),
    ('%r = tile.compare "lt" %x, %x : tensor<4x8xf32> -> tensor<4x8xi8>', "compares tensor<4x8xf32> into"),
    ("%r = tile.select %d, %x, %x : f64, tensor<4x8xf32>", "condition f64 for tensor<4x8xf32>"),
    ("%r = tile.cast %x : tensor<4x8xf32> -> tensor<8x4xf32>", "casts tensor<4x8xf32> to tensor<8x4xf32>"),
    ('%r = tile.reduce "mean" %x, 0 : tensor<4x8xf32> -> tensor<1x8xf32>', "unknown reduction 'mean'; one of sum"),
    ('%r = tile.reduce "sum" %x, 2 : tensor<4x8xf32> -> tensor<1x8xf32>', "reduces axis 2 of tensor<4x8xf32>"),
    ('%r = tile.reduce "sum" %x, 0 : tensor<4x8xf32> -> tensor<4x1xf32>', "reduces axis 0 of tensor<4x8xf32> to"),
    ('%r = tile.reduce "sum" %x, 0 : tensor<4x8xf32> -> tensor<1x8xf64>', "reduces axis 0 of tensor<4x8xf32> to"),
    ('%r, %q = tile.scan "sum" %x : tensor<4x8xf32> -> tensor<4x8xf32>, f32', "scans tensor<4x8xf32>, which has"),
    ('%y = arith.constant dense<1.0> : tensor<8xf32>\n'
     '%r, %q = tile.scan "mean" %y : tensor<8xf32> -> tensor<8xf32>, f32', "unknown scan 'mean'; one of sum"),
    ('%y = arith.constant dense<1.0> : tensor<8xf32>\n'
     '%r, %q = tile.scan "sum" %y : tensor<8xf32> -> tensor<8xf32>, f64', "scans tensor<8xf32> to"),
    ('%y = arith.constant dense<true> : tensor<8xi1>\n'
     '%r, %q = tile.scan "max" %y : tensor<8xi1> -> tensor<8xi1>, i1', "scans flags by max, not by unsigned max"),
    ('%y = arith.constant dense<1.0> : tensor<8xf32>\n'
     '%r = tile.dot "" %x, %y, %s unsigned "" : tensor<4x8xf32>, tensor<8xf32>, tensor<4x4xf32>', "multiplies tensor"),
    ('%r = tile.dot "" %x, %x, %s unsigned "" : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x4xf32>',
     "contracts 8 columns of a with 4 rows of b"),
    ('%r = tile.dot "" %x, %w, %x unsigned "" : tensor<4x8xf32>, tensor<8x4xf32>, tensor<4x8xf32>', "adds 4x4 product"),
    ('%r = tile.dot "" %x, %i, %s unsigned "" : tensor<4x8xf32>, tensor<8x4xi32>, tensor<4x4xf32>', "mixes integers"),
    ('%r = tile.dot "" %x, %w, %s unsigned "c" : tensor<4x8xf32>, tensor<8x4xf32>, tensor<4x4xf32>',
     "unsigned operands 'c'"),
    ('%r = tile.dot "" %x, %w, %s unsigned "" precision "tf32x2" : tensor<4x8xf32>, tensor<8x4xf32>, tensor<4x4xf32>',
     "unknown precision 'tf32x2'; one of ieee, tf32, tf32x3"),
    ('%y = tile.cast %x : tensor<4x8xf32> -> tensor<4x8xf16>\n'
     '%r = tile.dot "" %y, %w, %s unsigned "" precision "tf32" : tensor<4x8xf16>, tensor<8x4xf32>, tensor<4x4xf32>',
     "precision 'tf32' of a product of tensor<4x8xf16> and tensor<8x4xf32>, which is of f32"),
    # tile.tf32
    ('%r = tile.tf32 "even" %x : tensor<4x8xf32>', "unknown kind 'even'; one of nearest, high, low"),
    ('%r = tile.tf32 "high" %d : f64', "reads f64 as tf32, not f32"),
    # whole programs
    ("%r = arith.addf %r2, %d : f64\n%r2 = arith.addf %d, %d : f64", "operand %r2 is not defined before"),
    ("scf.if %t { %h = arith.addf %d, %d : f64 }\n%r = arith.addf %h, %d : f64", "is used but not defined"),
    ("%r = scf.if %t -> (f64) { scf.yield %d : f64 }", "gives values but has no else"),
    ("%r = scf.if %t -> (f64) { scf.yield %d : f64 } else { scf.yield %o : index }", "yields (index) for (f64)"),
    ("%r = scf.for %n = %o to %o step %o iter_args(%a = %d) -> (f64) { scf.yield %o : index }", "Expected yield arg"),
    ("%r = arith.constant dense<1> : tensor<0xi32>", "extents are known and at least 1, scalars are bare"),
    ("%r = arith.constant dense<1> : tensor<i32>", "extents are known and at least 1, scalars are bare"),
    ("%r = arith.constant 1 : i7", "values of i7; elements are bf16"),
    ("%r = arith.constant dense<1> : vector<4xi32>", "values of vector<4xi32>"),
    ("%r = arith.constant 1.0 : f128", "values of f128"),
    ("%r = arith.cmpf ogt, %d, %d : f64", "arith.cmpf: not an operation of tile programs"),
    ("%r = tile.select %t, %v, %v : i1, memref<64xf32>", "views are only loaded and stored"),
    ("tile.store %v, %v[%o] strides [] : memref<64xf32>, memref<64xf32>", "views are only loaded and stored"),
    ("arith.constant 1 : i8", "a module holds kernels and one tile.main, not arith.constant"),
]  # fmt: skip


def whole(text: str) -> str:
    if text.startswith(("tile.func", "tile.main", '"tile.func', "arith.constant")):
        return text
    return f"tile.func @k(%v: memref<64xf32>) grid [4, 2] {{\n{VALUES}  {text}\n  tile.return\n}}"


@pytest.mark.parametrize(("text", "message"), CASES, ids=[message for _, message in CASES])
def test_rule(text: str, message: str) -> None:
    with pytest.raises(InvalidProgram) as caught:
        parse_module(whole(text), "file")
    assert message in caught.value.message
    assert caught.value.where.startswith("file:")
    assert "1:1" not in caught.value.where or whole(text) == text


def test_the_values_of_the_cases_are_legal() -> None:
    parse_module(whole("%r = tile.cast %x : tensor<4x8xf32> -> tensor<4x8xf64>"))


def test_program_id_outside_of_a_kernel() -> None:
    with pytest.raises(InvalidProgram, match="buffers, numbers, launches and loops only"):
        parse_module("tile.main arena 0 constants 0 { %p = tile.program_id 0 }")


def test_every_message_has_a_case() -> None:
    """The first words of every VerifyException of the dialect and the verifier occur in a case."""
    unreachable = {
        "{op.name} outside of a kernel",  # tile.main refuses it first
        "a region of several blocks; control flow is scf.for and scf.if",  # its operations refuse it first
    }
    messages = []
    for module in (programs, dialect, verify):
        source = Path(str(module.__file__)).read_text()
        messages += re.findall(r'VerifyException\(\s*f?"([^"]*)"', source)
    assert len(messages) > 40
    for message in set(messages) - unreachable:
        pattern = ".*".join(re.escape(piece) for piece in re.split(r"\{[^}]*\}", message))
        found = [case for text, case in CASES if re.search(pattern, _error(text))]
        assert found, f"no case for {message!r}"


@cache
def _error(text: str) -> str:
    try:
        parse_module(whole(text))
    except InvalidProgram as error:
        return error.message
    return ""
