"""Tables of factors: each row writes one extent as a product, entry by entry. A space for every method.

Level 1 has a row per loop and an entry per tile that may have it; level 2 has a row per split knob. Entries may be
given, and a constraint may refuse tables, also while some of their entries are open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations, product
from math import gcd, prod
from typing import TYPE_CHECKING, Any, TypeAlias

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.search.factors import count_factorisations, divisors, factorisations, prime_powers
from tilewright.search.space import NoLegalPoint
from tilewright.search.tree_search import completed, one_by_one

if TYPE_CHECKING:
    from numpy.random import Generator

Table: TypeAlias = tuple[tuple[int, ...], ...]  #: a factor for every entry, row by row
Open: TypeAlias = tuple[tuple[int | None, ...], ...]  #: the same with None where an entry is undecided
Entry: TypeAlias = tuple[int, int]  #: row, place in the row

_TRIES = 200  # random tables that are drawn before one is built entry by entry


@dataclass(frozen=True)
class Row:
    """`extent` as a product of factors: one per entry, the given number where that is not None.

    Raises InvalidArgument where the given factors do not divide the extent, or leave a rest and no entry for it.
    """

    name: str
    extent: int
    entries: tuple[int | None, ...]

    def __post_init__(self) -> None:
        if self.extent < 1 or any(factor is not None and factor < 1 for factor in self.entries):
            raise InvalidArgument(f"{self} is not positive", where=self.name, help="extents and factors of 1 or more")
        if self.extent % self.given or (not self.free and self.given != self.extent):
            raise InvalidArgument(
                f"{self}: the given factors have the product {self.given}",
                where=self.name,
                help=f"factors whose product divides {self.extent}, and an open entry for the rest",
            )

    def __str__(self) -> str:
        return f"{self.name} = {self.extent} = {'*'.join('?' if each is None else str(each) for each in self.entries)}"

    @property
    def given(self) -> int:
        """The product of the given factors."""
        return prod(factor for factor in self.entries if factor is not None)

    @property
    def free(self) -> tuple[int, ...]:
        """The places of the open entries."""
        return tuple(place for place, factor in enumerate(self.entries) if factor is None)

    @property
    def rest(self) -> int:
        """What the open entries have to make up."""
        return self.extent // self.given

    def filled(self, factors: Sequence[int]) -> tuple[int, ...]:
        """The whole row with these factors in its open entries."""
        remaining = iter(factors)
        return tuple(next(remaining) if factor is None else factor for factor in self.entries)


def nothing_refused(_: Open) -> bool:
    """The constraint that every table obeys."""
    return False


@dataclass(frozen=True)
class FactorSpace:
    """Every table of these rows that `refuses` does not refuse: a `Space`, a `Decisions` and a `Genomes`.

    `refuses` says of a table with open entries whether no choice of them is legal; what it does not see is found when
    the table is complete. `constraint` names it, as a JSON value, so that spaces can be told apart. Raises
    InvalidArgument where two rows have one name.
    """

    rows: tuple[Row, ...]
    refuses: Callable[[Open], bool] = nothing_refused
    constraint: Any = None

    def __post_init__(self) -> None:
        names = [row.name for row in self.rows]
        if len(set(names)) != len(names):
            raise InvalidArgument(f"rows are named {', '.join(names)}", where="rows", help="a name of its own for each")

    @property
    def identity(self) -> Any:
        rows = [[row.name, row.extent, list(row.entries)] for row in self.rows]
        return {"rows": rows, "constraint": self.constraint}

    @property
    def size(self) -> int:
        return prod(count_factorisations(row.rest, len(row.free)) for row in self.rows)

    def points(self) -> Iterator[Table]:
        choices = [list(factorisations(row.rest, len(row.free))) for row in self.rows]
        for chosen in product(*choices):
            yield tuple(row.filled(factors) for row, factors in zip(self.rows, chosen, strict=True))

    def sample(self, numbers: Generator) -> Table:
        """Each prime factor of an extent goes to an open entry of its row, independently; refused tables are redrawn.

        Where nearly all are refused, entries are decided one by one instead.
        """
        for _ in range(_TRIES):
            drawn = tuple(self._random_row(row, numbers) for row in self.rows)
            if not self.refuses(drawn):
                return drawn
        start = self.start()
        found = None if start is None else completed(self, start, numbers)
        if found is None:
            rows = ", ".join(map(str, self.rows))
            raise NoLegalPoint(f"no factors of {rows} obey the constraint", help="relax it, or give fewer factors")
        return found

    def neighbours(self, point: Table) -> Sequence[Table | None]:
        """Two open entries of one row change: one grows to the nearest divisor of their product, the other makes up.

        The moves are listed row by row, by the entry that grows, then by the one that shrinks.
        """
        found = []
        for number, row in enumerate(self.rows):
            for grows, shrinks in permutations(row.free, 2):
                moved = move(point[number], grows, shrinks)
                table = None if moved is None else (*point[:number], moved, *point[number + 1 :])
                found.append(None if table is None or self.refuses(table) else table)
        return found

    def to_json(self, point: Table) -> Any:
        return {row.name: list(factors) for row, factors in zip(self.rows, point, strict=True)}

    def from_json(self, value: Any) -> Table:
        table: list[tuple[int, ...]] = []
        if not isinstance(value, Mapping) or list(value) != [row.name for row in self.rows]:
            names = ", ".join(row.name for row in self.rows)
            raise NoLegalPoint(f"{str(value)[:60]} is no table", help=f"factors of {names}")
        for row in self.rows:
            factors = value[row.name]
            right = isinstance(factors, list) and len(factors) == len(row.entries)
            right = right and all(type(each) is int and each > 0 for each in factors) and prod(factors) == row.extent
            if not right or any(own not in (None, each) for own, each in zip(row.entries, factors, strict=True)):
                raise NoLegalPoint(f"{row.name} has the factors {str(factors)[:60]}", help=f"factors as {row} has them")
            table.append(tuple(factors))
        return tuple(table)

    # Decisions: entry by entry

    def start(self) -> Open | None:
        """The table in which only what is given, and what follows from it, is decided; None where that is refused."""
        return self._propagated(tuple(row.entries for row in self.rows))

    def candidates(self, state: Open) -> Mapping[Entry, Sequence[int]]:
        """For every open entry the divisors of what is left of its extent."""
        found: dict[Entry, Sequence[int]] = {}
        for number, (row, factors) in enumerate(zip(self.rows, state, strict=True)):
            legal = divisors(_rest(row, factors))
            found.update({(number, place): legal for place, factor in enumerate(factors) if factor is None})
        return found

    def decide(self, state: Open, variable: Entry, value: int) -> Open | None:
        """The table with this entry and what follows from it; None where no choice of the others is legal."""
        number, place = variable
        factors = (*state[number][:place], value, *state[number][place + 1 :])
        return self._propagated((*state[:number], factors, *state[number + 1 :]))

    def point(self, state: Open) -> Table:
        """The table of a state without open entries."""
        return tuple(tuple(factor for factor in factors if factor is not None) for factors in state)

    def completions(self, state: Open, count: int, numbers: Generator) -> Sequence[Table]:
        return one_by_one(self, state, count, numbers)

    def _propagated(self, state: Open) -> Open | None:
        """With the entries that are determined: the last one of a row, and all others where nothing is left."""
        found = []
        for row, factors in zip(self.rows, state, strict=True):
            rest, open_entries = _rest(row, factors), factors.count(None)
            if rest == 1 or open_entries == 1:
                factors = tuple(rest if factor is None else factor for factor in factors)
            found.append(factors)
        return None if self.refuses(tuple(found)) else tuple(found)

    # Genomes: a column per row

    def columns(self, point: Table) -> Table:
        return point

    def mutated(self, column: int, row: int, value: int, numbers: Generator) -> int:
        """Any divisor of what the open entries make up; a given factor stays."""
        choices = divisors(self.rows[column].rest) if self.rows[column].entries[row] is None else (value,)
        return choices[int(numbers.integers(len(choices)))]

    def family(self, point: Table) -> Table:
        return point

    def repaired(self, columns: Table) -> Table | None:
        """Entries keep what still divides their extent, the last open one takes the rest; None if that is refused."""
        found = []
        for row, factors in zip(self.rows, columns, strict=True):
            rest, kept = row.rest, []
            for place in row.free:
                last = place == row.free[-1]
                kept.append(rest if last else gcd(rest, factors[place]))
                rest //= kept[-1]
            found.append(row.filled(kept))
        return None if self.refuses(tuple(found)) else tuple(found)

    def _random_row(self, row: Row, numbers: Generator) -> tuple[int, ...]:
        factors = [1] * len(row.free)
        for prime, power in prime_powers(row.rest):
            for _ in range(power):
                factors[int(numbers.integers(len(factors)))] *= prime
        return row.filled(factors)


def move(factors: Sequence[int], grows: int, shrinks: int) -> tuple[int, ...] | None:
    """The nearest list of factors in which one is larger and another makes up for it (spec 2, section 3.5).

    None where the other is 1 already.

    >>> move((4, 2, 8, 1), 0, 2)
    (8, 2, 4, 1)
    """
    both = factors[grows] * factors[shrinks]
    if factors[shrinks] == 1:
        return None
    larger = next(each for each in divisors(both) if each > factors[grows])
    found = list(factors)
    found[grows], found[shrinks] = larger, both // larger
    return tuple(found)


def _rest(row: Row, factors: Sequence[int | None]) -> int:
    return row.extent // prod(factor for factor in factors if factor is not None)
