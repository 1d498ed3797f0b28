"""What conversions cost, class by class: the table of spec 6, section 7.10, with c = bytes per thread / 4."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.layouts import (
    Blocked,
    DotOperand,
    Mma,
    Padded,
    Shared,
    convert,
    default_blocked,
    parse,
    vector_width,
)
from tilewright.layouts.conversion import Place

LANES = "l=[(4),(8),(16),(32),(64)]"


@pytest.mark.parametrize(
    ("source", "destination", "kind", "cost"),
    [
        (f"r=[(1),(2)], {LANES}, w=[(128)], b=[(256)]", f"r=[(1),(2)], {LANES}, w=[(128)], b=[(256)]", "none", 0),
        (f"r=[(1),(2)], {LANES}, w=[(128)], b=[(256)]", f"r=[(2),(1)], {LANES}, w=[(128)], b=[(256)]", "register", 0),
        (f"r=[(1),(2)], {LANES}, w=[(128)], b=[(256)]",
         "r=[(1),(4)], l=[(2),(8),(16),(32),(64)], w=[(128)], b=[(256)]", "shuffle", 2 * 4),
        (f"r=[(1),(2)], {LANES}, w=[(128)], b=[(256)]", f"r=[(1),(128)], {LANES}, w=[(2)], b=[(256)]",
         "shared", 4 * 4 + 1),
        (f"r=[(1),(2)], {LANES}, w=[(128)], b=[(256)]", f"r=[(1),(256)], {LANES}, w=[(128)], b=[(2)]",
         "cluster", 8 * 4),
    ],
)  # fmt: skip
def test_spec6_7_10_between_registers(source: str, destination: str, kind: str, cost: float) -> None:
    sides = [parse(f"#linear<{text}>") for text in (source, destination)]
    found = convert(sides[0], sides[1], (512,), 32)
    assert (found.kind, found.bytes_per_thread, found.cost) == (kind, 16, cost)
    half = convert(sides[0], sides[1], (512,), 16)
    words = half.bytes_per_thread // 4  # two elements travel together
    factors = {"none": 0, "register": 0, "shuffle": 2, "shared": 4, "cluster": 8}
    assert half.cost == factors[kind] * words + (kind == "shared")


ROWS = default_blocked((64, 64), (1, 8), (1, 0), warps=1)  # 16 bytes of a row per lane
COLUMNS = Blocked((1, 1), (32, 1), (1, 1), (0, 1))  # a lane per row
A = DotOperand(0, Mma(2, (1, 1)), 2)
B = DotOperand(1, Mma(2, (1, 1)), 2)
SWIZZLED, PLAIN = Shared(8, 1, 8, (1, 0)), Shared(1, 1, 1, (1, 0))


@pytest.mark.parametrize(
    ("side", "memory", "bits", "load", "store"),
    [
        (ROWS, SWIZZLED, 16, 1, 1),  # wide, without conflicts
        (ROWS, Padded(8, (1, 0)), 16, 1, 1),
        (COLUMNS, PLAIN, 32, 2, 2),  # 4 bytes, but all lanes in one bank
        (COLUMNS, Padded(1, (1, 0)), 32, 1, 1),
        (Blocked((1, 1), (1, 32), (1, 1), (1, 0)), PLAIN, 32, 1, 1),
        (Blocked((1, 1), (1, 32), (1, 1), (1, 0)), PLAIN, 16, 2, 2),  # 2 bytes per access
        (B, SWIZZLED, 16, 1, 2),  # ldmatrix.trans brings what lanes would read by halves; nothing stores so
        (B, PLAIN, 16, 2, 2),  # whose rows meet in the banks
        (A, SWIZZLED, 16, 1, 1),
        (A, PLAIN, 16, 2, 2),
    ],
)
def test_spec6_7_10_beside_shared_memory(side: Place, memory: Place, bits: int, load: int, store: int) -> None:
    c = 64 * 64 // 32 * bits // 8 / 4
    for kind, factor, ends in (("load", load, (memory, side)), ("store", store, (side, memory))):
        found = convert(ends[0], ends[1], (64, 64), bits)
        assert (found.kind, found.bytes_per_thread, found.cost) == (kind, 4 * c, factor * c)


@pytest.mark.parametrize(("pad", "width"), [(8, 8), (12, 4), (24, 8), (6, 2), (10, 2), (5, 1), (0, 8)])
def test_vectors_of_padded_rows_begin_at_multiples_of_their_width(pad: int, width: int) -> None:
    memory = Padded(pad, (1, 0))
    assert vector_width(ROWS.to_linear((64, 64)), memory, 16) == width
    first = memory.offsets((64, 64)).reshape(-1)[ROWS.to_linear((64, 64)).table()]
    assert (first[..., ::width] % width == 0).all()
    assert width == 8 or (first[..., :: 2 * width] % (2 * width)).any()


def distributed(shape: tuple[int, ...], size: tuple[int, ...], order: tuple[int, ...], warps: int) -> Blocked:
    """Section 7.2, written down as it stands there."""
    lanes, threads, left = 32, 32 * warps, warps
    T, W = [1] * len(shape), [1] * len(shape)
    for d in order[:-1]:
        t = min(max(threads, 1), max(1, shape[d] // size[d]))
        T[d] = min(max(t, 1), lanes)
        W[d] = min(max(t // T[d], 1), left)
        lanes, left, threads = lanes // T[d], left // W[d], threads // t
    T[order[-1]], W[order[-1]] = lanes, left
    return Blocked(size, tuple(T), tuple(W), order)


@pytest.mark.parametrize("warps", [1, 2, 4, 8])
@pytest.mark.parametrize("order", [(2, 1, 0), (0, 1, 2), (1, 2, 0)])
@pytest.mark.parametrize("shape", [(2, 4, 8), (4, 64, 8), (8, 2, 64), (1, 1, 4), (16, 256, 2), (2, 2, 512)])
def test_spec6_7_2_three_dimensions(shape: tuple[int, ...], order: tuple[int, ...], warps: int) -> None:
    for size in ((1, 1, 1), (1, 1, 4), (2, 1, 1)):
        layout = default_blocked(shape, size, order, warps)
        assert layout == distributed(shape, size, order, warps)
        assert np.prod(layout.threads_per_warp) == 32
        assert np.prod(layout.warps) == warps


def test_spec6_7_2_three_dimensions_by_hand() -> None:
    layout = default_blocked((4, 64, 8), (1, 1, 1), (2, 1, 0), warps=4)
    assert (layout.threads_per_warp, layout.warps) == ((1, 4, 8), (1, 4, 1))
    layout = default_blocked((64, 2, 8), (1, 1, 2), (2, 1, 0), warps=4)
    assert (layout.threads_per_warp, layout.warps) == ((4, 2, 4), (4, 1, 1))
