"""Divisors, and the ways to write a number as a product of so many factors in order."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import comb, prod


@lru_cache(maxsize=4096)
def prime_powers(number: int) -> tuple[tuple[int, int], ...]:
    """The primes that divide a positive number, ascending, with how often each does.

    >>> prime_powers(360)
    ((2, 3), (3, 2), (5, 1))
    """
    found, prime = [], 2
    while prime * prime <= number:
        power = 0
        while number % prime == 0:
            number, power = number // prime, power + 1
        if power:
            found.append((prime, power))
        prime += 1 if prime == 2 else 2
    return (*found, (number, 1)) if number > 1 else tuple(found)


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a positive number, ascending.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    found = [1]
    for prime, power in prime_powers(number):
        found = [divisor * prime**times for divisor in found for times in range(power + 1)]
    return tuple(sorted(found))


def count_factorisations(number: int, parts: int) -> int:
    """How many lists of `parts` positive numbers have the product `number`.

    >>> count_factorisations(512, 3)
    55
    """
    if parts == 0:
        return int(number == 1)
    return prod(comb(power + parts - 1, parts - 1) for _, power in prime_powers(number))


def factorisations(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every list of `parts` positive numbers whose product is `number`, in lexicographic order.

    >>> list(factorisations(4, 2))
    [(1, 4), (2, 2), (4, 1)]
    """
    if parts == 0:
        if number == 1:
            yield ()
        return
    if parts == 1:
        yield (number,)
        return
    for first in divisors(number):
        for rest in factorisations(number // first, parts - 1):
            yield (first, *rest)
