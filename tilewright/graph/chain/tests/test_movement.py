"""Movement of one order: the table of all orders, the literal execution, edges, policies, memory."""

from __future__ import annotations

import random
from itertools import permutations
from math import prod

import pytest

from tilewright.graph.chain.loops import chain_of
from tilewright.graph.chain.movement import chain_dm, plan_moves
from tilewright.graph.chain.orders import incomplete, legal_orders
from tilewright.graph.chain.tests.chains import conv_chain, gemm_chain, three_products, two_convolutions
from tilewright.graph.chain.tests.literal import Op, Reach, rows, transfers

# Spec 1, section 3.3: DM of A, B, D, E in units of their sizes times trips, C live, transfers at (3, 2, 5, 4).
TABLE = {
    "lmkn": ("l", "m", "m", "l", "TT", (60, 60, 24, 24)),
    "mlkn": ("l", "m", "m", "l", "TT", (60, 60, 24, 24)),
    "lmnk": ("ln", "mn", "m", "l", "TT", (120, 120, 24, 24)),
    "mlnk": ("ln", "mn", "m", "l", "TT", (120, 120, 24, 24)),
    "lnmk": ("ln", "mn", "", "l", "TT", (120, 120, 8, 24)),
    "mnlk": ("ln", "mn", "m", "", "TT", (120, 120, 24, 6)),
    "nlmk": ("ln", "mn", "", "l", "TT", (120, 120, 8, 24)),
    "nmlk": ("ln", "mn", "m", "", "TT", (120, 120, 24, 6)),
    "klmn": ("l", "", "m", "l", "ML", (60, 20, 24, 24)),
    "kmln": ("", "m", "m", "l", "ML", (15, 60, 24, 24)),
    "lkmn": ("l", "", "m", "l", "MT", (60, 20, 24, 24)),
    "mkln": ("", "m", "m", "l", "TL", (15, 60, 24, 24)),
    "klnm": ("ln", "", "", "l", "ML", (120, 20, 8, 24)),
    "kmnl": ("", "mn", "m", "", "ML", (15, 120, 24, 6)),
    "knlm": ("ln", "n", "", "l", "ML", (120, 40, 8, 24)),
    "knml": ("n", "mn", "m", "", "ML", (30, 120, 24, 6)),
    "lknm": ("ln", "", "", "l", "MT", (120, 20, 8, 24)),
    "lnkm": ("ln", "n", "", "l", "MT", (120, 40, 8, 24)),
    "mknl": ("", "mn", "m", "", "TL", (15, 120, 24, 6)),
    "mnkl": ("n", "mn", "m", "", "TL", (30, 120, 24, 6)),
    "nklm": ("ln", "n", "", "l", "ML", (120, 40, 8, 24)),
    "nkml": ("n", "mn", "m", "", "ML", (30, 120, 24, 6)),
    "nlkm": ("ln", "n", "", "l", "MT", (120, 40, 8, 24)),
    "nmkl": ("n", "mn", "m", "", "TL", (30, 120, 24, 6)),
}
TRIPS = {"m": 3, "n": 2, "k": 5, "l": 4}
SIZES = {"A": "mk", "B": "kl", "D": "ln", "E": "mn"}


def products(extents: dict[str, int]) -> list[Op]:
    """The two products for the literal execution."""

    def at(loops: str) -> tuple[frozenset[str], Reach]:
        return frozenset(loops), lambda ranges: tuple(ranges[loop] for loop in loops)

    return [
        Op(frozenset("mkl"), {"A": at("mk"), "B": at("kl")}),
        Op(frozenset("mln"), {"D": at("ln"), "E": at("mn")}),
    ]


@pytest.mark.parametrize("order", TABLE)
def test_spec1_g04_all_orders_of_two_products(order: str) -> None:
    """One element per block: transfers are elements."""
    chain = gemm_chain(TRIPS["m"], TRIPS["n"], TRIPS["k"], TRIPS["l"])
    found = chain_dm(chain, tuple(order), dict.fromkeys("mnkl", 1))
    assert tuple(found.dm[name] for name in "ABDE") == TABLE[order][5]
    for name, loops in zip("ABDE", TABLE[order], strict=False):
        assert found.dm[name] == prod(TRIPS[loop] for loop in SIZES[name] + loops)


@pytest.mark.parametrize("order", TABLE)
def test_a_link_is_live_as_the_table_says(order: str) -> None:
    """C is the largest of three blocks of 2 by 2 while the first product runs, and nothing else stays."""
    chain = gemm_chain(6, 4, 10, 8)
    moves = plan_moves(chain, tuple(order))
    (whole,) = {frozenset(whole) for access, whole, _ in moves.held[1] if access.tensor == "C"}
    assert whole == {"TT": set(), "ML": {"m", "l"}, "MT": {"m"}, "TL": {"l"}}[TABLE[order][4]]


def test_spec1_g04_the_literal_execution_moves_as_much() -> None:
    """Random sizes and tiles; the last blocks are shorter."""
    roll = random.Random(4)
    for order in TABLE:
        for _ in range(6):
            extents = {loop: roll.randint(2, 9) for loop in "mnkl"}
            tile = {loop: roll.randint(1, (extent + 1) // 2) for loop, extent in extents.items()}
            chain = gemm_chain(extents["m"], extents["n"], extents["k"], extents["l"])
            expected = transfers(products(extents), order, tile, extents)
            assert chain_dm(chain, tuple(order), tile).dm == expected, (order, extents, tile)


def test_what_does_not_stay_is_loaded_again_after_another_operator() -> None:
    """Rule D1, against the execution that drops blocks: legal orders, any trips, some tensors kept."""
    roll = random.Random(5)
    chain = gemm_chain(2, 2, 2, 2)
    orders = [order for order in permutations("mnkl") if not incomplete(chain, order)]
    kept = 0
    for _ in range(400):
        order = roll.choice(orders)
        extents = {loop: roll.randint(2, 6) for loop in "mnkl"}
        tile = {loop: roll.choice((1, (extent + 1) // 2, extent)) for loop, extent in extents.items()}
        chain = gemm_chain(extents["m"], extents["n"], extents["k"], extents["l"])
        keep = {name for name in "ABDE" if roll.random() < 0.4}
        ones = {loop for loop in "mnkl" if tile[loop] == extents[loop]}
        moves = plan_moves(chain, order, keep=keep, ones=ones)
        kept += len(moves.stays)
        expected = transfers(products(extents), order, tile, extents, stays={*keep, *moves.stays})
        assert chain_dm(chain, order, tile, keep=keep).dm == expected, (order, extents, tile, keep)
    assert kept > 100


def test_spec1_g05_own_loops_only() -> None:
    chain = gemm_chain(6, 4, 10, 8)
    tile = {"m": 2, "n": 2, "k": 2, "l": 2}  # trips 3, 2, 5, 4
    dm = chain_dm(chain, tuple("mlnk"), tile, mode="own").dm
    assert dm == {"A": 60 * 4, "B": 80 * 3, "D": 32 * 3, "E": 24 * 4}
    dm = chain_dm(chain, tuple("mnlk"), tile, mode="own").dm
    assert dm == {"A": 60 * 4, "B": 80 * 3, "D": 32 * 3, "E": 24}


def test_spec1_g07_the_best_order_with_and_without_r1() -> None:
    chain = gemm_chain(2048, 2048, 2048, 2048)
    tiles = [(-(-2048 // m), -(-2048 // l)) for m in range(1, 6) for l in range(1, 6)]
    best: dict[str, int] = {}
    for order in permutations("mnkl"):
        for m, l in tiles:
            found = chain_dm(chain, order, {"m": m, "l": l, "k": 16, "n": 16}, memory="thesis")
            if found.memory <= 2**19:
                best["".join(order)] = min(found.dv, best.get("".join(order), found.dv))
    least = min(best.values())
    assert least == 41_943_040
    assert {order for order in best if best[order] == least} == {"mkln", "kmln", "klmn", "lkmn"}
    legal = {order: dv for order, dv in best.items() if not incomplete(chain, order)}
    assert min(legal.values()) == 50_331_648
    assert {order for order in legal if legal[order] == 50_331_648} == {"mlkn", "lmkn"}


def test_spec1_g15_the_last_block_is_shorter_or_padded() -> None:
    chain = gemm_chain(2048, 2048, 2048, 2048)
    tile = {"m": 708, "l": 708, "k": 16, "n": 16}
    assert chain_dm(chain, tuple("mlkn"), tile, edges="pad").dm["A"] == 13_049_856
    assert chain_dm(chain, tuple("mlkn"), tile).dm["A"] == 12_582_912


def test_memory_of_the_corrected_form() -> None:
    """E in mnlk and D in lnmk stay while the first product runs; A is charged to the second one where it is kept."""
    chain, tile = gemm_chain(64, 48, 32, 80), {"m": 8, "n": 4, "k": 2, "l": 16}
    first, second = 8 * 2 + 2 * 16 + 8 * 16, 8 * 16 + 16 * 4 + 8 * 4
    assert chain_dm(chain, tuple("mlkn"), tile).memory == max(first, second)
    assert chain_dm(chain, tuple("mnlk"), tile).memory == max(first + 8 * 4, second)
    assert chain_dm(chain, tuple("lnmk"), tile).memory == max(first + 16 * 4, second)
    whole = {**tile, "k": 32}
    kept = chain_dm(chain, tuple("mlkn"), whole, keep={"A"})
    assert kept.memory == max(8 * 32 + 32 * 16 + 8 * 16, second + 8 * 32)
    assert kept.dm["A"] == 64 * 32
    assert chain_dm(chain, tuple("mlkn"), whole).dm["A"] == 64 * 32 * 5


def test_a_second_buffer_is_for_what_is_streamed() -> None:
    chain, tile = gemm_chain(64, 48, 32, 80), {"m": 8, "n": 4, "k": 2, "l": 16}
    found = chain_dm(chain, tuple("mlkn"), tile, double_buffer=True)
    assert found.memory == max(2 * (8 * 2 + 2 * 16) + 8 * 16, 8 * 16 + 2 * (16 * 4 + 8 * 4))


def test_an_output_that_is_visited_again_is_loaded_too() -> None:
    """Decision B6: x visits are x stores and x - 1 loads."""
    chain, tile = gemm_chain(64, 48, 32, 80), {"m": 8, "n": 4, "k": 2, "l": 16}
    moved = chain_dm(chain, tuple("mlkn"), tile).tensors
    assert (moved["E"].moved, moved["E"].stores, moved["E"].loads) == (64 * 48 * 5, 64 * 48 * 5, 64 * 48 * 4)
    assert (moved["A"].loads, moved["A"].stores) == (64 * 32 * 5, 0)


# Convolutions ---------------------------------------------------------------------------------------------------------

REFERENCE = ("i2", "i3", "rc", "conv1.acc.rc", "i1")  # spatial loops, oc1, ic, oc2


@pytest.mark.parametrize(
    ("tile", "factor"), [(4, 2.1441), (7, 1.5625), (8, 1.4745), (14, 1.2258), (28, 1.0727), (56, 1.0)]
)
def test_spec1_g18_recomputation_of_c6(tile: int, factor: float) -> None:
    chain = chain_of(conv_chain("C6"))
    found = chain_dm(chain, REFERENCE, {**chain.extents, "i2": tile, "i3": tile})
    assert found.recomputed[0] == pytest.approx(factor, abs=5e-5)
    assert found.recomputed[1] == 1


def test_spec1_g19_movement_of_c6() -> None:
    chain = chain_of(conv_chain("C6"))
    dm = chain_dm(chain, REFERENCE, {**chain.extents, "i2": 14, "i3": 14}).dm
    assert dm == {"x": 246_016, "w1": 65_536, "w2": 589_824, "conv2": 200_704}


def test_convolutions_move_as_the_literal_execution_does() -> None:
    roll = random.Random(6)
    for number in range(60):
        strides, kernels = (roll.choice((1, 2)), roll.choice((1, 2))), (roll.choice((1, 3)), roll.choice((1, 3, 5)))
        channels, middle, filters = (roll.randint(2, 4) for _ in range(3))
        size, batch = roll.randint(8, 13), roll.choice((1, 2))
        chain = chain_of(two_convolutions(channels, size, middle, filters, strides, kernels, batch))
        order = roll.choice(legal_orders(chain)[0])
        tile = {loop: roll.randint(1, max(1, (extent + 1) // 2)) for loop, extent in chain.extents.items()}
        expected = transfers(convolutions(chain.extents, size, strides, kernels, batch), order, tile, chain.extents)
        assert chain_dm(chain, order, tile).dm == expected, (number, order, tile)


def convolutions(
    extents: dict[str, int], size: int, strides: tuple[int, int], kernels: tuple[int, int], batch: int
) -> list[Op]:
    """Two convolutions for the literal execution; the loops have the names that the chain gives them."""
    first = size // strides[0]

    def middle(begin: int, end: int) -> tuple[int, int]:
        return rows(begin, end, strides[1], kernels[1], (kernels[1] - 1) // 2, first)

    def image(begin: int, end: int) -> tuple[int, int]:
        return rows(*middle(begin, end), strides[0], kernels[0], (kernels[0] - 1) // 2, size)

    def along(ranges: object, *loops: str) -> tuple[tuple[int, int], ...]:
        return tuple(ranges[loop] for loop in loops)  # type: ignore[index]

    b = ("i0",) if batch > 1 else ()
    spatial = frozenset(("i2", "i3", *b))
    window1 = tuple(loop for loop in ("conv1.acc.rx", "conv1.acc.ry") if loop in extents)
    window2 = tuple(loop for loop in ("rx", "ry") if loop in extents)
    ic, oc1, oc2 = "conv1.acc.rc", "rc", "i1"
    return [
        Op(spatial | {ic, oc1}, {
            "x": (spatial | {ic}, lambda at: (*along(at, *b, ic), image(*at["i2"]), image(*at["i3"]))),
            "w1": (frozenset((oc1, ic)), lambda at: along(at, oc1, ic, *window1)),
        }),
        Op(spatial | {oc1, oc2}, {
            "w2": (frozenset((oc2, oc1)), lambda at: along(at, oc2, oc1, *window2)),
            "conv2": (spatial | {oc2}, lambda at: along(at, *b, oc2, "i2", "i3")),
        }),
    ]  # fmt: skip


def test_rows_that_a_stride_skips_are_counted_where_asked() -> None:
    """A kernel of 1 with stride 2 reads every other row: the box has all of them."""
    chain = chain_of(two_convolutions(4, 8, 4, 4, (2, 1), (1, 1)))
    tile = {**chain.extents, "i2": 2, "i3": 4}
    boxes = chain_dm(chain, legal_orders(chain)[0][0], tile)
    rows_read = chain_dm(chain, legal_orders(chain)[0][0], tile, exact=True)
    assert boxes.dm["x"] == 4 * (2 * 3) * 7
    assert rows_read.dm["x"] == 4 * 4 * 4


def test_three_products_move_as_the_literal_execution_does() -> None:
    roll = random.Random(7)
    for _ in range(60):
        m, k, l, n, p = (roll.randint(2, 6) for _ in range(5))
        chain = chain_of(three_products(m, k, l, n, p))
        order = roll.choice(legal_orders(chain)[0])
        tile = {loop: roll.randint(1, (extent + 1) // 2) for loop, extent in chain.extents.items()}

        def at(loops: str) -> tuple[frozenset[str], Reach]:
            return frozenset(loops), lambda ranges: tuple(ranges[loop] for loop in loops)

        ops = [
            Op(frozenset("mkl"), {"A": at("mk"), "B": at("kl")}),
            Op(frozenset("mln"), {"D": at("ln")}),
            Op(frozenset("mnp"), {"F": at("np"), "G": at("mp")}),
        ]
        assert chain_dm(chain, order, tile).dm == transfers(ops, order, tile, chain.extents), (order, tile)
