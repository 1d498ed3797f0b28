"""The layouts of matrix instructions beside the fragments of the records of level 3, element by element."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.errors import InvalidArgument
from tilewright.intrinsics.elements import bits
from tilewright.intrinsics.fragments import places
from tilewright.intrinsics.intrinsic import Fragment, Intrinsic
from tilewright.intrinsics.registry import standard
from tilewright.layouts import AmdWmma, Distributed, DotOperand, Matrix, Mfma, Mma, Wmma, elements_per_thread


def matrix_layout(record: Intrinsic) -> tuple[Matrix, int] | None:
    """The layout of a record's result, and how many neighbours along K a lane holds; None for other records."""
    family = record.name.split("_")[0]
    m, n, k = (record.extents[loop] for loop in ("i1", "i2", "r1")) if "i1" in record.extents else (0, 0, 0)
    width = bits(record.sources[0].dtype)
    if family == "mma":
        return Mma(2, (1, 1), (m, n)), max(1, 32 // width)
    if family == "wgmma" and n & (n - 1) == 0:
        return Mma(3, (4, 1), (16, n, k)), 32 // width
    if family == "wmmar3":
        return AmdWmma(3, (1, 1)), 16
    if family == "wmmar4":
        return AmdWmma(4, (1, 1)), 4 if width == 16 else 8
    if family in ("mfma", "vmfma"):
        fragment = record.operand("Src1").layout
        assert isinstance(fragment, Fragment)
        jumps = np.flatnonzero(np.diff(places(fragment)[1][0]) != 1)  # where the first lane's run along K ends
        run = int(jumps[0]) + 1 if len(jumps) else fragment.elements
        return Mfma((1, 1), (m, n), bits(record.destination.dtype)), run
    return None


def compare(layout: Distributed, fragment: Fragment, shape: tuple[int, ...]) -> None:
    linear, piece = layout.to_linear(shape), layout.repetition(shape).shape
    # Of instructions with half of K, registers along the other half of the piece hold nothing.
    left_out = sum(not any(base) for base in linear.of("register"))
    k = {0: 1, 1: 0}[layout.index] if isinstance(layout, DotOperand) else None
    beyond = [max(1, size // extent) for size, extent in zip(piece, shape, strict=True)]
    assert 1 << left_out == (1 if k is None else beyond[k])
    linear = linear.without_zeros("register")
    rows, columns = (c.reshape(-1, c.shape[-1]) for c in linear.coordinates())  # lanes of all warps
    expected = places(fragment)
    assert rows.shape == expected[0].shape
    assert (rows == expected[0]).all()
    assert (columns == expected[1]).all()


RECORDS = [record for record in standard() if matrix_layout(record) is not None]


def test_every_documented_family_is_compared() -> None:
    families = {record.name.split("_")[0] for record in RECORDS}
    assert families == {"mma", "wgmma", "wmmar3", "wmmar4", "mfma", "vmfma"}
    others = {
        record.name.split("_")[0]
        for record in standard()
        if record not in RECORDS and any(isinstance(each.layout, Fragment) for each in record.operands)
    }
    assert others <= {"wgmma"}  # N that is no power of two


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_layouts_agree_with_records(record: Intrinsic) -> None:
    found = matrix_layout(record)
    assert found is not None
    layout, width = found
    compared = 0
    for operand in record.operands:
        if isinstance(operand.layout, Fragment):
            kind = {"Dst": layout, "Src1": None, "Src2": None}[operand.role]
            held = kind or DotOperand(0 if operand.role == "Src1" else 1, layout, width)
            compare(held, operand.layout, record.shape(operand))
            compared += 1
    assert compared >= (1 if record.name.startswith("wgmma") else 3)


def test_version_3_refuses_n_that_is_no_power_of_two() -> None:
    with pytest.raises(InvalidArgument, match=r"instr is \[16,96,16\]") as error:
        Mma(3, (4, 1), (16, 96, 16))
    assert "64 or 128" in error.value.help


@pytest.mark.parametrize("instr", [(16, 16, 16), (32, 8, 16), (8, 32, 16)])
def test_spec3_1_7_1_elements_per_lane(instr: tuple[int, int, int]) -> None:
    m, n, k = instr
    layout = Wmma((1, 1), instr)
    held = [DotOperand(0, layout, 2).to_linear((m, k)), DotOperand(1, layout, 2).to_linear((k, n))]
    assert [elements_per_thread(each) for each in (*held, layout.to_linear((m, n)))] == [16, 16, 8]
    assert layout.opaque
    assert DotOperand(0, layout, 2).opaque


def at(layout: Distributed, shape: tuple[int, int], lane: int, registers: list[int]) -> list[tuple[int, ...]]:
    return [layout.to_linear(shape).apply(lane=lane, register=register) for register in registers]


def test_spec3_g31_to_g33() -> None:
    mma = Mma(2, (1, 1))
    a = at(DotOperand(0, mma, 2), (16, 16), 5, list(range(8)))
    assert a == [(1, 2), (1, 3), (9, 2), (9, 3), (1, 10), (1, 11), (9, 10), (9, 11)]
    assert at(DotOperand(1, mma, 2), (16, 8), 5, list(range(4))) == [(2, 1), (3, 1), (10, 1), (11, 1)]
    assert at(mma, (16, 8), 5, list(range(4))) == [(1, 2), (1, 3), (9, 2), (9, 3)]
    bytes_of_a = at(DotOperand(0, mma, 4), (16, 32), 5, list(range(16)))
    assert bytes_of_a == [(row, column + i) for column in (4, 20) for row in (1, 9) for i in range(4)]


def test_spec3_g37_lane_20() -> None:
    assert at(AmdWmma(3, (1, 1)), (16, 16), 20, [3]) == [(7, 4)]
    assert at(AmdWmma(4, (1, 1)), (16, 16), 20, [3]) == [(11, 4)]
    a = at(DotOperand(0, AmdWmma(4, (1, 1)), 4), (16, 16), 20, list(range(8)))
    assert a == [(4, k) for k in (4, 5, 6, 7, 12, 13, 14, 15)]


def test_spec3_g35_copies_of_rdna3_operands() -> None:
    layout = AmdWmma(3, (1, 1))
    for index in (0, 1):
        linear = DotOperand(index, layout, 16).to_linear((16, 16))
        assert {len(linear.holders(i, j)) for i in range(16) for j in range(16)} == {2}
    assert layout.to_linear((16, 16)).is_injective


@pytest.mark.parametrize(("instr", "width", "held"), [((16, 16, 16), 4, 8), ((16, 16, 8), 1, 4), ((8, 8, 4), 1, 1)])
def test_other_types_of_wmma_are_not_replicated(instr: tuple[int, int, int], width: int, held: int) -> None:
    m, _, k = instr
    a = DotOperand(0, Wmma((1, 1), instr), width).to_linear((m, k))
    assert elements_per_thread(a) == held
    assert a.is_injective
