"""Properties of layouts on random instances: algebra, coverage, conversions on arrays, conflicts counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.layouts import (
    AmdWmma,
    Blocked,
    Distributed,
    DotOperand,
    LinearLayout,
    Mfma,
    Mma,
    NvmmaShared,
    Padded,
    Shared,
    Slice,
    Wmma,
    contiguity,
    convert,
    elements_per_thread,
    global_access,
    linear,
    named,
    parse,
    replication,
    row_major_memory,
    shared_access,
    shared_for_pair,
    vector_width,
    wavefronts,
)
from tilewright.layouts.bits import Span, independent, intersection

few = settings(max_examples=tries(15, full=60), deadline=None)


@st.composite
def maps(draw: Any, ins: tuple[str, ...], outs: tuple[tuple[str, int], ...]) -> LinearLayout:
    """Any linear map from `ins`, of up to 3 bits each, to `outs`."""
    base = st.tuples(*(st.integers(0, extent - 1) for _, extent in outs))
    return named({name: draw(st.lists(base, max_size=3)) for name in ins}, dict(outs))


def powers(most: int, least: int = 0) -> st.SearchStrategy[int]:
    return st.integers(least, most).map(lambda bit: 1 << bit)


@st.composite
def blocked(draw: Any, lanes: int = 32, warps: int = 4, rank: int = 2) -> Blocked:
    """A blocked layout with that many lanes and warps."""

    def distributed(total: int) -> tuple[int, ...]:
        found, left = [], total.bit_length() - 1
        for _ in range(rank - 1):
            bits = draw(st.integers(0, left))
            found.append(1 << bits)
            left -= bits
        return (*found, 1 << left)

    size = tuple(draw(powers(2)) for _ in range(rank))
    return Blocked(size, distributed(lanes), distributed(warps), tuple(draw(st.permutations(range(rank)))))


def distributed(warps: int = 4) -> st.SearchStrategy[Distributed]:
    """A layout of rank 2 over 32 lanes and `warps` warps."""
    distributed = st.sampled_from([(1 << bit, warps >> bit) for bit in range(warps.bit_length())])
    mma = distributed.map(lambda w: Mma(2, w))
    return st.one_of(
        blocked(warps=warps),
        mma,
        st.builds(DotOperand, st.integers(0, 1), mma, st.sampled_from([1, 2, 4])),
        st.builds(DotOperand, st.integers(0, 1), blocked(warps=warps)),
        st.builds(AmdWmma, st.sampled_from([3, 4]), distributed, st.booleans()),
        st.builds(DotOperand, st.integers(0, 1), distributed.map(lambda w: AmdWmma(4, w)), st.sampled_from([4, 8])),
        st.builds(DotOperand, st.integers(0, 1), distributed.map(lambda w: AmdWmma(3, w)), st.just(16)),
        st.builds(Slice, st.integers(0, 2), blocked(warps=warps, rank=3)),
    )


shapes = st.tuples(powers(7), powers(7))


# Bits


@given(st.lists(st.integers(0, 63), max_size=8), st.integers(0, 63))
def test_spans_say_which_vectors_sum_to_another(vectors: list[int], target: int) -> None:
    sums = {0}
    for vector in vectors:
        sums |= {total ^ vector for total in sums}
    span = Span(vectors)
    assert (target in span) == (target in sums)
    assert 1 << span.rank == len(sums)
    left, numbers = span.express(target)
    total = left
    for place, vector in enumerate(vectors):
        if numbers >> place & 1:
            total ^= vector
    assert total == target


@given(st.lists(st.integers(0, 31), max_size=5), st.lists(st.integers(0, 31), max_size=5))
def test_intersections_of_spans(first: list[int], second: list[int]) -> None:
    both = {value for value in range(32) if value in Span(first) and value in Span(second)}
    basis = intersection(first, second)
    assert {value for value in range(32) if value in Span(basis)} == both
    assert len(independent(basis)) == len(basis)


# Algebra


@few
@given(st.data())
def test_composition_is_associative_and_applies_in_turn(data: st.DataObject) -> None:
    a = data.draw(maps(("register", "lane"), (("p", 4), ("q", 2))))
    middle = st.tuples(st.integers(0, 7), st.integers(0, 1))
    b = named({"q": [data.draw(middle)], "p": [data.draw(middle), data.draw(middle)]}, {"x": 8, "y": 2})
    last = st.tuples(st.integers(0, 15))
    c = named({"x": [data.draw(last) for _ in range(3)], "y": [data.draw(last)]}, {"z": 16})
    assert a.then(b).then(c) == a.then(b.then(c))
    for lane in range(a.in_size("lane")):
        for register in range(a.in_size("register")):
            p, q = a.apply(lane=lane, register=register)
            assert a.then(b).apply(lane=lane, register=register) == b.apply(p=p, q=q)


@few
@given(st.data())
def test_products_are_associative_and_divide(data: st.DataObject) -> None:
    outs = (("dim0", 2), ("dim1", 4))
    a, b, c = (data.draw(maps(("register", "lane"), outs)) for _ in range(3))
    assert (a * b) * c == a * (b * c)
    assert (a * b).divide_left(a) == b
    register, lane = (st.integers(0, b.in_size(name) - 1) for name in ("register", "lane"))
    r, ln = data.draw(register), data.draw(lane)
    whole = (a * b).apply(register=r << len(a.of("register")), lane=ln << len(a.of("lane")))
    assert whole == tuple(size * i for (_, size), i in zip(outs, b.apply(register=r, lane=ln), strict=True))


def test_division_by_what_is_no_factor() -> None:
    rows = parse("#mma<v=2, W=[1,1]>").to_linear((16, 8))
    assert rows.divide_left(parse("#linear<r=[(0,1)], l=[(0,2),(0,4)]>")) is not None  # type: ignore[arg-type]
    assert rows.divide_left(parse("#linear<r=[(1,0)], l=[]>")) is None  # type: ignore[arg-type]
    assert rows.divide_left(parse("#linear<r=[], l=[(0,2)], shape=[1,4]>")) is None  # type: ignore[arg-type]


@few
@given(distributed(), shapes)
def test_inverse_after_layout_is_identity(layout: Distributed, shape: tuple[int, int]) -> None:
    linear = layout.to_linear(shape)
    inverse = linear.inverse()
    assert linear.is_surjective
    assert (inverse.then(linear).table().reshape(-1) == _transposed_numbers(inverse)).all()
    places = linear.table().reshape(-1)
    number = inverse.sublayout(list(reversed(linear.out_names)), inverse.out_names).table().reshape(-1)
    smallest = np.array([np.flatnonzero(places == element)[0] for element in range(linear.table().max() + 1)])
    assert (number == smallest).all()


def _transposed_numbers(inverse: LinearLayout) -> np.ndarray:
    """Row-major numbers of elements, in the order in which a table of `inverse` walks them."""
    extents = [inverse.in_size(name) for name in reversed(inverse.in_names)]
    return np.arange(int(np.prod(extents)))


@few
@given(distributed(), shapes)
def test_every_element_is_held_equally_often(layout: Distributed, shape: tuple[int, int]) -> None:
    linear = layout.to_linear(shape)
    assert linear.shape == shape
    assert (linear.in_size("lane"), linear.in_size("warp")) == (32, 4)
    counts = np.bincount(linear.table().reshape(-1), minlength=shape[0] * shape[1])
    assert (counts == replication(linear)).all()
    free = sum(mask.bit_count() for mask in linear.free_bits().values())
    assert replication(linear) == 1 << free
    assert elements_per_thread(linear) == linear.table().shape[-1]


@few
@given(distributed(), shapes)
def test_tables_are_the_maps_place_by_place(layout: Distributed, shape: tuple[int, int]) -> None:
    linear = layout.to_linear(shape)
    rng = np.random.default_rng(0)
    rows, columns = linear.coordinates()
    for _ in range(5):
        w, ln, r = (int(rng.integers(extent)) for extent in linear.table().shape)
        assert linear.apply(warp=w, lane=ln, register=r) == (rows[w, ln, r], columns[w, ln, r])
        assert (w, ln, r) in linear.holders(int(rows[w, ln, r]), int(columns[w, ln, r]))


@few
@given(blocked(), shapes)
def test_reshape_and_transpose_keep_places(layout: Blocked, shape: tuple[int, int]) -> None:
    linear = layout.to_linear(shape)
    numbers = np.arange(shape[0] * shape[1]).reshape(shape)
    assert (linear.reshape((shape[0] * shape[1],)).table() == linear.table()).all()
    assert (numbers.T.reshape(-1)[linear.transpose((1, 0)).table()] == linear.table()).all()
    assert linear.transpose((1, 0)).transpose((1, 0)) == linear


def test_quotient_leaves_what_passes_through() -> None:
    both = parse("#linear<l=[(1,0),(2,0)], r=[(0,2),(0,1)], out=[l:4,r:4]>")
    assert isinstance(both, LinearLayout)
    assert str(both.quotient("lane")) == "#linear<r=[(2),(1)], out=[r:4]>"
    assert both.quotient("register") is None
    mixed = parse("#linear<l=[(1,1),(2,0)], r=[(0,2),(0,1)], out=[l:4,r:4]>")
    assert isinstance(mixed, LinearLayout)
    assert mixed.quotient("lane") is None


# Text


@few
@given(distributed(), shapes)
def test_text_reads_back(layout: Distributed, shape: tuple[int, int]) -> None:
    assert parse(str(layout)) == layout
    linear = layout.to_linear(shape)
    assert parse(str(linear)) == linear
    inverse = linear.inverse()
    assert parse(str(inverse)) == inverse


@pytest.mark.parametrize(
    "layout",
    [Shared(8, 2, 4, (1, 0)), Padded(8, (1, 0)), NvmmaShared(64, 16, True), Wmma((2, 2)), Mfma((1, 4), (16, 16), 64)],
    ids=str,
)
def test_text_of_other_forms_reads_back(layout: Shared) -> None:
    assert parse(str(layout)) == layout
    assert parse(str(layout).removeprefix("#")) == layout


# Conversions


@few
@given(distributed(), distributed(), shapes, st.sampled_from([8, 16, 32, 64]))
def test_conversions_on_arrays(a: Distributed, b: Distributed, shape: tuple[int, int], bits: int) -> None:
    source, destination = a.to_linear(shape), b.to_linear(shape)
    tile = np.random.default_rng(0).integers(0, 1 << 30, shape).reshape(-1)
    found = convert(a, b, shape, bits)
    assert (found.run(tile[source.table()]) == tile[destination.table()]).all()
    assert found.gather is not None
    for number, name in enumerate(("warp", "lane")):  # nothing moves further than the class says
        own = np.arange(found.gather.table().shape[number]).reshape((-1, 1, 1) if name == "warp" else (-1, 1))
        places = np.unravel_index(found.gather.table(), source.table().shape)[number]
        if {"warp": ("none", "register", "shuffle"), "lane": ("none", "register")}[name].__contains__(found.kind):
            assert (places == own).all()


@few
@given(distributed(), distributed(), shapes)
def test_no_smaller_class_would_do(a: Distributed, b: Distributed, shape: tuple[int, int]) -> None:
    kind = convert(a, b, shape, 32).kind
    source, destination = a.to_linear(shape).table(), b.to_linear(shape).table()
    lane = all(set(destination[w, x]) <= set(source[w, x]) for w in range(4) for x in range(32))
    warp = all(set(destination[w].flat) <= set(source[w].flat) for w in range(4))
    assert kind in (("none", "register") if lane else ("shuffle",) if warp else ("shared",))
    if kind == "none":
        assert (destination == source[..., : destination.shape[2]]).all()


@few
@given(distributed(), shapes)
def test_a_layout_converts_to_itself_for_nothing(layout: Distributed, shape: tuple[int, int]) -> None:
    found = convert(layout, layout.to_linear(shape), shape, 16)
    assert (found.kind, found.cost) == ("none", 0)


# Accesses


def brute_wavefronts(addresses: np.ndarray, size: int) -> int:
    """Wavefronts counted lane by lane: words of each bank in each group of lanes."""
    total = 0
    for access in addresses:
        group = 128 // max(4, size)
        for start in range(0, len(access), group):
            banks: dict[int, set[int]] = {}
            for address in access[start : start + group]:
                for byte in range(address, address + size):
                    banks.setdefault(byte // 4 % 32, set()).add(byte // 4)
            total += max(len(words) for words in banks.values())
    return total


@few
@given(st.sampled_from([1, 2, 4, 8, 16]), st.data())
def test_wavefronts_by_hand(size: int, data: st.DataObject) -> None:
    lane = st.lists(st.integers(0, 255).map(lambda unit: unit * size), min_size=32, max_size=32)
    addresses = np.array([data.draw(lane) for _ in range(2)])
    assert wavefronts(addresses, size).wavefronts == brute_wavefronts(addresses, size)


@st.composite
def in_shared(draw: Any) -> Shared | Padded:
    order = tuple(draw(st.permutations(range(2))))
    if draw(st.booleans()):
        return Padded(draw(st.sampled_from([0, 1, 4, 8])), order)
    return Shared(draw(powers(4)), draw(powers(3)), draw(powers(3)), order)


@few
@given(distributed(), shapes, in_shared(), st.sampled_from([8, 16, 32, 64]))
def test_bank_conflicts_by_hand(layout: Distributed, shape: tuple[int, int], memory: Shared, bits: int) -> None:
    linear = layout.to_linear(shape)
    found = shared_access(linear, memory, bits)
    vector = vector_width(linear, memory.to_linear(shape) if isinstance(memory, Shared) else memory, bits)
    offsets = memory.offsets(shape).reshape(-1)
    table = linear.table()
    size = vector * bits // 8
    accesses = []
    for warp in range(table.shape[0]):
        for register in range(0, table.shape[2], vector):
            runs = offsets[table[warp, :, register : register + vector]]
            assert (runs == runs[:, :1] + np.arange(vector)).all()
            assert (runs[:, 0] * bits // 8 % size == 0).all()
            accesses.append(runs[:, 0] * bits // 8)
    assert found.accesses == len(accesses)
    assert found.wavefronts == brute_wavefronts(np.array(accesses), size)
    assert found.conflicts >= 0


@few
@given(distributed(), distributed(), shapes, st.sampled_from([8, 16, 32, 64]))
def test_shared_for_pair_is_free_of_conflicts(
    a: Distributed, b: Distributed, shape: tuple[int, int], bits: int
) -> None:
    write, read = a.to_linear(shape), b.to_linear(shape)
    memory = shared_for_pair(write, read, bits)
    assert memory.is_surjective
    assert memory.is_injective
    for side in (write, read):
        assert shared_access(side, memory, bits).conflicts == 0


@pytest.mark.parametrize(("bits", "words"), [(32, 4), (64, 2)])
def test_one_side_of_a_pair_has_wide_vectors(bits: int, words: int) -> None:
    """Rows arrive in runs of 16 bytes, and lanes read columns: four rows of eight columns at once."""
    every = [(0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (1, 0), (2, 0), (4, 0)]
    wide = words.bit_length() - 1
    rows = linear((8, 32), register=[*every[:wide], *every[5 + wide :]], lane=every[wide : 5 + wide], warp=[])
    columns = linear(
        (8, 32), register=[(4, 0), (0, 8), (0, 16)], lane=[(1, 0), (2, 0), (0, 1), (0, 2), (0, 4)], warp=[]
    )
    for write, read in ((rows, columns), (columns, rows)):
        memory = shared_for_pair(write, read, bits)
        assert (contiguity(rows, memory), contiguity(columns, memory)) == (words, 1)
        assert not any(shared_access(side, memory, bits).conflicts for side in (write, read))


@few
@given(distributed(), shapes, st.sampled_from([8, 16, 32]), st.integers(0, 64), st.integers(0, 12))
def test_sectors_by_hand(layout: Distributed, shape: tuple[int, int], bits: int, gap: int, base: int) -> None:
    linear = layout.to_linear(shape)
    strides = (shape[1] + gap, 1)
    base *= bits // 8
    found = global_access(linear, bits, strides, base_bytes=base)
    rows, columns = linear.coordinates()
    offsets = rows * strides[0] + columns
    requests = found.requests // linear.in_size("warp")
    vector = linear.in_size("register") // requests
    sectors = 0
    for warp in range(linear.in_size("warp")):
        for register in range(0, linear.in_size("register"), vector):
            runs = offsets[warp, :, register : register + vector]
            assert (runs == runs[:, :1] + np.arange(vector)).all()
            start = base + runs * bits // 8
            assert (start[:, 0] % (vector * bits // 8) == 0).all()
            sectors += len({int(byte) // 32 for byte in start.flat})
    assert found.sectors == sectors
    assert found.fewest <= found.sectors


@few
@given(blocked(), shapes)
def test_contiguity_is_what_registers_show(layout: Blocked, shape: tuple[int, int]) -> None:
    linear = layout.to_linear(shape)
    width = contiguity(linear, row_major_memory(shape))
    runs = linear.table().reshape(*linear.table().shape[:2], -1, width)
    assert (runs == runs[..., :1] + np.arange(width)).all()
    assert (runs[..., 0] % width == 0).all()


# Rounds of shuffles, blocks


@st.composite
def within_a_warp(draw: Any) -> tuple[LinearLayout, LinearLayout]:
    """Two layouts of 64 elements over 8 lanes, 4 blocks and some registers, with the same elements in every block."""
    units = draw(st.permutations([1, 2, 4, 8, 16]))
    sides = []
    for _ in range(2):
        bits = draw(st.permutations(units))
        extra = [draw(st.sampled_from([0, *units])) for _ in range(draw(st.integers(0, 2)))]
        lane, register = bits[:3], [*bits[3:], *extra]
        if draw(st.booleans()):  # a lane bit replicates, its elements are in registers
            lane, register = [*lane[:2], 0], [*register, lane[2]]
        own = [[draw(st.sampled_from([0, *units])) ^ outer] for outer in (32, 64)]
        sides.append(
            linear((128,), register=[(r,) for r in register], lane=[(x,) for x in lane], warp=own[:1], block=own[1:])
        )
    return sides[0], sides[1]


@few
@given(within_a_warp())
def test_rounds_of_shuffles_on_arrays(sides: tuple[LinearLayout, LinearLayout]) -> None:
    source, destination = sides
    found = convert(source, destination, (128,), 32)
    assert found.kind in ("none", "register", "shuffle")
    assert (found.run(source.table()) == destination.table()).all()
    if found.shuffles is not None:
        assert found.rounds == found.shuffles.rounds
        assert found.cost == 2 * found.rounds


def test_one_to_one_conversions_send_every_register_once() -> None:
    for a, b, shape in (
        (Mma(2, (1, 1)), Blocked((1, 1), (4, 8), (1, 1), (1, 0)), (16, 8)),
        (Blocked((4,), (32,), (1,), (0,)), Blocked((1,), (32,), (1,), (0,)), (128,)),
        (Blocked((1, 8), (16, 2), (1, 1), (1, 0)), DotOperand(0, Mma(2, (1, 1)), 2), (16, 16)),
    ):
        found = convert(a, b, shape, 32)
        assert found.shuffles is not None
        assert found.shuffles.variants == (0,)
        assert found.rounds == elements_per_thread(a.to_linear(shape))


def test_lanes_that_want_different_registers_of_one_lane_take_more_rounds() -> None:
    source = linear((4,), register=[(1,), (2,)], lane=[(0,), (0,)], warp=[])
    destination = linear((4,), register=[], lane=[(1,), (2,)], warp=[])
    assert convert(source, destination, (4,), 32).kind == "register"  # every lane has all of it
    source = linear((8,), register=[(1,), (2,)], lane=[(4,), (0,)], warp=[])
    destination = linear((8,), register=[(4,)], lane=[(1,), (2,)], warp=[])
    found = convert(source, destination, (8,), 32)
    assert found.kind == "shuffle"
    assert (found.run(source.table()) == destination.table()).all()


@few
@given(st.permutations([1, 2, 4, 8, 16, 32]), st.permutations([1, 2, 4, 8, 16, 32]))
def test_classes_of_blocks(first: list[int], second: list[int]) -> None:
    sides = [
        linear((64,), register=[(a,)], lane=[(b,), (c,)], warp=[(d,)], block=[(e,), (f,)])
        for a, b, c, d, e, f in (first, second)
    ]
    found = convert(sides[0], sides[1], (64,), 32)
    assert (found.run(sides[0].table()) == sides[1].table()).all()
    leaves = [sides[0].table()[b].tolist() for b in range(4)]
    same = all(sorted(np.ravel(own)) == sorted(sides[1].table()[b].flat) for b, own in enumerate(leaves))
    assert (found.kind == "cluster") == (not same)


@few
@given(distributed(), shapes)
def test_regrouped_bits_are_the_same_places(layout: Distributed, shape: tuple[int, int]) -> None:
    linear_form = layout.to_linear(shape)
    places = 1 << linear_form.in_bits
    assert (linear_form.regroup({"place": places}).table() == linear_form.table().reshape(-1)).all()
    assert linear_form.regroup({name: linear_form.in_size(name) for name in linear_form.in_names}) == linear_form


def test_wider_rows_of_banks_serve_more_lanes_at_once() -> None:
    addresses = np.arange(64)[None] * 8
    assert wavefronts(addresses, 8, banks=32).wavefronts == 4
    assert wavefronts(addresses, 8, banks=64).wavefronts == 2
    assert wavefronts(addresses[:, ::16] * 2, 4, banks=32).degree == 4
    assert wavefronts(addresses[:, ::16], 4, banks=64).degree == 2


@st.composite
def mixed(draw: Any) -> LinearLayout:
    """A layout of 1024 elements over 32 lanes whose bases are sums of many bits; some registers and lanes replicate."""
    columns = [1 << bit for bit in draw(st.permutations(range(10)))]
    for _ in range(draw(st.integers(0, 12))):
        a, b = draw(st.tuples(st.integers(0, 9), st.integers(0, 9)))
        columns[a] ^= columns[b] if a != b else 0
    lane, register = columns[:5], [*columns[5:], draw(st.sampled_from([0, *columns]))]
    if draw(st.booleans()):
        register = [lane[0], *register]
        lane = [draw(st.sampled_from([0, *columns])), *lane[1:]]
    return linear((1024,), register=[(c,) for c in register], lane=[(c,) for c in lane], warp=[])


@few
@given(mixed(), mixed(), st.booleans(), st.sampled_from([8, 16, 32, 64]))
def test_shared_for_pair_of_any_linear_layouts(a: LinearLayout, b: LinearLayout, near: bool, bits: int) -> None:
    if near:  # the same registers, so that vectors are found
        b = linear((1024,), register=a.of("register"), lane=a.of("lane")[::-1], warp=[])
    memory = shared_for_pair(a, b, bits)
    for side in (a, b):
        assert shared_access(side, memory, bits).conflicts == 0
    found = convert(a, b, (1024,), bits)
    assert (found.run(a.table()) == b.table()).all()


@few
@given(distributed(), distributed(), shapes, st.sampled_from([8, 16]))
def test_elements_that_travel_together_are_neighbours(
    a: Distributed, b: Distributed, shape: tuple[int, int], bits: int
) -> None:
    found = convert(a, b, shape, bits)
    if found.shuffles is None or found.gather is None:
        return
    together = found.shuffles.rounds // found.rounds
    assert together <= 32 // bits
    table = found.gather.table()
    runs = table.reshape(*table.shape[:2], -1, together)
    assert (runs == runs[..., :1] + np.arange(together)).all()
    assert (runs[..., 0] % together == 0).all()


def test_elements_apart_do_not_travel_together() -> None:
    source = Blocked((1, 8), (16, 2), (1, 1), (1, 0))
    operand = DotOperand(0, Mma(2, (1, 1)), 2)
    assert convert(source, operand, (16, 16), 16).rounds == 4  # pairs stay pairs
    assert convert(source, operand, (16, 16), 8).rounds == 4
    apart = linear((64,), register=[(1,), (2,)], lane=[(4,), (8,), (16,), (32,)], warp=[])
    crossed = linear((64,), register=[(1,), (4,)], lane=[(2,), (9,), (16,), (32,)], warp=[])
    found = convert(apart, crossed, (64,), 16)
    assert (found.kind, found.rounds) == ("shuffle", 4)


def test_repeated_rows_are_read_by_vectors() -> None:
    """A dimension of stride 0 has no say in how many elements follow each other."""
    layout = Blocked((1, 4), (4, 8), (1, 1), (1, 0)).to_linear((4, 32))
    found = global_access(layout, 32, [0, 1])
    assert found == global_access(layout, 32, [0, 1], vector=4)
    assert found.requests == 1
