"""The smallest tiles that instructions run, as level 1 gets them."""

from __future__ import annotations

import pytest

from tilewright.expr.text import parse_compute
from tilewright.instruction.quanta import MachineQuanta
from tilewright.machine import resolve

SIZES = {"i": 512, "j": 512, "k": 64}


@pytest.mark.parametrize(
    ("machine", "dtype", "tile"),
    [
        ("x86-64-v4", "f32", {"i": 6, "j": 64, "k": 1}),
        ("x86-64-v3", "f32", {"i": 4, "j": 24, "k": 1}),
        ("sm_80", "f16", {"i": 16, "j": 8, "k": 16}),
    ],
)
def test_a_tile_is_that_of_the_record(machine: str, dtype: str, tile: dict[str, int]) -> None:
    compute = parse_compute("C[i, j] += A[i, k] * B[k, j]", SIZES, dtype)
    assert MachineQuanta(resolve(machine)).quanta(compute) == tile


def test_the_innermost_of_several_rows_has_the_tile() -> None:
    sizes = {"b": 2, "k": 64, "h": 14, "w": 14, "c": 32, "r": 3, "s": 3}
    compute = parse_compute("C[b, k, h, w] += A[b, c, h + r, w + s] * B[k, c, r, s]", sizes)
    tile = MachineQuanta(resolve("x86-64-v4")).quanta(compute)
    assert set(tile) <= set(sizes)
    assert max(tile.values()) == 64


@pytest.mark.parametrize(
    ("machine", "text", "dtype"),
    [
        ("x86-64-v4", "C[i, j] = A[i, j] + B[i, j]", "f32"),  # no product
        ("sm_80", "C[i, j] += A[i, k] * B[k, j]", "f32"),  # no matrix instruction without tf32
        ("edge", "C[i, j] += A[i, k] * B[k, j]", "f16"),  # no instructions
    ],
)
def test_what_no_instruction_runs_has_no_tile(machine: str, text: str, dtype: str) -> None:
    sizes = {name: size for name, size in SIZES.items() if f"{name}]" in text or f"{name}," in text}
    assert MachineQuanta(resolve(machine)).quanta(parse_compute(text, sizes, dtype)) == {}
