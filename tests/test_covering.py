"""Covering arrays meet what the full product meets, with fewer rows."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests import covering

pytest_plugins = ["pytester"]

SIZES = [(2, 2, 2), (3, 4, 2), (4, 4, 3, 2), (3, 3, 3, 3), (5, 1, 2)]


@pytest.mark.parametrize("strength", [1, 2, 3])
@pytest.mark.parametrize("sizes", SIZES)
def test_every_combination_of_values_is_in_a_row(sizes: tuple[int, ...], strength: int) -> None:
    cases = list(product(*map(range, sizes)))
    kept = [cases[number] for number in covering.chosen(cases, strength)]
    for columns in combinations(range(len(sizes)), strength):
        met = {tuple(row[column] for column in columns) for row in kept}
        assert met == set(product(*(range(sizes[column]) for column in columns)))
    assert kept == [cases[number] for number in covering.chosen(cases, strength)]
    if strength == 1:
        assert len(kept) == max(sizes)


@pytest.mark.parametrize(("sizes", "most"), [((4, 4, 3, 2), 17), ((3, 3, 3, 3), 12), ((3, 4, 2), 12)])
def test_pairs_take_few_rows(sizes: tuple[int, ...], most: int) -> None:
    assert len(covering.chosen(list(product(*map(range, sizes))))) <= most


def test_cases_that_are_no_product_keep_the_pairs_that_they_have() -> None:
    cases = [("a", 1, "x"), ("a", 2, "x"), ("b", 1, "y"), ("a", 1, "y")]
    kept = [cases[number] for number in covering.chosen(cases)]
    assert {pair for row in cases for pair in combinations(enumerate(row), 2)} == {
        pair for row in kept for pair in combinations(enumerate(row), 2)
    }


def test_rows_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(covering, "FULL", False)
    assert len(covering.rows("abc", range(3), [True, False])) == 9
    assert covering.rows("ab") == [("a",), ("b",)]
    assert covering.some(range(24), 4) == [0, 6, 12, 18]
    assert covering.some([1, 2], 3) == [1, 2]
    assert covering.tries(5, 50) == 5
    monkeypatch.setattr(covering, "FULL", True)
    assert len(covering.rows("abc", range(3), [True, False])) == 18
    assert covering.some(range(24), 4) == list(range(24))
    assert covering.tries(5, 50) == 50


@pytest.mark.parametrize(("options", "count"), [((), 9), (("--full",), 18)])
def test_the_marker_drops_cases(
    options: tuple[str, ...], count: int, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(covering, "FULL", False)
    monkeypatch.setenv("TILEWRIGHT_FULL", "")
    pytester.makeconftest("from tests.cases import pytest_addoption, pytest_collection_modifyitems, pytest_configure")
    pytester.makepyfile("""
        import pytest

        @pytest.mark.covering
        @pytest.mark.parametrize("a", "xyz")
        @pytest.mark.parametrize("b", [1, 2, 3])
        @pytest.mark.parametrize("c", [True, False])
        def test_three(a, b, c):
            pass

        @pytest.mark.covering
        def test_nothing_to_drop():
            pass
    """)
    pytester.runpytest_inprocess("-p", "no:cacheprovider", *options).assert_outcomes(passed=count + 1)
