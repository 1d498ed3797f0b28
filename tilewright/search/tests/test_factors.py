"""Divisors and ordered factorisations, against brute force."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.search.factors import count_factorisations, divisors, factorisations, prime_powers


def test_spec1_g37() -> None:
    assert count_factorisations(512, 3) == len(list(factorisations(512, 3))) == 55
    assert len(divisors(512)) == 10


@pytest.mark.parametrize(
    ("extent", "parts", "count"),
    [(1024, 4, 286), (448, 4, 336), (12, 3, 18), (56, 4, 80), (7, 4, 4), (512, 4, 220), (28, 4, 40), (256, 3, 45),
     (3, 3, 3)],
)  # fmt: skip
def test_counts_of_spec_2_section_3_3(extent: int, parts: int, count: int) -> None:
    assert count_factorisations(extent, parts) == count


@given(st.integers(1, 400))
def test_divisors_are_all_numbers_that_divide(number: int) -> None:
    assert divisors(number) == tuple(each for each in range(1, number + 1) if number % each == 0)
    assert prod(prime**power for prime, power in prime_powers(number)) == number


@given(st.integers(1, 60), st.integers(0, 3))
def test_factorisations_are_all_lists_with_the_product(number: int, parts: int) -> None:
    found = list(factorisations(number, parts))
    assert found == [each for each in product(range(1, number + 1), repeat=parts) if prod(each) == number]
    assert len(found) == count_factorisations(number, parts)


def test_a_large_prime_is_no_surprise() -> None:
    assert divisors(999_999_937) == (1, 999_999_937)
