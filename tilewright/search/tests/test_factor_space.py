"""Tables of factors: their number, legal draws, moves, decisions, and what is refused."""

from __future__ import annotations

import json
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.errors import InvalidArgument
from tilewright.search.factor_space import FactorSpace, Open, Row, Table, move
from tilewright.search.space import NoLegalPoint, canonical
from tilewright.search.tests.tiles import PRODUCTS


@st.composite
def spaces(draw: st.DrawFn) -> FactorSpace:
    """One to three rows, some entries of which are given, with a limit on the product of their last entries."""
    rows = []
    for number in range(draw(st.integers(1, 3))):
        entries: list[int | None] = [None] * draw(st.integers(1, 3))
        given_factor = draw(st.sampled_from([None, 1, 2]))
        rest = draw(st.sampled_from([1, 2, 6, 7, 12, 16]))
        if given_factor is not None:
            entries.insert(draw(st.integers(0, len(entries))), given_factor)
        rows.append(Row(f"r{number}", rest * (given_factor or 1), tuple(entries)))
    limit = draw(st.sampled_from([1, 4, 24, 1000]))
    return FactorSpace(tuple(rows), lambda table: prod(row[-1] or 1 for row in table) > limit, limit)


def legal(space: FactorSpace) -> list[Table]:
    return [point for point in space.points() if not space.refuses(point)]


@given(spaces())
@settings(deadline=None)
def test_points_are_different_and_as_many_as_the_size_says(space: FactorSpace) -> None:
    points = list(space.points())
    assert len(points) == len(set(points)) == len({canonical(space, point) for point in points}) == space.size
    for point in points:
        assert all(prod(factors) == row.extent for row, factors in zip(space.rows, point, strict=True))


@given(spaces(), st.integers(0, 1000))
@settings(deadline=None)
def test_draws_and_neighbours_are_legal_points(space: FactorSpace, seed: int) -> None:
    points = legal(space)
    numbers = np.random.default_rng(seed)
    if not points:
        with pytest.raises(NoLegalPoint, match="obey the constraint"):
            space.sample(numbers)
        return
    point = space.sample(numbers)
    assert point in points
    near = space.neighbours(point)
    assert len(near) == sum(len(row.free) * (len(row.free) - 1) for row in space.rows)
    for each in near:
        assert each is None or (each in points and sum(a != b for a, b in zip(each, point, strict=True)) == 1)


@given(spaces())
@settings(deadline=None, max_examples=tries(12, full=50))
def test_decisions_lead_to_every_legal_point_once(space: FactorSpace) -> None:
    def reached(state: Open | None) -> list[Table]:
        if state is None:
            return []
        undecided = space.candidates(state)
        if not undecided:
            return [space.point(state)]
        variable = min(undecided, key=lambda each: len(undecided[each]))
        return [point for value in undecided[variable] for point in reached(space.decide(state, variable, value))]

    assert sorted(reached(space.start())) == sorted(legal(space))


@given(spaces(), st.data())
@settings(deadline=None)
def test_repair_gives_legal_points_and_keeps_those_that_are(space: FactorSpace, data: st.DataObject) -> None:
    points = legal(space)
    if not points:
        return
    point = data.draw(st.sampled_from(points))
    assert space.repaired(space.columns(point)) == point
    cells = [list(factors) for factors in point]
    column = data.draw(st.integers(0, len(cells) - 1))
    row = data.draw(st.integers(0, len(cells[column]) - 1))
    numbers = np.random.default_rng(data.draw(st.integers(0, 99)))
    cells[column][row] = space.mutated(column, row, cells[column][row], numbers)
    child = space.repaired(tuple(map(tuple, cells)))
    assert child is None or child in points


@given(spaces())
@settings(deadline=None)
def test_points_are_read_back_and_nothing_else_is(space: FactorSpace) -> None:
    for point in list(space.points())[:20]:
        written = json.loads(canonical(space, point))
        assert space.from_json(written) == point
        name = space.rows[0].name
        rows = (3, [0], [*written[name], 2], ["1"] * len(written[name]))
        for damaged in (None, [], {}, {**written, "x": [1]}, *({**written, name: row} for row in rows)):
            with pytest.raises(NoLegalPoint):
                space.from_json(damaged)


@pytest.mark.parametrize(
    ("factors", "grows", "shrinks", "expected"),
    [((4, 2, 8, 1), 0, 1, (8, 1, 8, 1)), ((4, 2, 8, 1), 0, 2, (8, 2, 4, 1)), ((4, 2, 8, 1), 0, 3, None),
     ((4, 2, 8, 1), 1, 0, (2, 4, 8, 1)), ((4, 2, 8, 1), 2, 1, (4, 1, 16, 1)), ((4, 2, 8, 1), 3, 2, (4, 2, 4, 2)),
     ((3, 2, 5, 1), 1, 2, (3, 5, 2, 1)), ((1, 1, 7, 4), 3, 2, (1, 1, 4, 7))],
)  # fmt: skip
def test_moves_of_spec_2_section_3_5(
    factors: tuple[int, ...], grows: int, shrinks: int, expected: tuple[int, ...] | None
) -> None:
    assert move(factors, grows, shrinks) == expected


@pytest.mark.parametrize(
    ("extent", "parts", "points", "moves"), [(12, 3, 18, 72), (64, 4, 84, 672), (60, 3, 54, None), (7, 4, 4, None)]
)
def test_moves_lead_from_every_point_to_every_other(
    extent: int, parts: int, points: int | None, moves: int | None
) -> None:
    space = FactorSpace((Row("x", extent, (None,) * parts),))
    links = {point: {each for each in space.neighbours(point) if each is not None} for point in space.points()}
    assert points is None or len(links) == points
    assert moves is None or sum(each is not None for point in links for each in space.neighbours(point)) == moves
    for start in links:
        reached, edge = {start}, [start]
        while edge:
            edge = [each for point in edge for each in links[point] - reached]
            reached.update(edge)
        assert reached == set(links)


def test_a_space_where_nearly_nothing_is_legal_is_drawn_from() -> None:
    only = ((1, 64), (64, 1))
    space = FactorSpace((Row("m", 64, (None, None)), Row("n", 64, (None, None))), lambda table: not fits(table, only))
    assert space.sample(np.random.default_rng(0)) == only


def fits(table: Open, only: Table) -> bool:
    return all(
        a in (None, b) for row, wanted in zip(table, only, strict=True) for a, b in zip(row, wanted, strict=True)
    )


def test_spaces_are_told_apart_by_their_identity() -> None:
    identities = [json.dumps(each.space().identity) for each in PRODUCTS]
    assert len(set(identities)) == len(PRODUCTS)


def test_rows_have_names_of_their_own() -> None:
    with pytest.raises(InvalidArgument, match="rows are named m, m"):
        FactorSpace((Row("m", 2, (None,)), Row("m", 3, (None,))))


@pytest.mark.parametrize(
    ("extent", "entries", "message"),
    [(12, (5, None), "product 5"), (12, (3, 2), "product 6"), (0, (None,), "not positive"), (4, (0, None), "positive"),
     (12, (), "product 1")],
)  # fmt: skip
def test_rows_whose_factors_cannot_make_the_extent(extent: int, entries: tuple[int | None, ...], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Row("m", extent, entries)
