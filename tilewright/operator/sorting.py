"""Ways to sort the rows of an ordered accumulation, and what each costs.

*Counting*: for each element of a row how many go before it, all at once in vector registers. *By digits*: radix sort.
Both can run on the few that a *threshold* selects before. *Insertion* finds the few smallest of many rows at once: it
takes an element of as many rows as a vector has lanes at a time.

Cycles are estimates: their constants were fitted to times of f32 on a core with vectors of 512 bits, at 8 to 4,096
elements a row and 1 to 64 wanted, and are within a factor of 1.5 of most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import log, prod

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.affine import affine_part
from tilewright.expr.core import Axis, Expr, Read, walk

COUNTED = 64  # elements of a row that is sorted by counting: its keys fit a few vector registers
DIGIT_BITS = 8  # of a radix sort: 256 places to write to, whose lines and pages stay near
_COLUMN_CYCLES = {"neighbours": 3, "transposed": 6, "gathered": 36}  # to load and convert an element of each row


@dataclass(frozen=True)
class SortMethod:
    """`counted` or by digits, of those `selected` by a threshold; or insertion with `vector` as the loop over rows."""

    counted: bool = False
    selected: bool = False
    vector: str = ""

    @property
    def word(self) -> str:
        """The method in one word; the vector aside, `sort_method` reads it."""
        return next(word for word, method in _WORDS.items() if method == replace(self, vector=self.vector and "row"))

    def __str__(self) -> str:
        if self.vector:
            return f"insertion, vectors along {self.vector}"
        last = "by counting" if self.counted else f"by digits of {DIGIT_BITS} bits"
        return f"those wanted selected, then {last}" if self.selected else last


_WORDS = {
    "counting": SortMethod(counted=True),
    "digits": SortMethod(),
    "selected-counting": SortMethod(counted=True, selected=True),
    "selected-digits": SortMethod(selected=True),
    "insertion": SortMethod(vector="row"),
}


def sort_method(word: str, vector: str) -> SortMethod:
    """The method that a word names, with rows along `vector` where it needs one. Raises KeyError for other words."""
    return replace(_WORDS[word], vector=vector)


@dataclass(frozen=True)
class Rows:
    """What is sorted: `body` over `outer` loops around `inner`, of which the `wanted` smallest are written in order."""

    body: Expr
    outer: tuple[Axis, ...]
    inner: Axis
    wanted: int

    @property
    def count(self) -> int:
        """How many rows there are."""
        return prod(axis.size for axis in self.outer)

    @property
    def bits(self) -> int:
        """Of a key."""
        dtype = dtypes.wide(self.body.dtype)
        return 8 if dtype == "bool" else dtypes.bits(dtype)


def sort_methods(rows: Rows, lanes: int, registers: int) -> list[tuple[float, SortMethod]]:
    """The methods that can sort these rows with their cycles, the cheapest first.

    `lanes` are those of a vector of 32-bit elements, `registers` how many vectors the machine holds.
    """
    methods = [*_each_row(rows, lanes), *_side_by_side(rows, lanes, registers)]
    return sorted(methods, key=lambda pair: pair[0])


def _each_row(rows: Rows, lanes: int) -> Iterator[tuple[float, SortMethod]]:
    """Methods that sort one row after the other."""
    size, wanted = rows.inner.size, rows.wanted
    selection = _select_cycles(size, wanted, rows.bits, lanes)
    for selected, count, before in ((False, size, 0.0), (True, wanted, selection)):
        if selected and wanted == size:
            continue
        if count <= COUNTED:
            yield rows.count * (before + _count_cycles(count, lanes)), SortMethod(True, selected)
        yield rows.count * (before + _digit_cycles(count, rows.bits)), SortMethod(False, selected)


def _count_cycles(count: int, lanes: int) -> float:
    return count * (4 + 2 * -(-count // lanes))


def _digit_cycles(count: int, bits: int) -> float:
    """Each pass goes over all counts of its digit and over all elements."""
    return bits // DIGIT_BITS * (325 + 4.5 * count)


def _select_cycles(size: int, wanted: int, bits: int, lanes: int) -> float:
    """The search ends after about half of the bits; vectors with an element that is kept are walked by element."""
    vectors = -(-size // lanes)
    wide = max(1.0, bits / 32)
    search = bits / 2 * (20 + vectors * wide)
    return search + 5 * vectors * wide + min(wanted, vectors) * lanes * 6


def _side_by_side(rows: Rows, lanes: int, registers: int) -> Iterator[tuple[float, SortMethod]]:
    """Insertion, for each loop whose points can be the lanes of a vector."""
    size, wanted = rows.inner.size, rows.wanted
    if wanted > registers:
        return
    among = lanes * wanted  # as long as so few have been seen, some row of a vector keeps its next element
    kept = min(float(size), among * (1 + log(max(1.0, size / among))))
    insertion = kept * wanted * (2.5 if rows.bits <= 32 else 4.0)
    for axis in rows.outer:
        whole, rest = divmod(axis.size, lanes)
        tiles = whole * (insertion + size * _COLUMN_CYCLES[_loads(rows, axis, False)])
        if rest:
            tiles += insertion + size * _COLUMN_CYCLES[_loads(rows, axis, True)]
        stores = 2 * wanted * rows.count
        yield tiles * (rows.count // axis.size) + stores, SortMethod(vector=axis.name)


def _loads(rows: Rows, axis: Axis, ragged: bool) -> str:
    """How a vector along an outer loop is loaded, a key of `_COLUMN_CYCLES`."""
    kind = "neighbours"
    for read in walk(rows.body):
        if not isinstance(read, Read):
            continue
        form, rest = affine_part(read.indices[0])
        if any(axis in walk(term) or rows.inner in walk(term) for term in rest):
            return "gathered"
        if form.coefficient(axis) in (0, 1):
            continue
        if form.coefficient(rows.inner) != 1 or ragged:
            return "gathered"
        kind = "transposed"
    return kind
