"""Products of a warp: every record that has code, against the interpreter, and what is refused."""

from __future__ import annotations

import re
from math import prod

import ml_dtypes
import numpy as np
import pytest

from tests.covering import some
from tilewright.codegen.nvptx.tests.execute import Array, agree, compiled, kernel
from tilewright.errors import InvalidProgram
from tilewright.intrinsics.intrinsic import Fragment, Intrinsic
from tilewright.intrinsics.nvidia import mma_sync, wmma
from tilewright.kernel.records import extents_of_record
from tilewright.machine import resolve

VIEWS = {
    "f16": ("f16", np.float16), "bf16": ("bf16", ml_dtypes.bfloat16), "tf32": ("f32", np.float32),
    "f32": ("f32", np.float32), "f64": ("f64", np.float64), "i8": ("i8", np.int8), "u8": ("i8", np.int8),
    "i32": ("i32", np.int32), "f8e4m3fn": ("i8", np.int8), "f8e5m2": ("i8", np.int8),
}  # fmt: skip
OLDEST = {"sm_70": "sm_75", "sm_72": "sm_75"}


def _machine(record: Intrinsic) -> str:
    (feature,) = record.features
    return OLDEST.get(feature, feature)


def _numbers(dtype: str, count: int, rng: np.random.Generator) -> Array:
    """Small whole numbers, whose products and sums are exact in every type."""
    numbers = rng.integers(0 if dtype == "u8" else -3, 4, count)
    if dtype.startswith("f8"):
        stored = {"f8e4m3fn": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}[dtype]
        return numbers.astype(stored).view(np.int8)
    return numbers.astype(VIEWS[dtype][1])


def _registers(record: Intrinsic) -> list[tuple[str, int, str]]:
    found = []
    for operand in (*record.sources, record.destination):
        layout = operand.layout
        assert isinstance(layout, Fragment), "records of this family tell their fragments"
        found.append((VIEWS[operand.dtype][0], layout.elements, operand.dtype))
    return found


NEWEST = ("sm_90", "sm_100a", "sm_103a", "sm_120a")


@pytest.mark.parametrize(
    ("record", "machine"),
    [
        *((record, _machine(record)) for record in mma_sync.INTRINSICS),
        *some([(r, name) for name in NEWEST for r in mma_sync.INTRINSICS if r.name in resolve(name).intrinsics], 16),
    ],
    ids=lambda each: getattr(each, "name", each),
)
def test_mma_sync(record: Intrinsic, machine: str) -> None:
    (at, na, a), (bt, nb, b), (ct, nc, c) = _registers(record)
    body = "%t = simt.thread_id 0\n"
    for name, type_, count in (("a", at, na), ("b", bt, nb), ("c", ct, nc)):
        body += f"%n{name} = arith.constant {count} : index\n%i{name} = arith.muli %t, %n{name} : index\n"
        body += f"%f{name} = tile.load %{name}[%i{name}] strides [1] : memref<{32 * count}x{type_}> -> "
        body += f"tensor<{count}x{type_}>\n"
    body += f'%d = simt.mma "{record.name}" %fa, %fb, %fc : tensor<{na}x{at}>, tensor<{nb}x{bt}>, tensor<{nc}x{ct}>\n'
    body += f"tile.store %d, %o[%ic] strides [1] : tensor<{nc}x{ct}>, memref<{32 * nc}x{ct}>"
    views = f"%a: memref<{32 * na}x{at}>, %b: memref<{32 * nb}x{bt}>, "
    views += f"%c: memref<{32 * nc}x{ct}>, %o: memref<{32 * nc}x{ct}>"
    rng = np.random.default_rng(0)
    arrays = [_numbers(a, 32 * na, rng), _numbers(b, 32 * nb, rng), _numbers(c, 32 * nc, rng)]
    code = agree(kernel(body, views), [*arrays, np.zeros_like(arrays[2])], machine)
    shape = re.match(r"mma_(m\d+n\d+k\d+)", record.name)
    assert shape is not None
    assert re.search(rf"mma\.sync\.aligned\.{shape[1]}\.row\.col", code.ptx)
    assert ("satfinite" in code.ptx) == record.name.endswith("_sat")


WMMA = [r for r in wmma.INTRINSICS if re.match(r"wmma_\d+x\d+x\d+_(f16|bf16|tf32|f64|s8|u8)_", r.name)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("orders", [("", "columns "), ("columns ", "")], ids=["row.col", "col.row"])
@pytest.mark.parametrize("record", WMMA, ids=lambda record: str(record.name))
def test_wmma(record: Intrinsic, orders: tuple[str, str]) -> None:
    """Fragments are loaded, multiplied and stored; the order of a load is that of the product, through a loop too."""
    m, n, k = extents_of_record(record)
    dtypes = [operand.dtype for operand in (*record.sources, record.destination)]
    types = [VIEWS[dtype][0] for dtype in dtypes]
    counts = [_elements(record, letter) for letter in "abc"]
    shapes = [(m, k), (k, n), (m, n)]
    # Rows (or columns) of bytes are loaded in steps of 16 bytes.
    strides = [
        max(shape[0 if order else 1], 16 if type_ == "i8" else 1)
        for shape, order, type_ in zip(shapes, (*orders, ""), types, strict=True)
    ]
    sizes = [
        shape[1 if order else 0] * stride for shape, order, stride in zip(shapes, (*orders, ""), strides, strict=True)
    ]
    body = "%o = arith.constant 0 : index\n%one = arith.constant 1 : index\n"
    for letter, type_, size, count, stride, order in zip(
        "abc", types, sizes, counts, strides, (*orders, ""), strict=True
    ):
        body += f"%s{letter} = arith.constant {stride} : index\n"
        body += f'%f{letter} = simt.load_fragment "{record.name}" "{letter}" %{letter}[%o, %s{letter}] {order}'
        body += f": memref<{size}x{type_}> -> tensor<{count}x{type_}>\n"
    fragments = [f"tensor<{count}x{type_}>" for count, type_ in zip(counts, types, strict=True)]
    body += "%ra, %rb, %r = scf.for %i = %o to %one step %one iter_args(%ga = %fa, %gb = %fb, %g = %fc) -> "
    body += f"({', '.join(fragments)}) {{\n"
    body += f'%d = simt.mma "{record.name}" %ga, %gb, %g : {", ".join(fragments)}\n'
    body += f"scf.yield %ga, %gb, %d : {', '.join(fragments)}\n}}\n"
    body += f'simt.store_fragment "{record.name}" %r, %d[%o, %sc] : {fragments[2]}, memref<{sizes[2]}x{types[2]}>'
    body = body.replace("%d = simt", "%e = simt").replace("%ga, %gb, %d :", "%ga, %gb, %e :")
    views = ", ".join(
        f"%{x}: memref<{n}x{t}>" for x, n, t in zip("abcd", [*sizes, sizes[2]], [*types, types[2]], strict=True)
    )
    rng = np.random.default_rng(0)
    arrays = [_numbers(dtype, size, rng) for dtype, size in zip(dtypes, sizes, strict=True)]
    result = np.zeros_like(arrays[2])
    code = agree(kernel(body, views), [*arrays, result], _machine(record))
    a, b, c = (
        array.reshape(-1, stride)[:, : shape[0 if order else 1]].astype(np.float64)
        for array, stride, shape, order in zip(arrays, strides, shapes, (*orders, ""), strict=True)
    )
    product_ab = (a.T if orders[0] else a) @ (b.T if orders[1] else b)
    assert (result.reshape(m, n) == product_ab + c).all()
    names = ".".join("col" if order else "row" for order in orders)
    assert f"wmma.mma.sync.aligned.{names}." in code.ptx


def _elements(record: Intrinsic, letter: str) -> int:
    """Elements of a lane's fragment: those of f16 factors are held twice in 16x16x16."""
    operand = record.operands["abc".index(letter)]
    return 16 if operand.dtype == "f16" and letter != "c" else prod(record.shape(operand)) // 32


@pytest.mark.parametrize(
    ("name", "machine", "message"),
    [
        ("mma_m16n8k16_f16_f32", "sm_75", "mma_m16n8k16_f16_f32 needs sm_80, the target is sm_75"),
        ("mma_m16n8k32_f8e4m3fn_f32", "sm_80", "no code|needs sm_89|elements"),
        ("wgmma_m64n64k16_f16_f32", "sm_90a", "no code for the intrinsic"),
        ("wmma_8x8x32_s4_s32", "sm_80", "no code for the intrinsic .*: elements of i4"),
        ("mma_m16n16k16_f16_f32", "sm_80", "no intrinsic 'mma_m16n16k16_f16_f32'"),
        ("wmma_16x16x16_s8u8_s32", "sm_80", "no intrinsic 'wmma_16x16x16_s8u8_s32'"),
    ],
)
def test_refusals(name: str, machine: str, message: str) -> None:
    body = f"""
    %a = arith.constant dense<1.0> : tensor<8xf16>
    %b = arith.constant dense<1.0> : tensor<4xf16>
    %c = arith.constant dense<1.0> : tensor<4xf32>
    %d = simt.mma "{name}" %a, %b, %c : tensor<8xf16>, tensor<4xf16>, tensor<4xf32>"""
    with pytest.raises(InvalidProgram, match=message):
        compiled(kernel(body, "%v: memref<8xf16>"), machine)


def test_fragments_of_the_wrong_length_are_refused() -> None:
    body = """
    %a = arith.constant dense<1.0> : tensor<4xf16>
    %c = arith.constant dense<1.0> : tensor<4xf32>
    %d = simt.mma "mma_m16n8k16_f16_f32" %a, %a, %c : tensor<4xf16>, tensor<4xf16>, tensor<4xf32>"""
    with pytest.raises(
        InvalidProgram, match=r"fragments of \(4, 4, 4\) elements of a, b, c; the record has \(8, 4, 4\)"
    ):
        compiled(kernel(body, "%v: memref<8xf16>"))
