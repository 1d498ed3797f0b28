"""The emulator's tables of fragments beside those of the records: two sources, one truth; planted errors are found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright import emulator
from tilewright.emulator import fragments, parse, tensor_maps
from tilewright.emulator.isa.warpgroup import operand_addresses
from tilewright.emulator.tests.harness import kernel
from tilewright.intrinsics import fragments as described
from tilewright.intrinsics.elements import bits
from tilewright.intrinsics.intrinsic import Fragment, Intrinsic
from tilewright.intrinsics.nvidia import mma_sync, wgmma

RECORDS = [*mma_sync.INTRINSICS, *(record for record in wgmma.INTRINSICS if record.extents["i2"] in (8, 24, 64, 256))]


def own_tables(record: Intrinsic) -> dict[str, fragments.Fragment]:
    """The emulator's tables for the operands of a record that lie in registers."""
    m, n, k = (record.extents[loop] for loop in ("i1", "i2", "r1"))
    widths = {operand.role: bits(operand.dtype) for operand in record.operands}
    if record.name.startswith("wgmma"):
        return {"Src1": fragments.wgmma_a(k, widths["Src1"]), "Dst": fragments.wgmma_d(n)}
    return {
        "Src1": fragments.mma_a(m, k, widths["Src1"]), "Src2": fragments.mma_b(k, n, widths["Src2"]),
        "Dst": fragments.mma_c(m, n),
    }  # fmt: skip


def agree(layout: Fragment, own: fragments.Fragment) -> bool:
    rows, columns = described.places(layout)
    return (
        layout.lanes == len(own.rows)
        and layout.elements == own.elements
        and bool((rows == own.rows).all() and (columns == own.columns).all())
    )


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_tables_agree_with_records(record: Intrinsic) -> None:
    for role, own in own_tables(record).items():
        layout = record.operand(role).layout
        assert isinstance(layout, Fragment)
        assert agree(layout, own), role


@pytest.mark.parametrize("record", mma_sync.INTRINSICS[:12], ids=lambda record: record.name)
def test_planted_errors_are_found_in_either(record: Intrinsic) -> None:
    for role, own in own_tables(record).items():
        layout = record.operand(role).layout
        assert isinstance(layout, Fragment)
        for place in (0, 1):
            indices = list(layout.indices)
            indices[place] = f"{indices[place]} + 1"
            assert not agree(replace(layout, indices=tuple(indices)), own)
        for first, second in ((3, 9), (0, 1)):  # two lanes change places
            order = np.arange(len(own.rows))
            order[[first, second]] = order[[second, first]]
            assert not agree(layout, replace(own, rows=own.rows[order], columns=own.columns[order]))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_agrees(count: int, transposed: bool) -> None:
    generator = np.random.default_rng(count)
    shared = generator.integers(0, 256, 4096).astype(np.uint8)
    rows = generator.permutation(256)[:32] * 16
    names = ", ".join(f"%r{number}" for number in range(10, 10 + count))
    stores = "".join(f"st.global.u32 [%rd6+{4 * number}], %r{10 + number};" for number in range(count))
    body = f"""
    shl.b32 %r1, %r0, 7; mul.wide.u32 %rd5, %r0, 128; add.s64 %rd5, %rd0, %rd5; mov.u32 %r2, 0;
    L: ld.global.v4.u32 {{%r3, %r4, %r5, %r6}}, [%rd5]; st.shared.v4.u32 [%r1], {{%r3, %r4, %r5, %r6}};
    add.s64 %rd5, %rd5, 16; add.u32 %r1, %r1, 16; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 8; @%p1 bra L;
    bar.sync 0; ld.param.u64 %rd7, [p2]; add.s64 %rd7, %rd7, %rd4; ld.global.u32 %r7, [%rd7];
    ldmatrix.sync.aligned.m8n8.x{count}{".trans" if transposed else ""}.shared.b16 {{{names}}}, [%r7];
    mul.wide.u32 %rd6, %r0, {4 * count}; add.s64 %rd6, %rd1, %rd6; {stores}
    """
    found = np.zeros((32, count), np.uint32)
    args: list[Any] = [shared, found, rows.astype(np.uint32)]
    assert not emulator.run(parse(kernel(body, 3)), "k", (1, 1, 1), (32, 1, 1), args, 4096).diagnostics
    wanted = described.ldmatrix(shared, rows, count, transposed=transposed)
    assert (found.view(np.uint8) == wanted).all()


@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_swizzle_agrees(span: int) -> None:
    addresses = np.arange(4096)
    assert (tensor_maps.swizzled(addresses, span) == described.swizzle(addresses, span)).all()


@pytest.mark.parametrize("span", [32, 64, 128])
def test_descriptors_read_swizzled_tiles(span: int) -> None:
    """A K-major tile: the element (row, k) is where a row-major tile of `span` bytes per row, swizzled, has it."""
    descriptor = described.Descriptor(1024, 16, 8 * span, span).encode()
    start, leading, stride = ((descriptor >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
    assert (start, stride, (0, 128, 64, 32)[descriptor >> 62]) == (1024, 8 * span, span)
    own = tensor_maps.swizzled(operand_addresses(start, leading, stride, span, 64, 16, 16, False), span)
    row, k = np.indices((64, 16))
    assert (own == described.swizzle(1024 + row * span + 2 * k, span)).all()
