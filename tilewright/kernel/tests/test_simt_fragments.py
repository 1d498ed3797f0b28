"""Fragments and products of warps, for every record of level 3 that a warp executes, against its reference."""

from __future__ import annotations

from math import prod

import ml_dtypes
import numpy as np
import pytest

from tilewright.errors import InvalidProgram
from tilewright.intrinsics.elements import bits, storage
from tilewright.intrinsics.execute import execute
from tilewright.intrinsics.intrinsic import GROUP_LANES, Fragment, Intrinsic, Operand
from tilewright.intrinsics.registry import standard
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.text import parse_module

RECORDS = [
    record
    for record in standard()
    if GROUP_LANES[record.group] in (32, 64)
    and len(record.sources) == 2
    and all(bits(operand.dtype) >= 8 for operand in record.operands)
]


def element_type(dtype: str) -> str:
    """How a program holds elements of a record: 8-bit floats and unsigned integers as signless integers."""
    return "i8" if bits(dtype) == 8 else {"tf32": "f32"}.get(dtype, dtype)


def held(record: Intrinsic, operand: Operand) -> int:
    """Elements per lane; of an untold layout, as few as hold the matrix."""
    if isinstance(operand.layout, Fragment):
        return operand.layout.elements
    return prod(record.shape(operand)) // GROUP_LANES[record.group]


def padded(extent: int) -> int:
    """The stride of rows of this extent; some instructions want it to be a multiple of 16 bytes."""
    return -(-extent // 16) * 16


def product(record: Intrinsic, columns: str = "") -> str:
    """A kernel: d = a * b + c, one warp, matrices in row order; a and b in column order with `columns`."""
    lanes = GROUP_LANES[record.group]
    loads, arguments = [], []
    types = [element_type(operand.dtype) for operand in record.operands]
    tiles = [f"tensor<{held(record, o)}x{t}>" for o, t in zip(record.operands, types, strict=True)]
    for name, operand, type_, tile in zip("abc", record.operands, types, tiles, strict=True):
        order = columns if name != "c" else ""
        rows, extent = record.shape(operand)[:: -1 if order else 1]
        line = padded(extent)
        view = f"memref<{rows * line}x{type_}>"
        arguments.append(f"%{name}: {view}")
        loads.append(f"%s{name} = arith.constant {line} : index")
        loads.append(f'%f{name} = simt.load_fragment "{record.name}" "{name}" %{name}[%o, %s{name}] {order} '
                     f": {view} -> {tile}")  # fmt: skip
    arguments.append(f"%d: {view}")
    body = "\n".join(loads)
    return f"""tile.func @k({", ".join(arguments)}) grid [1] threads [{lanes}, 1, 1] warp {lanes} {{
    %o = arith.constant 0 : index
    {body}
    %fd = simt.mma "{record.name}" %fa, %fb, %fc : {", ".join(tiles)}
    simt.store_fragment "{record.name}" %fd, %d[%o, %sc] : {tiles[2]}, {view}
    tile.return
    }}"""


def matrices(record: Intrinsic) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, 3, record.shape(operand)).astype(storage(operand.dtype)) for operand in record.operands]


def flat(array: np.ndarray) -> np.ndarray:
    """Rows as they lie in memory, with what fills them up."""
    narrow = array.dtype.itemsize == 1
    rows = np.zeros((len(array), padded(array.shape[1])), array.dtype)
    rows[:, : array.shape[1]] = array
    return rows.reshape(-1).view(np.int8 if narrow else array.dtype)


def unpadded(array: np.ndarray, like: np.ndarray) -> np.ndarray:
    return array.view(like.dtype).reshape(len(like), -1)[:, : like.shape[1]]


@pytest.mark.covering(1)
@pytest.mark.parametrize("columns", ["", "columns"])
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_product(record: Intrinsic, columns: str) -> None:
    a, b, c = matrices(record)
    d = flat(np.zeros_like(c))
    given = [flat(x.T if columns else x) for x in (a, b)]
    run_kernel(parse_module(product(record, columns)), "k", [*given, flat(c), d])
    assert (unpadded(d, c) == execute(record, c, a, b)).all()


def test_there_are_records_of_all_kinds() -> None:
    names = {record.name.split("_")[0] for record in RECORDS}
    assert {"mma", "wmma", "mfma"} <= names
    assert len(RECORDS) > 80
    assert {GROUP_LANES[record.group] for record in RECORDS} == {32, 64}


def test_untold_layouts_may_repeat_elements() -> None:
    record = standard().find("wmma_16x16x16_f16_f32")
    text = product(record).replace("tensor<8xf16>", "tensor<16xf16>")
    a, b, c = matrices(record)
    d = flat(np.zeros_like(c))
    run_kernel(parse_module(text), "k", [flat(a), flat(b), flat(c), d])
    assert (unpadded(d, c) == execute(record, c, a, b)).all()


def test_whole_fragments_are_moved_from_aligned_places() -> None:
    """WMMA wants matrices at multiples of 32 bytes, with rows in multiples of 16 bytes."""
    record = standard().find("wmma_16x16x16_f16_f32")
    arrays = [*map(flat, matrices(record)), flat(matrices(record)[2])]
    text = product(record)
    shifted = text.replace("%a[%o, %sa]", "%a[%eight, %sa]").replace("%sa =", "%eight = arith.constant 8 : index %sa =")
    with pytest.raises(InvalidProgram, match="misaligned: byte 16 is no multiple of 32"):
        run_kernel(parse_module(shifted), "k", arrays)
    narrow = text.replace("%sa = arith.constant 16", "%sa = arith.constant 12")
    with pytest.raises(InvalidProgram, match="a stride of 12 elements is no multiple of 8"):
        run_kernel(parse_module(narrow), "k", arrays)


REFUSED = [
    ("mfma_16x16x16_f16_f32", "is issued by 64 lanes; warps here have 32", 32),
    ("mma_m16n8k16_f16_f32", "is issued by 32 lanes; warps here have 64", 64),
    ("wgmma_m64n8k16_f16_f32", "is issued by 128 lanes; warps here have 32", 32),
    ("mma_m16n8k16_bf16_f32", "a of mma_m16n8k16_bf16_f32 has elements of bf16, not float16", 32),
    ("mma_m16n8k8_f16_f32", "a of mma_m16n8k8_f16_f32 has 4 elements per lane, not 8", 32),
    ("dp4a", "no intrinsic 'dp4a'", 32),
]


@pytest.mark.parametrize(("name", "message", "lanes"), REFUSED)
def test_record_that_does_not_fit(name: str, message: str, lanes: int) -> None:
    text = f"""tile.func @k() grid [1] threads [64, 1, 1] warp {lanes} {{
    %a = arith.constant dense<1.0> : tensor<8xf16>  %b = arith.constant dense<1.0> : tensor<4xf16>
    %c = arith.constant dense<1.0> : tensor<4xf32>
    %d = simt.mma "{name}" %a, %b, %c : tensor<8xf16>, tensor<4xf16>, tensor<4xf32>
    tile.return
    }}"""
    with pytest.raises(InvalidProgram) as caught:
        run_kernel(parse_module(text), "k", [])
    assert message in caught.value.message
    assert caught.value.where == "@k, block [0], thread [0, 0, 0]"


def test_lanes_that_hold_the_same_element_must_agree() -> None:
    record = next(r for r in RECORDS if isinstance(r.sources[0].layout, Fragment) and r.sources[0].layout.replicated)
    count, type_ = held(record, record.sources[0]), element_type(record.sources[0].dtype)
    text = product(record)
    spoiled = text.replace("%fd = simt.mma", f"""%t = simt.thread_id 0
    %i = arith.index_cast %t : index to i32   %n = tile.cast %i : i32 -> {type_}
    %fx = tile.broadcast %n : {type_} -> tensor<{count}x{type_}>
    %fd = simt.mma""").replace(" %fa, %fb", " %fx, %fb")  # fmt: skip
    assert spoiled != text
    arrays = [*map(flat, matrices(record)), flat(matrices(record)[2])]
    with pytest.raises(InvalidProgram, match="differs from another lane with the same element"):
        run_kernel(parse_module(spoiled), "k", arrays)


def test_load_matrix_wants_warps_of_32() -> None:
    text = """tile.func @k() grid [1] threads [64, 1, 1] warp 64 {
    %s = simt.shared align 16 : memref<512xf16, "shared">   %o = arith.constant 0 : index
    %x = simt.load_matrix %s[%o] 1 : memref<512xf16, "shared"> -> tensor<2xf16>
    tile.return
    }"""
    with pytest.raises(InvalidProgram, match="executed by 32 lanes; warps here have 64"):
        run_kernel(parse_module(text), "k", [])


def test_load_matrix_feeds_products() -> None:
    """What `load_matrix` gives is the fragment that the record asks for, for 2-byte elements of both kinds."""
    for name, dtype in (("mma_m16n8k16_f16_f32", np.float16), ("mma_m16n8k16_bf16_f32", ml_dtypes.bfloat16)):
        element = element_type(standard().find(name).sources[0].dtype)
        shared, view = f'memref<256x{element}, "shared">', f"memref<256x{element}>"
        text = f"""tile.func @k(%a: {view}, %same: memref<1xi8>) grid [1] threads [32, 1, 1] warp 32 {{
        %s = simt.shared align 16 : {shared}   %t = simt.thread_id 0   %c0 = arith.constant 0 : index
        %c8 = arith.constant 8 : index   %c16 = arith.constant 16 : index   %r = arith.remui %t, %c16 : index
        %o = arith.muli %t, %c8 : index   %h = arith.divui %t, %c16 : index
        simt.async_copy %a[%o] to %s[%o] 8 : {view}, {shared}
        simt.commit   simt.wait 0   simt.barrier
        %x = arith.muli %r, %c16 : index   %y = arith.muli %h, %c8 : index   %p = arith.addi %x, %y : index
        %one = simt.load_matrix %s[%p] 4 : {shared} -> tensor<8x{element}>
        %two = simt.load_fragment "{name}" "a" %s[%c0, %c16] : {shared} -> tensor<8x{element}>
        %eq = tile.compare "eq" %one, %two : tensor<8x{element}> -> tensor<8xi1>
        %bytes = tile.cast %eq unsigned : tensor<8xi1> -> tensor<8xi8>
        %min = tile.reduce "min" %bytes, 0 : tensor<8xi8> -> tensor<1xi8>
        %least = tile.reshape %min : tensor<1xi8> -> i8
        %old = simt.atomic "min" %least, %same[%c0] : i8, memref<1xi8> -> i8
        tile.return
        }}"""
        same = np.ones(1, np.int8)
        run_kernel(parse_module(text), "k", [np.arange(256).astype(dtype), same])
        assert same[0] == 1
