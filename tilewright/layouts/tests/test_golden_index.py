"""Where elements lie: the tables of spec 6, sections 7.2 to 7.8, row by row, and its closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.layouts import Blocked, DotOperand, Mma, NvmmaShared, Shared, parse
from tilewright.layouts.shared import _Swizzled

EXAMPLE = "#blocked<S=[2,2], T=[8,4], W=[1,2], O=[1,0]>"
WIDE = "#blocked<S=[1,8], T=[16,2], W=[1,1], O=[1,0]>"
ONE_BY_EIGHT = "#mma<v=2, W=[1,1], instr=[16,8]>"
FOUR_WARPS = "#mma<v=2, W=[2,2], instr=[16,8]>"

# layout, shape, element -> every (warp, lane, register)
HOLDERS = [
    (EXAMPLE, (16, 16), (0, 1), [(0, 0, 1)]),
    (EXAMPLE, (16, 16), (1, 0), [(0, 0, 2)]),
    (EXAMPLE, (16, 16), (2, 0), [(0, 4, 0)]),
    (EXAMPLE, (16, 16), (0, 8), [(1, 0, 0)]),
    (EXAMPLE, (16, 16), (5, 11), [(1, 9, 3)]),
    (EXAMPLE, (16, 16), (15, 15), [(1, 31, 3)]),
    (EXAMPLE, (32, 32), (0, 16), [(0, 0, 4)]),
    (EXAMPLE, (32, 32), (16, 0), [(0, 0, 8)]),
    (EXAMPLE, (32, 32), (31, 31), [(1, 31, 15)]),
    (EXAMPLE, (4, 4), (0, 0), [(w, lane, 0) for w in (0, 1) for lane in (0, 2, 8, 10, 16, 18, 24, 26)]),
    (WIDE, (16, 16), (0, 9), [(0, 1, 1)]),
    (WIDE, (16, 16), (7, 3), [(0, 14, 3)]),
    (WIDE, (16, 16), (15, 15), [(0, 31, 7)]),
    ("#blocked<S=[1,1], T=[4,8], W=[1,1], O=[1,0]>", (16, 8), (3, 5), [(0, 29, 0)]),
    ("#blocked<S=[1,1], T=[4,8], W=[1,1], O=[1,0]>", (16, 8), (4, 0), [(0, 0, 1)]),
    ("#blocked<S=[1,1], T=[4,8], W=[1,1], O=[1,0]>", (16, 8), (15, 7), [(0, 31, 3)]),
    ("#blocked<S=[1,1], T=[16,2], W=[1,1], O=[0,1]>", (16, 16), (5, 3), [(0, 21, 1)]),
    ("#blocked<S=[1,1], T=[16,2], W=[1,1], O=[0,1]>", (16, 16), (15, 15), [(0, 31, 7)]),
    (f"#slice<dim=1, parent={WIDE}>", (16,), (5,), [(0, 10, 0), (0, 11, 0)]),
    (f"#slice<dim=0, parent={WIDE}>", (16,), (9,), [(0, lane, 1) for lane in range(1, 32, 2)]),
    (ONE_BY_EIGHT, (16, 8), (0, 3), [(0, 1, 1)]),
    (ONE_BY_EIGHT, (16, 8), (9, 5), [(0, 6, 3)]),
    (ONE_BY_EIGHT, (16, 8), (15, 7), [(0, 31, 3)]),
    (FOUR_WARPS, (32, 32), (0, 8), [(1, 0, 0)]),
    (FOUR_WARPS, (32, 32), (16, 0), [(2, 0, 0)]),
    (FOUR_WARPS, (32, 32), (17, 13), [(3, 6, 1)]),
    (FOUR_WARPS, (32, 32), (5, 20), [(0, 22, 4)]),
    (FOUR_WARPS, (32, 32), (31, 31), [(3, 31, 7)]),
    ("#mma<v=2, W=[4,1], instr=[16,8]>", (64, 64), (0, 8), [(0, 0, 4)]),
    ("#mma<v=2, W=[4,1], instr=[16,8]>", (64, 64), (33, 17), [(2, 4, 9)]),
    ("#mma<v=2, W=[4,1], instr=[16,8]>", (64, 64), (63, 63), [(3, 31, 31)]),
    (f"#dot<idx=0, parent={ONE_BY_EIGHT}, w=2>", (16, 16), (1, 3), [(0, 5, 1)]),
    (f"#dot<idx=0, parent={ONE_BY_EIGHT}, w=2>", (16, 16), (9, 5), [(0, 6, 3)]),
    (f"#dot<idx=0, parent={ONE_BY_EIGHT}, w=2>", (16, 16), (3, 10), [(0, 13, 4)]),
    (f"#dot<idx=0, parent={ONE_BY_EIGHT}, w=2>", (16, 16), (12, 15), [(0, 19, 7)]),
    (f"#dot<idx=0, parent={FOUR_WARPS}, w=2>", (32, 32), (17, 20), [(2, 6, 8), (3, 6, 8)]),
    (f"#dot<idx=0, parent={FOUR_WARPS}, w=2>", (32, 32), (31, 31), [(2, 31, 15), (3, 31, 15)]),
    (f"#dot<idx=1, parent={ONE_BY_EIGHT}, w=2>", (16, 8), (3, 1), [(0, 5, 1)]),
    (f"#dot<idx=1, parent={ONE_BY_EIGHT}, w=2>", (16, 8), (9, 5), [(0, 20, 3)]),
    (f"#dot<idx=1, parent={FOUR_WARPS}, w=2>", (32, 32), (0, 8), [(1, 0, 0), (3, 0, 0)]),
    (f"#dot<idx=1, parent={FOUR_WARPS}, w=2>", (32, 32), (20, 17), [(0, 6, 12), (2, 6, 12)]),
    ("#mma<v=3, W=[4,1], instr=[16,128,16]>", (64, 128), (17, 9), [(1, 4, 5)]),
    ("#mma<v=3, W=[4,1], instr=[16,128,16]>", (64, 128), (63, 127), [(3, 31, 63)]),
]


@pytest.mark.parametrize(("text", "shape", "element", "places"), HOLDERS)
def test_spec6_7_8_holders(text: str, shape: tuple[int, ...], element: tuple[int, ...], places: list[object]) -> None:
    assert parse(text).to_linear(shape).holders(*element) == places


OFFSETS = [
    ((2, 2, 2), (4, 4), (1, 3), 7),
    ((2, 2, 2), (4, 4), (2, 0), 10),
    ((2, 2, 2), (4, 4), (3, 3), 13),
    ((8, 4, 2), (16, 16), (0, 9), 9),
    ((8, 4, 2), (16, 16), (3, 9), 57),
    ((8, 4, 2), (16, 16), (4, 0), 72),
    ((8, 4, 2), (16, 16), (4, 9), 65),
    ((8, 4, 2), (16, 16), (8, 0), 128),
    ((8, 4, 2), (16, 16), (15, 15), 247),
    ((8, 2, 4), (8, 32), (2, 0), 72),
    ((8, 2, 4), (8, 32), (5, 17), 161),
    ((8, 2, 4), (8, 32), (7, 31), 231),
    ((8, 1, 8), (8, 64), (1, 0), 72),
    ((8, 1, 8), (8, 64), (3, 40), 240),
    ((8, 1, 8), (8, 64), (7, 63), 455),
]


@pytest.mark.parametrize(("swizzle", "shape", "element", "offset"), OFFSETS)
def test_spec6_7_8_offsets(
    swizzle: tuple[int, int, int], shape: tuple[int, int], element: tuple[int, int], offset: int
) -> None:
    layout = Shared(*swizzle, (1, 0))
    assert layout.offsets(shape)[element] == offset
    assert layout.to_linear(shape).apply(offset=offset) == element


def test_spec6_7_2_closed_form_of_blocked() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        order = tuple(map(int, rng.permutation(2)))
        sizes = [tuple(int(2 ** rng.integers(0, 4)) for _ in range(2)) for _ in range(3)]
        s, t, w = sizes
        shape = tuple(int(2 ** rng.integers(0, 7)) for _ in range(2))
        linear = Blocked(s, t, w, order).to_linear(shape)
        repeats = tuple(max(1, n // (a * b * c)) for n, a, b, c in zip(shape, s, t, w, strict=True))
        warp, lane, register = np.indices(linear.table().shape)

        def digits(
            number: np.ndarray, extents: tuple[int, ...], order: tuple[int, ...] = order
        ) -> dict[int, np.ndarray]:
            found = {}
            for d in order:
                found[d] = number % extents[d]
                number = number // extents[d]
            return found

        r, q = digits(register, s), digits(register // (s[0] * s[1]), repeats)
        lanes, warps = digits(lane, t), digits(warp, w)
        for d, found in enumerate(linear.coordinates()):
            assert (found == ((((q[d] * w[d] + warps[d]) * t[d] + lanes[d]) * s[d] + r[d]) % shape[d])).all()


def test_spec6_7_3_slices_drop_registers_along_the_dimension() -> None:
    assert str(parse(f"#slice<dim=1, parent={WIDE}>").to_linear((16,))) == (
        "#linear<r=[], l=[(0),(1),(2),(4),(8)], w=[]>"
    )


def test_spec6_7_4_bases_of_version_2() -> None:
    assert str(Mma(2, (1, 1)).to_linear((16, 8))) == "#linear<r=[(0,1),(8,0)], l=[(0,2),(0,4),(1,0),(2,0),(4,0)], w=[]>"
    lane, r = np.arange(32)[:, None], np.arange(4)[None, :]
    rows, columns = Mma(2, (1, 1)).to_linear((16, 8)).coordinates()
    assert (rows[0] == lane // 4 + 8 * (r // 2)).all()
    assert (columns[0] == 2 * (lane % 4) + r % 2).all()


def test_spec6_7_5_operands_of_16_bit() -> None:
    lane = np.arange(32)[:, None]
    r = np.arange(8)[None, :]
    rows, ks = DotOperand(0, Mma(2, (1, 1)), 2).to_linear((16, 16)).coordinates()
    assert (rows[0] == lane // 4 + 8 * (r >> 1 & 1)).all()
    assert (ks[0] == 2 * (lane % 4) + (r & 1) + 8 * (r >> 2 & 1)).all()
    r = np.arange(4)[None, :]
    ks, columns = DotOperand(1, Mma(2, (1, 1)), 2).to_linear((16, 8)).coordinates()
    assert (ks[0] == 2 * (lane % 4) + (r & 1) + 8 * (r >> 1 & 1)).all()
    assert (columns[0] == lane // 4).all()


def test_spec6_7_5_operand_of_blocked_holds_all_of_k() -> None:
    parent = Blocked((2, 2), (8, 4), (2, 1), (1, 0))
    a = DotOperand(0, parent).to_linear((32, 16))
    b = DotOperand(1, parent).to_linear((16, 8))
    assert {len(a.holders(i, k)) for i in range(32) for k in range(16)} == {4}  # lanes along n
    assert {len(b.holders(k, j)) for k in range(16) for j in range(8)} == {16}  # lanes and warps along m
    rows, ks = a.coordinates()
    result_rows = parent.to_linear((32, 8)).coordinates()[0]
    assert (np.sort(np.unique(ks[0, 0])) == np.arange(16)).all()
    for warp in range(2):
        for lane in range(32):
            assert set(rows[warp, lane]) == set(result_rows[warp, lane])


def test_spec6_7_6_bases_of_version_3() -> None:
    text = str(Mma(3, (4, 2), (16, 32, 16)).to_linear((64, 128)))
    assert text == (
        "#linear<r=[(0,1),(8,0),(0,8),(0,16),(0,64)], l=[(0,2),(0,4),(1,0),(2,0),(4,0)], w=[(16,0),(32,0),(0,32)]>"
    )
    a = DotOperand(0, Mma(3, (4, 2), (16, 32, 16)), 2).to_linear((64, 16))
    assert a.of("warp") == ((16, 0), (32, 0), (0, 0))


@pytest.mark.parametrize("rows", [4, 8, 64])
@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_spec6_7_7_hardware_swizzle(rows: int, swizzle: int, bits: int) -> None:
    e = bits // 8
    width = swizzle // e
    shape = (rows, 2 * width)
    row, column = np.indices(shape)
    vec, per_phase, max_phase = 16 // e, 128 // swizzle, swizzle // 16
    phase = (row // per_phase) % max_phase
    expected = column // width * rows * width + row * width + ((column % width) ^ (vec * phase))
    found = NvmmaShared(swizzle, bits).offsets(shape)
    assert (found == expected).all()
    assert (NvmmaShared(swizzle, bits, transposed=True).offsets(shape[::-1]) == expected.T).all()


@pytest.mark.parametrize(("swizzle", "mask"), [(128, 7), (64, 3), (32, 1)])
def test_spec3_1_7_4_swizzle_of_byte_addresses(swizzle: int, mask: int) -> None:
    offsets = NvmmaShared(swizzle, 8).offsets((64, swizzle)).reshape(-1)
    plain = np.arange(64 * swizzle)
    assert (offsets == plain ^ (((plain >> 7) & mask) << 4)).all()


@pytest.mark.parametrize("layout", [Shared(8, 2, 4, (1, 0)), Shared(4, 1, 8, (0, 1)), NvmmaShared(64, 16)], ids=str)
def test_linear_form_of_shared_layouts_is_their_formula(layout: _Swizzled) -> None:
    shape = (32, 64)
    linear, offsets = layout.to_linear(shape), layout.offsets(shape)
    assert (offsets.reshape(-1)[linear.table()] == np.arange(offsets.size)).all()


def test_no_swizzle_where_rows_are_no_longer_than_a_group() -> None:
    assert (Shared(8, 1, 8, (1, 0)).offsets((16, 8)).reshape(-1) == np.arange(128)).all()


def test_batches_are_dealt_to_warps_and_registers() -> None:
    layout = Mma(2, (4, 1, 1))
    linear = layout.to_linear((8, 16, 8))
    assert str(linear) == (
        "#linear<r=[(0,0,1),(0,8,0),(4,0,0)], l=[(0,0,2),(0,0,4),(0,1,0),(0,2,0),(0,4,0)], w=[(1,0,0),(2,0,0)]>"
    )
    a = DotOperand(0, layout, 2).to_linear((8, 16, 16))
    b = DotOperand(1, layout, 2).to_linear((8, 16, 8))
    flat = Mma(2, (1, 1))
    pairs = ((a, DotOperand(0, flat, 2).to_linear((16, 16))), (b, DotOperand(1, flat, 2).to_linear((16, 8))))
    for batched, plain in pairs:
        size = plain.shape[0] * plain.shape[1]
        table = batched.table()
        for warp in range(4):
            for half in (0, 1):
                registers = table[warp, :, half * table.shape[2] // 2 : (half + 1) * table.shape[2] // 2]
                assert (registers == plain.table()[0] + size * (warp + 4 * half)).all()


def test_phases_start_anew_in_every_matrix_of_a_batch() -> None:
    one = Shared(2, 1, 4, (2, 1, 0)).offsets((1, 2, 8))
    both = Shared(2, 1, 4, (2, 1, 0)).offsets((2, 2, 8))
    assert (both[0] == one[0]).all()
    assert (both[1] == one[0] + 16).all()


def test_a_scalar_is_held_by_every_thread() -> None:
    linear = parse("#slice<dim=0, parent=#blocked<S=[1], T=[32], W=[4], O=[0]>>").to_linear(())
    assert linear.holders() == [(warp, lane, 0) for warp in range(4) for lane in range(32)]
    assert parse(str(linear)) == linear
