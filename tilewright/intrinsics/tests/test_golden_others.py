"""Golden tests of spec 3, records of AMD and Ascend: G37, G43, G44; names that schedules use."""

from __future__ import annotations

import pytest

from tilewright.intrinsics.ascend.mad import ASCEND_910, ASCEND_910B, mad
from tilewright.intrinsics.composite import cube_intensity, cube_tile
from tilewright.intrinsics.formula import formula
from tilewright.intrinsics.fragments import fragment_of, places
from tilewright.intrinsics.intrinsic import Intrinsic
from tilewright.intrinsics.registry import standard


def held(name: str, role: str, lane: int) -> list[tuple[int, ...]]:
    _, fragment = fragment_of(standard().find(name), role)
    return list(zip(*(index[lane].tolist() for index in places(fragment)), strict=True))


def test_spec3_g37() -> None:
    assert held("wmmar3_16x16x16_f16_f32", "Dst", 20)[3] == (7, 4)
    assert held("wmmar4_16x16x16_f16_f32", "Dst", 20)[3] == (11, 4)
    assert held("wmmar4_16x16x16_f16_f32", "Src1", 20) == [(4, k) for k in (4, 5, 6, 7, 12, 13, 14, 15)]


def test_spec3_g43() -> None:
    def offset(order: str, role: str, row: int, column: int) -> int:
        operand = mad(2, 2, 3, order=order).operand(role)  # M 32, N 32, K 48
        digits = (row // 16, column // 16, row % 16, column % 16)
        places = digits if role != "B" else (*digits[:2], digits[3], digits[2])
        at = dict(zip(operand.loops, places, strict=True))
        return int(formula(operand.layout)(at))

    assert offset("Nz", "A", 17, 35) == 1299
    assert offset("Nz", "B", 35, 17) == 1299
    assert (offset("Zz", "C", 5, 20), offset("Nz", "C", 5, 20)) == (340, 596)


def test_spec3_g44() -> None:
    def tile(capacity: dict[str, int], **choice: bool) -> tuple[int, int, int]:
        return cube_tile(capacity["l0a"], capacity["l0b"], capacity["l0c"], **choice)

    assert tile(ASCEND_910)[:2] == (16, 16)
    assert cube_intensity(16, 16) == 128
    assert tile(ASCEND_910)[2] == 8
    assert tile(ASCEND_910B, square=True)[:2] == (11, 11)
    assert cube_intensity(11, 11) == 88
    assert tile(ASCEND_910B, powers=True)[:2] == (8, 16)
    assert cube_intensity(8, 16) == pytest.approx(85.33, abs=5e-3)


@pytest.mark.parametrize(
    "alias",
    [
        "WMMAR3_F32_16x16x16_F16", "WMMAR3_BF16_16x16x16_BF16", "WMMAR3_I32_16x16x16_I8", "WMMAR4_F32_16x16x16_F8E5M2",
        "WMMAR4_F32_16x16x16_F8E4M3FN_F8E5M2", "WMMAR4_I32_16x16x16_I8", "MFMA_F32_32x32x8_BF16",
        "MFMA_F32_16x16x32_F8E5M2FNUZ_F8E4M3FNUZ", "MFMA_I32_32x32x16_I8", "MFMA_F64_16x16x4_F64",
        "VMFMA_F32_16x16x32_F16", "VMFMA_F32_32x32x16_F8E4M3FNUZ", "MMA_SYNC_F32_16x8x8_TF32", "MMA_SYNC_I32_8x8x16_I8",
        "MMA_SYNC_F32_16x8x32_F8E4M3FN", "MMA_SYNC_F64_8x8x4_F64", "NV_WMMA_F16_16x16x16_F16", "WGMMA_64x256x16_F16",
    ],
)  # fmt: skip
def test_names_of_schedules_are_aliases(alias: str) -> None:
    found = standard().find(alias)
    if not alias.startswith("WGMMA"):
        shape = next(part for part in alias.split("_") if "x" in part)
        assert list(found.extents.values()) == [int(extent) for extent in shape.split("x")]


def test_machine_files_name_records() -> None:
    """Every intrinsic that a machine of the package lists is in the catalogue."""
    from tilewright.machine import names, resolve

    listed = {name for machine in names() for name in resolve(machine).to_json().get("intrinsics", ())}
    assert len(listed) > 30
    assert {name for name in listed if name not in standard()} == set()


def grid(lane_counts: tuple[int, int], strides: tuple[int, int], run: tuple[int, int], outer: tuple[int, int]):
    """(row, column) of (lane, e) where each dimension is cut as outer x lanes x run, register elements row by row."""

    def place(lane: int, e: int) -> tuple[int, int]:
        outer_column, (run_row, run_column) = outer[1], run
        inner, rest = e % (run_row * run_column), e // (run_row * run_column)
        outers = (rest // outer_column, rest % outer_column)
        runs = (inner // run_column, inner % run_column)
        lanes = tuple(
            lane // stride % count if stride else 0 for stride, count in zip(strides, lane_counts, strict=True)
        )
        return tuple((o * n + t) * r + i for o, n, t, r, i in zip(outers, lane_counts, lanes, run, runs, strict=True))  # type: ignore[return-value]

    return place


def mfma_grids(m: int, k: int, f64: bool) -> dict[str, object]:
    """How AMD's tables cut MFMA operands: A in runs along K, B likewise, C in runs of 4 rows (f64: single rows)."""
    groups = 64 // m
    return {
        "Src1": grid((m, groups), (1, m), (1, k // groups), (1, 1)),
        "Src2": grid((groups, m), (m, 1), (k // groups, 1), (1, 1)),
        "Dst": grid((groups, m), (m, 1), (1 if f64 else 4, 1), (4 if f64 else m * m // 256, 1)),
    }


@pytest.mark.parametrize("record", [r for r in standard() if r.name.startswith("mfma_")], ids=lambda r: r.name)
def test_mfma_fragments_are_those_of_the_tables(record: Intrinsic) -> None:
    m, _, k = record.extents.values()
    for role, place in mfma_grids(m, k, record.destination.dtype == "f64").items():
        for lane in range(64):
            found = held(record.name, role, lane)
            assert found == [place(lane, e) for e in range(len(found))], f"{role}, lane {lane}"  # type: ignore[operator]
