"""Golden tests of spec 3, fragments of warps: G31 to G36, G38."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.intrinsics.formula import formula
from tilewright.intrinsics.fragments import Descriptor, fragment_of, ldmatrix, places, swizzle, to_registers
from tilewright.intrinsics.intrinsic import Fragment
from tilewright.intrinsics.registry import standard


def held(name: str, role: str, lane: int, count: int | None = None) -> list[tuple[int, ...]]:
    """The elements of a lane, in register order."""
    _, fragment = fragment_of(standard().find(name), role)
    return list(zip(*(index[lane][:count].tolist() for index in places(fragment)), strict=True))


def test_spec3_g31() -> None:
    expected = [(1, 2), (1, 3), (9, 2), (9, 3), (1, 10), (1, 11), (9, 10), (9, 11)]
    assert held("mma_m16n8k16_f16_f32", "Src1", 5) == expected


def test_spec3_g32() -> None:
    assert held("mma_m16n8k16_f16_f32", "Src2", 5) == [(2, 1), (3, 1), (10, 1), (11, 1)]
    assert held("mma_m16n8k16_f16_f32", "Dst", 5) == [(1, 2), (1, 3), (9, 2), (9, 3)]


def test_spec3_g33() -> None:
    expected = [(row, column) for columns in (range(4, 8), range(20, 24)) for row in (1, 9) for column in columns]
    assert held("mma_m16n8k32_s8_s32", "Src1", 5) == expected


def test_spec3_g34() -> None:
    expected = [(35, 2), (35, 3), (43, 2), (43, 3), (35, 10), (35, 11), (43, 10), (43, 11)]
    assert held("wgmma_m64n64k16_f16_f32", "Dst", 77, 8) == expected


def test_spec3_g35() -> None:
    records = [record for record in standard() if any(isinstance(each.layout, Fragment) for each in record.operands)]
    assert {record.name.split("_")[0] for record in records} == {"mma", "wgmma", "wmmar3", "wmmar4", "mfma", "vmfma"}
    copies = set()
    for record in records:
        for operand in record.operands:
            if isinstance(operand.layout, Fragment):
                flat = np.ravel_multi_index(places(operand.layout), record.shape(operand))
                holders = set(np.bincount(flat.ravel(), minlength=int(np.prod(record.shape(operand)))).tolist())
                replicated = record.name.startswith("wmmar3") and operand.role != "Dst"
                assert holders == ({2} if replicated else {1}), f"{record.name}, {operand.role}"
                copies |= holders
    assert copies == {1, 2}


LOADS = [
    (record.name, movement.name)
    for record in standard()
    if record.name.startswith("mma_")
    for movement in record.memory
    if movement.via.startswith("ldmatrix")
]


@pytest.mark.parametrize(("name", "statement"), LOADS)
def test_spec3_g36(name: str, statement: str) -> None:
    """Shared memory in the order that the statement's address says, loaded by ldmatrix, is the fragment."""
    record = standard().find(name)
    movement = next(each for each in record.memory if each.name == statement)
    operand, fragment = fragment_of(record, movement.operand)
    shape = record.shape(operand)
    width = {"f16": 2, "bf16": 2, "tf32": 4}.get(operand.dtype, 1)
    tile = np.random.default_rng(0).permutation(1 << 16)[: int(np.prod(shape))].astype(f"u{width}").reshape(shape)
    stride = 48 * movement.stride_multiple
    parameters = {f"stride_{letter}": stride for letter in "abc"} | {f"addr_{letter}": 0 for letter in "abc"}
    addresses = formula(movement.address)({**parameters, **dict(zip(operand.loops, np.indices(shape), strict=True))})
    shared = np.zeros(int(addresses.max()) + 64, tile.dtype)
    shared[addresses] = tile
    rows = formula(movement.lane_address)({**parameters, "lane": np.arange(32)}) * width
    count, transposed = int(movement.via.split(".")[1][1:]), movement.via.endswith("trans")
    registers = ldmatrix(shared.view(np.uint8), rows, count, transposed=transposed).view(tile.dtype)
    np.testing.assert_array_equal(registers, to_registers(fragment, tile))


def test_spec3_g36_every_width_is_loaded() -> None:
    widths = {standard().find(name).operands[0].dtype for name, _ in LOADS}
    assert {"f16", "bf16", "tf32", "i8", "u8", "f8e5m2"} <= widths
    assert ("mma_m16n8k16_f16_f32", "ldbt") in LOADS


def test_spec3_g36_two_accumulators_are_a_fragment_of_a() -> None:
    a = held("mma_m16n8k16_f16_f32", "Src1", 0)
    for lane in range(32):
        a = held("mma_m16n8k16_f16_f32", "Src1", lane)
        c = held("mma_m16n8k16_f16_f32", "Dst", lane)
        assert a == [(c[e & 3][0], c[e & 3][1] + 8 * (e >> 2)) for e in range(8)]


def test_spec3_g38() -> None:
    assert [int(swizzle(0x3A0, span)) for span in (128, 64, 32, 0)] == [0x3D0, 0x390, 0x3B0, 0x3A0]


@pytest.mark.parametrize("span", [32, 64, 128])
def test_a_swizzle_is_an_involution_without_bank_conflicts(span: int) -> None:
    addresses = np.arange(0, 4096, 4)
    assert (swizzle(swizzle(addresses, span), span) == addresses).all()
    rows = swizzle(np.arange(8) * span + 16, span)  # one column of chunks of an atom of 8 rows
    assert len(set((rows // 16 % 8).tolist())) == 8


def test_the_bits_of_a_descriptor() -> None:
    found = Descriptor(start=0x400, leading=16, stride=1024, swizzle_bytes=128, base_offset=3).encode()
    assert [found & 0x3FFF, found >> 16 & 0x3FFF, found >> 32 & 0x3FFF] == [0x40, 1, 64]
    assert [found >> 49 & 7, found >> 62] == [3, 1]
