"""Which layout is chosen: spec 6, sections 7.2, 7.7, 8.3, 8.4 and 13 (23-34), and spec 4, sections A4 and 10.1."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilewright.errors import InvalidArgument
from tilewright.layouts import (
    Blocked,
    DotOperand,
    MatrixLoad,
    Mma,
    NvmmaShared,
    Padded,
    Shared,
    arrows,
    coalesced_blocked,
    contiguity,
    convert,
    default_blocked,
    initial_blocked,
    matrix_load,
    mma_warps,
    nvmma_for,
    padded_scratch,
    padding_for,
    parse,
    row_degree,
    row_major_memory,
    shared_access,
    swizzle_for_dot,
    vector_width,
    warpgroup_n,
    wavefronts,
    widest_access,
)


@pytest.mark.parametrize(
    ("elements", "divisibility", "size"), [(1024, 16, 4), (256, 16, 2), (1024, 4, 1)], ids=["23", "24", "25"]
)
def test_spec6_g23_to_g25_coalesced(elements: int, divisibility: int, size: int) -> None:
    width = widest_access(contiguity=elements, divisibility_bytes=divisibility, bits=32)
    layout = coalesced_blocked((elements,), (0,), width, warps=4)
    assert layout == Blocked((size,), (32,), (4,), (0,))
    assert vector_width(layout.to_linear((elements,)), row_major_memory((elements,)), 32) == size


def test_spec6_8_3_seed_gemm() -> None:
    a = coalesced_blocked((16, 16), (1, 0), widest_access(16, 32, 16), warps=1)
    b = coalesced_blocked((16, 8), (1, 0), widest_access(8, 1, 16), warps=1)
    assert a == Blocked((1, 8), (16, 2), (1, 1), (1, 0))
    assert b == Blocked((1, 1), (4, 8), (1, 1), (1, 0))


@pytest.mark.parametrize(
    ("shape", "size", "warps", "expected"),
    [
        ((16, 16), (1, 1), 1, ((2, 16), (1, 1))),
        ((64, 4), (1, 1), 4, ((8, 4), (4, 1))),
        ((8, 256), (1, 4), 4, ((1, 32), (2, 2))),
    ],
    ids=["26", "27", "28"],
)
def test_spec6_g26_to_g28_default_blocked(
    shape: tuple[int, int], size: tuple[int, int], warps: int, expected: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    layout = default_blocked(shape, size, (1, 0), warps)
    assert (layout.threads_per_warp, layout.warps) == expected
    if size == (1, 1):
        assert initial_blocked(shape, warps) == layout


@pytest.mark.parametrize(
    ("index", "shape", "order", "bits", "expected"),
    [
        (0, (16, 16), (1, 0), 16, (8, 4, 2)),
        (1, (16, 8), (1, 0), 16, (8, 8, 1)),
        (0, (128, 32), (1, 0), 16, (8, 2, 4)),
        (1, (32, 64), (1, 0), 16, (8, 1, 8)),
        (0, (128, 64), (1, 0), 16, (8, 1, 8)),
        (1, (16, 64), (0, 1), 16, (8, 4, 2)),
        (0, (64, 16), (1, 0), 32, (4, 2, 4)),
        (0, (64, 64), (1, 0), 8, (16, 2, 4)),
    ],
)  # fmt: skip
def test_spec6_g29_to_g31_swizzle_of_operands(
    index: int, shape: tuple[int, int], order: tuple[int, int], bits: int, expected: tuple[int, int, int]
) -> None:
    assert swizzle_for_dot(index, shape, order, bits) == Shared(*expected, order)


def test_spec6_g29_k_inner_64x16() -> None:
    assert swizzle_for_dot(0, (64, 16), (1, 0), 16) == Shared(8, 4, 2, (1, 0))


@pytest.mark.parametrize(
    ("shape", "warps", "expected"),
    [
        ((16, 8), 1, (1, 1)),
        ((128, 64), 4, (2, 2)),
        ((64, 64), 4, (2, 2)),
        ((128, 128), 8, (2, 4)),
        ((64, 256), 8, (1, 8)),
        ((256, 64), 8, (4, 2)),
        ((16, 256), 4, (1, 4)),
        ((256, 16), 4, (4, 1)),
        ((128, 128), 4, (2, 2)),
        ((128, 256), 8, (2, 4)),
    ],
)
def test_spec6_8_4_and_g32_warps(shape: tuple[int, int], warps: int, expected: tuple[int, int]) -> None:
    assert mma_warps(shape, warps) == expected


def test_spec6_8_4_warps_of_version_3() -> None:
    assert mma_warps((128, 128), 8, version=3) == (8, 1)
    assert mma_warps((64, 256), 8, version=3) == (4, 2)
    assert mma_warps((8, 64, 64), 4) == (4, 1, 1)
    assert [warpgroup_n(columns) for columns in (512, 128, 96, 264, 8)] == [256, 128, 96, 88, 8]


CONVERSIONS = [
    ("33", Mma(2, (1, 1)), Blocked((1, 1), (4, 8), (1, 1), (1, 0)), (16, 8), 32, "shuffle",
     "r0->l0, r1->r1, l0->l1, l1->l2, l2->l3, l3->l4, l4->r0"),
    ("34a", Mma(2, (1, 1)), DotOperand(0, Mma(2, (1, 1)), 2), (16, 16), 16, "none", None),
    ("34a wide", Mma(2, (4, 1)), DotOperand(0, Mma(2, (4, 1)), 2), (64, 64), 16, "none", None),
    ("34b", Mma(2, (2, 2)), DotOperand(0, Mma(2, (2, 2)), 2), (64, 64), 16, "shared", None),
    ("34c", Blocked((4,), (32,), (4,), (0,)), Blocked((1,), (32,), (4,), (0,)), (512,), 32, "shared",
     "r0->l0, r1->l1, l0->l2, l1->l3, l2->l4, l3->w0, l4->w1, w0->r0, w1->r1"),
    ("34d", Blocked((4,), (32,), (1,), (0,)), Blocked((1,), (32,), (1,), (0,)), (128,), 32, "shuffle", None),
    ("34e", Blocked((1, 8), (16, 2), (1, 1), (1, 0)), DotOperand(0, Mma(2, (1, 1)), 2), (16, 16), 16, "shuffle",
     "r0->r0, r1->l0, r2->l1, l0->r2, l1->l2, l2->l3, l3->l4, l4->r1"),
    ("34f", Mma(2, (4, 1)), Blocked((1, 4), (2, 16), (4, 1), (1, 0)), (64, 64), 32, "shared", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "destination", "shape", "bits", "kind", "bit_map"),
    [row[1:] for row in CONVERSIONS],
    ids=[row[0] for row in CONVERSIONS],
)
def test_spec6_g33_g34_conversions(
    source: Mma, destination: Blocked, shape: tuple[int, ...], bits: int, kind: str, bit_map: str | None
) -> None:
    found = convert(source, destination, shape, bits)
    assert found.kind == kind
    assert found.bit_map is not None
    if bit_map is not None:
        assert arrows(found.bit_map) == bit_map
    c = found.bytes_per_thread / 4
    assert found.cost == {"none": 0, "shuffle": 2 * c, "shared": 4 * c + 1}[kind]
    assert (found.run(source.to_linear(shape).table()) == destination.to_linear(shape).table()).all()


def test_spec6_7_10_scratch_of_the_seed() -> None:
    scratch = padded_scratch(Mma(2, (1, 1)), Blocked((1, 1), (4, 8), (1, 1), (1, 0)), (16, 8), 32)
    assert scratch.shape == (16, 8)
    assert scratch.elements * 4 == 512
    assert scratch.bytes == 16 * (8 + 2) * 4  # rows padded by the pair that a lane of the mma holds


def test_spec6_7_10_register_class_costs_nothing() -> None:
    source, destination = Blocked((2, 2), (8, 4), (1, 1), (1, 0)), Blocked((2, 2), (8, 4), (1, 1), (0, 1))
    lanes = parse("#linear<r=[(1,0),(0,1)], l=[(0,2),(0,4),(2,0),(4,0),(8,0)], w=[]>")
    found = convert(source, lanes, (16, 8), 32)
    assert (found.kind, found.cost) == ("register", 0)
    assert convert(source, destination, (16, 8), 32).kind == "shuffle"


def test_spec6_9_3_operands_of_the_seed_by_ldmatrix() -> None:
    a = DotOperand(0, Mma(2, (1, 1)), 2).to_linear((16, 16))
    found = matrix_load(a, Shared(8, 4, 2, (1, 0)).to_linear((16, 16)), 16)
    assert (str(found), found and found.instructions, found and found.access.degree) == ("ldmatrix.x4", 1, 1)
    b = DotOperand(1, Mma(2, (1, 1)), 2).to_linear((16, 8))
    found = matrix_load(b, Shared(8, 8, 1, (1, 0)).to_linear((16, 8)), 16)
    assert (str(found), found and found.access.degree) == ("ldmatrix.x2.trans", 1)
    found = matrix_load(b, Shared(8, 4, 2, (0, 1)).to_linear((16, 8)), 16)
    assert str(found) == "ldmatrix.x2"
    assert matrix_load(DotOperand(1, Mma(2, (1, 1)), 4).to_linear((32, 8)), row_major_memory((32, 8)), 8) is None


# Spec 4


@pytest.mark.parametrize(
    ("columns", "unpadded"), [(16, 2), (32, 4), (64, 8), (128, 8), (256, 8)]
)  # fmt: skip
def test_spec4_a4_padding(columns: int, unpadded: int) -> None:
    assert row_degree(columns, 16) == unpadded
    assert padding_for(columns, 16) == 8
    assert row_degree(columns + 8, 16) == 1
    for pad, degree in ((0, unpadded), (8, 1)):
        rows = np.arange(8) * (columns + pad) * 2
        assert wavefronts(rows[None], 16).degree == degree


@pytest.mark.parametrize(("bits", "pad"), [(8, 16), (16, 8), (32, 4)])
def test_spec4_a4_padding_is_16_bytes(bits: int, pad: int) -> None:
    assert padding_for(64 * 8 // bits * 4, bits) == pad
    with pytest.raises(InvalidArgument, match="rows of"):
        padding_for(33, bits)


@pytest.mark.parametrize(
    ("columns", "swizzle", "unswizzled"), [(16, (4, 2), 2), (32, (2, 4), 4), (64, (1, 8), 8), (128, (1, 8), 8)]
)
def test_spec4_10_1_conflict_free_swizzles(columns: int, swizzle: tuple[int, int], unswizzled: int) -> None:
    shape = (64, columns)
    a = DotOperand(0, Mma(2, (1, 1)), 2).to_linear(shape)
    for memory, degree in ((Shared(8, *swizzle, (1, 0)), 1), (Shared(1, 1, 1, (1, 0)), unswizzled)):
        found = matrix_load(a, memory.to_linear(shape), 16)
        assert found is not None
        assert (found.count, found.access.degree) == (4, degree)
    write = default_blocked(shape, (1, 8), (1, 0), warps=1).to_linear(shape)
    assert shared_access(write, Shared(8, *swizzle, (1, 0)), 16).conflicts == 0


def test_spec4_10_1_eight_columns_need_no_swizzle() -> None:
    rows = np.arange(8) * 16
    assert wavefronts(rows[None], 16).degree == 1


def test_spec4_10_1_padded_rows_are_written_without_conflicts() -> None:
    shape = (64, 64)
    write = default_blocked(shape, (1, 8), (1, 0), warps=1).to_linear(shape)
    assert shared_access(write, Padded(8, (1, 0)), 16).conflicts == 0
    assert Padded(8, (1, 0)).elements(shape) * 2 * 2 == 2 * 64 * 72 * 2  # golden 21 of spec 4: A and B


def test_spec4_5_5_bytes_of_w() -> None:
    order = (2, 1, 0)
    sizes = [Padded(8, order).elements(shape) for shape in ((3, 32, 16), (3, 16, 32))]
    assert sizes == [3 * 32 * 24, 3 * 16 * 40]
    assert sum(sizes) * 2 + Padded(8, (1, 0)).elements((32, 32)) * 2 == 11008


def test_hardware_swizzle_is_read_and_written_without_conflicts() -> None:
    shape = (64, 64)
    memory = nvmma_for(shape, 16)
    assert memory == NvmmaShared(128, 16)
    assert nvmma_for((64, 32), 16).swizzle == 64
    assert nvmma_for((16, 64), 16, transposed=True).swizzle == 32
    rows = memory.offsets(shape)[:8, 0] * 2
    assert wavefronts(rows[None], 16).degree == 1
    write = default_blocked(shape, (1, 8), (1, 0), warps=4).to_linear(shape)
    assert contiguity(write, memory.to_linear(shape)) == 8
    assert shared_access(write, memory, 16).conflicts == 0


def row_offsets(load: MatrixLoad | None, instruction: int = 0) -> list[int]:
    """Offsets that the lanes give, from the bits of their numbers."""
    assert load is not None
    found = []
    for lane in range(8 * load.count):
        offset = 0
        for value, columns in ((lane, load.lane_offsets), (instruction, load.instruction_offsets)):
            for bit, column in enumerate(columns):
                offset ^= column if value >> bit & 1 else 0
        found.append(offset)
    return found


@pytest.mark.parametrize(
    ("index", "width", "shape", "order", "bits", "form", "address"),
    [
        (0, 2, (16, 16), (1, 0), 16, "ldmatrix.x4", lambda x, ld: x % 16 * ld + 8 * (x // 16)),
        (1, 2, (16, 8), (0, 1), 16, "ldmatrix.x2", lambda x, ld: x % 8 * ld + 8 * (x // 8 % 2)),
        (1, 2, (16, 8), (1, 0), 16, "ldmatrix.x2.trans", lambda x, ld: x % 16 * ld),
        (0, 1, (16, 8), (1, 0), 32, "ldmatrix.x4", lambda x, ld: x % 16 * ld + 4 * (x // 16)),
        (1, 1, (8, 8), (0, 1), 32, "ldmatrix.x2", lambda x, ld: x % 8 * ld + 4 * (x // 8 % 2)),
        (0, 4, (16, 32), (1, 0), 8, "ldmatrix.x4", lambda x, ld: x % 16 * ld + 16 * (x // 16)),
        (1, 4, (32, 8), (0, 1), 8, "ldmatrix.x2", lambda x, ld: x % 8 * ld + 16 * (x // 8 % 2)),
    ],
)
def test_spec3_1_7_3_ldmatrix(
    index: int,
    width: int,
    shape: tuple[int, int],
    order: tuple[int, int],
    bits: int,
    form: str,
    address: Callable[[int, int], int],
) -> None:
    operand = DotOperand(index, Mma(2, (1, 1)), width)
    found = matrix_load(operand.to_linear(shape), row_major_memory(shape, order), bits)
    assert str(found) == form
    ld = shape[order[0]]
    assert row_offsets(found) == [address(lane, ld) for lane in range(len(row_offsets(found)))]


def test_ldmatrix_fills_the_layout_through_a_swizzle() -> None:
    shape = (32, 64)
    operand = DotOperand(0, Mma(2, (1, 1)), 2).to_linear(shape)
    memory = swizzle_for_dot(0, shape, (1, 0), 16)
    found = matrix_load(operand, memory.to_linear(shape), 16)
    assert found is not None
    held = memory.to_linear(shape).table()  # element at every offset
    lanes = np.arange(32)
    for instruction in range(found.instructions):
        rows = np.array(row_offsets(found, instruction)).reshape(4, 8)
        for matrix in range(4):
            for half in (0, 1):
                got = held[rows[matrix, lanes // 4] + 2 * (lanes % 4) + half]
                assert (got == operand.table()[0, :, instruction * 8 + matrix * 2 + half]).all()
