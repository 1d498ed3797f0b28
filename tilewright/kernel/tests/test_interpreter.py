"""The interpreter: what programs compute, and what it refuses to let pass."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from tilewright.errors import InvalidProgram
from tilewright.kernel.interpreter import run_kernel, run_main
from tilewright.kernel.text import parse_module, print_module


def kernel(body: str, arguments: str = "%x: memref<64xf32>, %y: memref<64xf32>", grid: str = "[4]") -> ModuleOp:
    return parse_module(f"tile.func @k({arguments}) grid {grid} {{\n{body}\ntile.return\n}}")


INDICES = "\n".join(f"%c{number} = arith.constant {number} : index" for number in (0, 1, 2, 3, 4, 8, 16, 60, 64))


def numbers(count: int = 64) -> np.ndarray:
    return np.arange(count, dtype=np.float32)


def test_a_strided_load_with_bounds_and_mask() -> None:
    module = kernel(
        INDICES
        + """
        %i = tile.iota 1 : tensor<3x4xi64>
        %two = arith.constant dense<2> : tensor<3x4xi64>
        %m = tile.compare "ne" %i, %two : tensor<3x4xi64> -> tensor<3x4xi1>
        %t = tile.load %x[%c2] bounds(%c2, %c4) mask %m : tensor<3x4xi1> strides [8, 2] \
          : memref<64xf32> -> tensor<3x4xf32>
        tile.store %t, %y[%c0] strides [4, 1] : tensor<3x4xf32>, memref<64xf32>""",
        grid="[1]",
    )
    x, y = numbers(), np.full(64, -1, np.float32)
    run_kernel(module, "k", [x, y])
    assert y[:12].tolist() == [2, 4, 0, 8, 10, 12, 0, 16, 0, 0, 0, 0]
    assert (y[12:] == -1).all()


def test_a_store_touches_only_what_bounds_and_mask_allow() -> None:
    module = kernel(
        INDICES
        + """
        %t = tile.load %x[%c0] strides [4, 1] : memref<64xf32> -> tensor<4x4xf32>
        %four = arith.constant dense<4.0> : tensor<4x4xf32>
        %m = tile.compare "ge" %t, %four : tensor<4x4xf32> -> tensor<4x4xi1>
        tile.store %t, %y[%c60] bounds(%c2, %c2) mask %m : tensor<4x4xi1> strides [2, 1] \
          : tensor<4x4xf32>, memref<64xf32>""",
        grid="[1]",
    )
    x, y = numbers(), np.full(64, -1, np.float32)
    run_kernel(module, "k", [x, y])
    assert y[60:].tolist() == [-1, -1, 4, 5]


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("unsigned", ["", "a", "b", "ab"])
def test_dot_of_bytes(group: int, unsigned: str) -> None:
    b_type = "8x5" if group == 1 else f"{8 // group}x5x{group}"
    b_strides = "[5, 1]" if group == 1 else f"[{5 * group}, {group}, 1]"
    module = kernel(
        f"""{INDICES}
        %ta = tile.load %a[%c0] strides [8, 1] : memref<24xi8> -> tensor<3x8xi8>
        %tb = tile.load %b[%c0] strides {b_strides} : memref<40xi8> -> tensor<{b_type}xi8>
        %tc = arith.constant dense<7> : tensor<3x5xi32>
        %d = tile.dot "" %ta, %tb, %tc unsigned "{unsigned}" : tensor<3x8xi8>, tensor<{b_type}xi8>, tensor<3x5xi32>
        tile.store %d, %y[%c0] strides [5, 1] : tensor<3x5xi32>, memref<15xi32>""",
        "%a: memref<24xi8>, %b: memref<40xi8>, %y: memref<15xi32>",
        "[1]",
    )
    rng = np.random.default_rng(0)
    a = rng.integers(0, 256, (3, 8)).astype(np.uint8 if "a" in unsigned else np.int8)
    b = rng.integers(0, 256, (8, 5)).astype(np.uint8 if "b" in unsigned else np.int8)
    grouped = b.reshape(8 // group, group, 5).transpose(0, 2, 1)
    y = np.zeros(15, np.int32)
    run_kernel(module, "k", [a.ravel(), np.ascontiguousarray(grouped).ravel(), y])
    assert (y.reshape(3, 5) == a.astype(np.int32) @ b.astype(np.int32) + 7).all()


def test_dot_adds_in_the_type_of_c() -> None:
    module = kernel(
        INDICES
        + """
        %a = arith.constant dense<1.0> : tensor<1x3xf16>
        %b = arith.constant dense<1.0> : tensor<3x1xf16>
        %c = arith.constant dense<2048.0> : tensor<1x1xf16>
        %d = tile.dot "" %a, %b, %c unsigned "" : tensor<1x3xf16>, tensor<3x1xf16>, tensor<1x1xf16>
        tile.store %d, %y[%c0] strides [1, 1] : tensor<1x1xf16>, memref<1xf16>""",
        "%y: memref<1xf16>",
        "[1]",
    )
    y = np.zeros(1, np.float16)
    run_kernel(module, "k", [y])
    assert y[0] == 2048  # 2048 + 1 is 2048 in f16, three times


@pytest.mark.parametrize(
    ("kind", "result"), [("sum", 6.0), ("prod", 0.0), ("max", 3.0), ("min", 0.0)]
)  # fmt: skip
def test_reduce(kind: str, result: float) -> None:
    module = kernel(
        f"""{INDICES}
        %t = tile.load %x[%c0] strides [4, 1] : memref<64xf32> -> tensor<2x4xf32>
        %r = tile.reduce "{kind}" %t, 1 : tensor<2x4xf32> -> tensor<2x1xf32>
        tile.store %r, %y[%c0] strides [1, 1] : tensor<2x1xf32>, memref<64xf32>""",
        grid="[1]",
    )
    y = np.zeros(64, np.float32)
    run_kernel(module, "k", [numbers(), y])
    assert y[0] == result


def test_scan_and_its_total() -> None:
    """Five elements in both directions; numbers with a sign and without."""
    module = kernel(
        INDICES
        + """
        %t = arith.constant dense<[1, -1, 3, 5, 0]> : tensor<5xi8>
        %a, %last = tile.scan "sum" %t : tensor<5xi8> -> tensor<5xi8>, i8
        %b, %first = tile.scan "sum" %t reverse : tensor<5xi8> -> tensor<5xi8>, i8
        %c, %most = tile.scan "max" %t unsigned : tensor<5xi8> -> tensor<5xi8>, i8
        tile.store %a, %y[%c0] strides [1] : tensor<5xi8>, memref<64xi8>
        tile.store %b, %y[%c8] strides [1] : tensor<5xi8>, memref<64xi8>
        tile.store %c, %y[%c16] strides [1] : tensor<5xi8>, memref<64xi8>
        tile.store %last, %y[%c60] strides [] : i8, memref<64xi8>""",
        "%y: memref<64xi8>",
        grid="[1]",
    )
    y = np.zeros(64, np.int8)
    run_kernel(module, "k", [y])
    assert y[:5].tolist() == [1, 0, 3, 8, 8]
    assert y[8:13].tolist() == [8, 7, 8, 5, 0]
    assert y[16:21].tolist() == [1, -1, -1, -1, -1]
    assert y[60] == 8


def test_reduce_of_unsigned_and_of_bool() -> None:
    module = kernel(
        INDICES
        + """
        %t = arith.constant dense<[1, -1, 3]> : tensor<3xi8>
        %a = tile.reduce "max" %t, 0 : tensor<3xi8> -> tensor<1xi8>
        %b = tile.reduce "max" %t, 0 unsigned : tensor<3xi8> -> tensor<1xi8>
        %m = arith.constant dense<[true, true, false]> : tensor<3xi1>
        %c = tile.reduce "max" %m, 0 : tensor<3xi1> -> tensor<1xi1>
        %d = tile.cast %c : tensor<1xi1> -> tensor<1xi8>
        tile.store %a, %y[%c0] strides [1] : tensor<1xi8>, memref<3xi8>
        tile.store %b, %y[%c1] strides [1] : tensor<1xi8>, memref<3xi8>
        tile.store %d, %y[%c2] strides [1] : tensor<1xi8>, memref<3xi8>""",
        "%y: memref<3xi8>",
        "[1]",
    )
    y = np.zeros(3, np.uint8)
    run_kernel(module, "k", [y])
    assert y.tolist() == [3, 255, 1]


def test_dense_bools_count_as_one() -> None:
    module = kernel(
        INDICES
        + """
        %m = arith.constant dense<[true, false, true]> : tensor<3xi1>
        %n = tile.cast %m : tensor<3xi1> -> tensor<3xbf16>
        %s = tile.reduce "sum" %n, 0 : tensor<3xbf16> -> tensor<1xbf16>
        tile.store %s, %y[%c0] strides [1] : tensor<1xbf16>, memref<1xbf16>""",
        "%y: memref<1xbf16>",
        "[1]",
    )
    y = np.zeros(1, ml_dtypes.bfloat16)
    run_kernel(module, "k", [y])
    assert y[0] == 2


def test_loops_carry_values_and_branches_choose() -> None:
    module = kernel(
        INDICES
        + """
        %p = tile.program_id 0
        %zero = arith.constant 0 : index
        %n, %last = scf.for %i = %c1 to %c8 step %c2 iter_args(%sum = %zero, %before = %c64) -> (index, index) {
          %more = arith.addi %sum, %i : index
          %even = tile.compare "lt" %p, %c2 : index -> i1
          %next = scf.if %even -> (index) {
            scf.yield %more : index
          } else {
            scf.yield %sum : index
          }
          scf.yield %next, %i : index, index
        }
        %both = arith.addi %n, %last : index
        %narrow = arith.index_cast %both : index to i32
        tile.store %narrow, %y[%p] strides [] : i32, memref<4xi32>""",
        "%y: memref<4xi32>",
    )
    y = np.zeros(4, np.int32)
    run_kernel(module, "k", [y], seed=3, races=True)
    assert y.tolist() == [1 + 3 + 5 + 7 + 7] * 2 + [7] * 2


def test_programs_run_over_the_whole_grid() -> None:
    body = """
        %p = tile.program_id 0
        %q = tile.program_id 1
        %c3 = arith.constant 3 : index
        %row = arith.muli %p, %c3 : index
        %o = arith.addi %row, %q : index
        %n = arith.index_cast %o : index to i64
        tile.store %n, %y[%o] strides [] : i64, memref<6xi64>"""
    for seed in (None, 0, 1):
        y = np.zeros(6, np.int64)
        run_kernel(kernel(body, "%y: memref<6xi64>", "[2, 3]"), "k", [y], seed=seed, races=True)
        assert y.tolist() == list(range(6))


def test_an_empty_grid_runs_nothing() -> None:
    body = "%t = arith.constant 1.0 : f32\ntile.store %t, %y[%c0] strides [] : f32, memref<64xf32>"
    module = kernel(f"{INDICES}\n{body}", grid="[0, 4]")
    y = np.zeros(64, np.float32)
    run_kernel(module, "k", [numbers(), y])
    assert (y == 0).all()


# What it refuses ------------------------------------------------------------------------------------------------------

LOAD = "%t = tile.load %x[%c0] strides [1] : memref<64xf32> -> tensor<4xf32>\n"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("%t = tile.load %x[%c60] strides [2] : memref<64xf32> -> tensor<4xf32>", "touches element 64 of a view of 64"),
        ("%m = arith.constant -1 : index\n%t = tile.load %x[%m] strides [] : memref<64xf32> -> f32", "element -1 of a"),
        (f"{LOAD}tile.store %t, %y[%c64] strides [1] : tensor<4xf32>, memref<64xf32>", "touches element 64"),
        (f"{LOAD}tile.store %t, %y[%c0] strides [0] : tensor<4xf32>, memref<64xf32>", "two elements of one store"),
        ("%i = arith.constant dense<64> : tensor<2xi64>\n"
         "%t = tile.gather %x[%i : tensor<2xi64>] : memref<64xf32> -> tensor<2xf32>", "touches element 64"),
        ("%a = tile.alloc : memref<4xf32>\n%t = tile.load %a[%c3] strides [] : memref<4xf32> -> f32",
         "reads element 3, which nothing has written"),
        ("%a = tile.alloc : memref<4xf32>\n%t = arith.constant dense<1.0> : tensor<4xf32>\n"
         "tile.store %t, %a[%c0] bounds(%c2) strides [1] : tensor<4xf32>, memref<4xf32>\n"
         "%u = tile.load %a[%c0] bounds(%c3) strides [1] : memref<4xf32> -> tensor<4xf32>", "reads element 2, which"),
        ("scf.for %i = %c0 to %c4 step %c0 {\n}", "steps by 0; a step is positive"),
    ],
)  # fmt: skip
def test_refuses(body: str, message: str) -> None:
    with pytest.raises(InvalidProgram) as caught:
        run_kernel(kernel(f"{INDICES}\n{body}"), "k", [numbers(), numbers()])
    assert message in caught.value.message
    assert "@k, program [0]" in caught.value.where
    assert "\n    " in caught.value.message, "the operation is shown"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"{LOAD}tile.store %t, %y[%c0] strides [1] : tensor<4xf32>, memref<64xf32>", "writes element 0, which an"),
        ("%p = tile.program_id 0\n%t = tile.load %y[%c0] strides [] : memref<64xf32> -> f32\n"
         "tile.store %t, %y[%p] strides [] : f32, memref<64xf32>", "another program of this launch"),
    ],
)  # fmt: skip
def test_races_are_reported(body: str, message: str) -> None:
    module = kernel(f"{INDICES}\n{body}")
    run_kernel(module, "k", [numbers(), numbers()])
    for seed in (None, 0, 1, 2):
        with pytest.raises(InvalidProgram, match="race: ") as caught:
            run_kernel(module, "k", [numbers(), numbers()], races=True, seed=seed)
        assert message in caught.value.message


def test_buffers_must_fit() -> None:
    module = kernel("")
    with pytest.raises(InvalidProgram, match="argument 1 of @k is 64 float64; the program has memref<64xf32>"):
        run_kernel(module, "k", [numbers(), np.zeros(64)])
    with pytest.raises(InvalidProgram, match="argument 0 of @k is 63 float32"):
        run_kernel(module, "k", [numbers(63), numbers()])
    with pytest.raises(InvalidProgram, match="takes 2 arguments, not 1"):
        run_kernel(module, "k", [numbers()])
    with pytest.raises(InvalidProgram, match="no kernel @other"):
        run_kernel(module, "other", [])


# tile.main ------------------------------------------------------------------------------------------------------------

PROGRAM = """
tile.func @add(%a: memref<8xbf16>, %b: memref<8xf32>, %y: memref<8xf32>) grid [2] {
  %c4 = arith.constant 4 : index
  %p = tile.program_id 0
  %o = arith.muli %p, %c4 : index
  %x = tile.load %a[%o] strides [1] : memref<8xbf16> -> tensor<4xbf16>
  %w = tile.load %b[%o] strides [1] : memref<8xf32> -> tensor<4xf32>
  %v = tile.cast %x : tensor<4xbf16> -> tensor<4xf32>
  %s = arith.addf %v, %w : tensor<4xf32>
  tile.store %s, %y[%o] strides [1] : tensor<4xf32>, memref<8xf32>
  tile.return
}
tile.main arena 48 constants 64 {
  %a = tile.buffer "input" 0 : memref<8xbf16>
  %b = tile.buffer "constant" 32 : memref<8xf32>
  %t = tile.buffer "arena" 16 : memref<8xf32>
  %h = tile.buffer "arena" 0 : memref<8xbf16>
  %y = tile.buffer "output" 0 : memref<8xf32>
  tile.launch @add(%a, %b, %t) : memref<8xbf16>, memref<8xf32>, memref<8xf32>
  tile.launch @add(%a, %t, %y) : memref<8xbf16>, memref<8xf32>, memref<8xf32>
}
"""
CONSTANTS = np.arange(16, dtype=np.float32).tobytes()


def run(program: str, constants: bytes = CONSTANTS) -> np.ndarray:
    a = np.arange(8).astype(ml_dtypes.bfloat16)
    y = np.zeros(8, np.float32)
    run_main(parse_module(program), [a], [y], constants, races=True, seed=0)
    return y


def test_main_runs_its_launches_in_order() -> None:
    assert run(PROGRAM).tolist() == [8 + 3 * i for i in range(8)]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("@add(%a, %t, %y)", "@add(%h, %t, %y)", "reads element 0, which nothing has written"),
        ("@add(%a, %t, %y)", "@add(%a, %y, %y)", "arguments 1 and 2 share memory, which is written"),
        ('"arena" 0 : memref<8xbf16>', '"arena" 16 : memref<8xbf16>', None),
        ("@add(%a, %t, %y)", "@add(%a, %b, %t)", "output 0: 8 of 8 elements are never written, the first is 0"),
        ('"constant" 32', '"constant" 30', "byte 30 is no multiple of the 4 of an element"),
        ('"constant" 32', '"constant" 36', "constant bytes 36 to 68 of 64"),
        ('"arena" 16', '"arena" 20', "arena bytes 20 to 52 of 48"),
        ('"input" 0', '"input" 1', "input 1 of 1"),
        ("constants 64", "constants 60", "64 bytes of constants; the program wants 60"),
        ("@add(%a, %b, %t)", "@add(%a, %b, %b)", "arguments 1 and 2 share memory"),
    ],
)
def test_main_refuses(old: str, new: str, message: str | None) -> None:
    assert old in PROGRAM
    program = PROGRAM.replace(old, new)
    if message is None:
        run(program)
        return
    with pytest.raises(InvalidProgram) as caught:
        run(program)
    assert message in str(caught.value)


def test_inputs_and_constants_are_not_written() -> None:
    program = PROGRAM.replace('%t = tile.buffer "arena" 16', '%t = tile.buffer "constant" 0')
    with pytest.raises(InvalidProgram, match="writes to an input or a constant"):
        run(program)


def test_a_module_without_main() -> None:
    with pytest.raises(InvalidProgram, match=r"no tile\.main"):
        run_main(kernel(""), [], [])


@pytest.mark.parametrize(("mask", "offset", "legal"), [("true", 5, True), ("false", 0, True), ("false", 1, False)])
def test_an_access_of_no_element_forms_no_place_outside(mask: str, offset: int, legal: bool) -> None:
    module = kernel(
        INDICES
        + f"""
        %at = arith.constant {offset} : index
        %m = arith.constant dense<{mask}> : tensor<8xi1>
        %t = tile.load %x[%at] bounds(%c3) mask %m : tensor<8xi1> strides [1] : memref<8xf32> -> tensor<8xf32>
        tile.store %t, %y[%c0] strides [1] : tensor<8xf32>, memref<8xf32>""",
        arguments="%x: memref<8xf32>, %y: memref<8xf32>",
        grid="[1]",
    )
    buffers = [np.arange(8, dtype=np.float32), np.zeros(8, np.float32)]
    if legal:
        run_kernel(module, "k", buffers)
        assert (buffers[1] == ([5, 6, 7] + [0] * 5 if mask == "true" else [0] * 8)).all()
    else:
        with pytest.raises(InvalidProgram, match="touches element 8 of a view of 8"):
            run_kernel(module, "k", buffers)


NUMBERS = """
tile.func @scaled(%x: memref<4xf32>, %y: memref<4xf32>, %s: f32) grid [1] {
  %c0 = arith.constant 0 : index
  %t = tile.load %x[%c0] strides [1] : memref<4xf32> -> tensor<4xf32>
  %f = tile.broadcast %s : f32 -> tensor<4xf32>
  %p = arith.mulf %t, %f : tensor<4xf32>
  tile.store %p, %y[%c0] strides [1] : tensor<4xf32>, memref<4xf32>
  tile.return
}
tile.main arena 16 constants 0 {
  %x = tile.buffer "input" 0 : memref<4xf32>
  %y = tile.buffer "output" 0 : memref<4xf32>
  %h = tile.buffer "arena" 0 : memref<4xf32>
  %a = arith.constant 3.0 : f32
  %b = arith.constant 0.5 : f32
  tile.launch @scaled(%x, %h, %a) : memref<4xf32>, memref<4xf32>, f32
  tile.launch @scaled(%h, %y, %b) : memref<4xf32>, memref<4xf32>, f32
}
"""


def test_launches_give_numbers() -> None:
    result = np.zeros(4, np.float32)
    run_main(parse_module(print_module(parse_module(NUMBERS))), [numbers(4)], [result])
    assert result.tolist() == [0, 1.5, 3, 4.5]


def test_a_kernel_runs_on_a_number() -> None:
    result = np.zeros(4, np.float32)
    run_kernel(parse_module(NUMBERS), "scaled", [numbers(4), result, np.array(2, np.float32)])
    assert result.tolist() == [0, 2, 4, 6]
