"""Ways to sort the rows of an ordered accumulation, and what each costs.

*Counting*: for each element of a row how many go before it, all at once in vector registers. *By digits*: radix sort.
Both can run on the few that a *threshold* selects before. *Insertion* finds the few smallest of many rows at once: it
takes an element of as many rows as a vector has lanes at a time.

Cycles are estimates: their constants were fitted to times of f32 on a core with vectors of 512 bits, at 8 to 4,096
elements a row and 1 to 64 wanted, and are within a factor of 1.5 of most. A core with half of its rate of vector
instructions takes twice as long for what is done in vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import log, prod

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.affine import affine_part
from tilewright.expr.core import Axis, Read, walk
from tilewright.machine.description import Cpu
from tilewright.operator.cycles import ARITHMETIC_PER_CYCLE, arithmetic_per_cycle
from tilewright.operator.ordered_tree import OrderedTree
from tilewright.tiles.kernel import Statement
from tilewright.tiles.tree import InvalidTree

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
        """The method in one word; the vector aside, `method_of` reads it."""
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


def method_of(tree: OrderedTree) -> SortMethod:
    """The method that the tree of a sort asks for. Raises InvalidTree where it asks for none."""
    vector = "" if tree.vector is None else tree.vector.axis.name
    word = next((str(hint.arguments[0]) for hint in tree.hints if hint.name == "sort"), "")
    if word not in _WORDS or (word == "insertion") != bool(vector):
        lanes = f"with lanes along {vector}" if vector else "without lanes"
        usable = [each for each, method in _WORDS.items() if bool(method.vector) == bool(vector)]
        raise InvalidTree(f"a sort by {word or 'no method'} {lanes}", help=f"hint sort: {', '.join(usable)}")
    return replace(_WORDS[word], vector=vector)


def sort_methods(sort: Statement, lanes: int, machine: Cpu) -> list[tuple[float, SortMethod]]:
    """The methods that can run a sort with their cycles, the cheapest first.

    `lanes` are those of a vector of 32-bit elements.
    """
    longer = ARITHMETIC_PER_CYCLE / arithmetic_per_cycle(machine)
    methods = [*_each_row(sort, lanes, longer), *_side_by_side(sort, lanes, machine.vector_registers, longer)]
    return sorted(methods, key=lambda pair: pair[0])


def _sizes(sort: Statement) -> tuple[int, int, int, int]:
    """Elements of a row, how many of them are wanted in order, rows, and bits of a key."""
    (inner,), ((wanted, _),) = sort.reduce, sort.dims
    dtype = dtypes.wide(sort.body.dtype)
    bits = 8 if dtype == "bool" else dtypes.bits(dtype)
    return inner.size, wanted, prod(axis.size for axis in sort.axes), bits


def _each_row(sort: Statement, lanes: int, longer: float) -> Iterator[tuple[float, SortMethod]]:
    """Methods that sort one row after the other; instructions on vectors take `longer` times as long as fitted."""
    size, wanted, rows, bits = _sizes(sort)
    selection = longer * _select_cycles(size, wanted, bits, lanes)
    for selected, count, before in ((False, size, 0.0), (True, wanted, selection)):
        if selected and wanted == size:
            continue
        if count <= COUNTED:
            yield rows * (before + longer * _count_cycles(count, lanes)), SortMethod(True, selected)
        yield rows * (before + _digit_cycles(count, bits)), SortMethod(False, selected)


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


def _side_by_side(sort: Statement, lanes: int, registers: int, longer: float) -> Iterator[tuple[float, SortMethod]]:
    """Insertion, for each loop whose points can be the lanes of a vector of those that the machine holds."""
    size, wanted, rows, bits = _sizes(sort)
    if wanted > registers:
        return
    among = lanes * wanted  # as long as so few have been seen, some row of a vector keeps its next element
    kept = min(float(size), among * (1 + log(max(1.0, size / among))))
    insertion = kept * wanted * (2.5 if bits <= 32 else 4.0)
    for axis in sort.axes:
        whole, rest = divmod(axis.size, lanes)
        tiles = whole * (insertion + size * _COLUMN_CYCLES[_loads(sort, axis, False)])
        if rest:
            tiles += insertion + size * _COLUMN_CYCLES[_loads(sort, axis, True)]
        stores = 2 * wanted * rows
        yield longer * tiles * (rows // axis.size) + stores, SortMethod(vector=axis.name)


def _loads(sort: Statement, axis: Axis, ragged: bool) -> str:
    """How a vector along an outer loop is loaded, a key of `_COLUMN_CYCLES`."""
    (inner,), kind = sort.reduce, "neighbours"
    for read in walk(sort.body):
        if not isinstance(read, Read):
            continue
        form, rest = affine_part(read.indices[0])
        if any(axis in walk(term) or inner in walk(term) for term in rest):
            return "gathered"
        if form.coefficient(axis) in (0, 1):
            continue
        if form.coefficient(inner) != 1 or ragged:
            return "gathered"
        kind = "transposed"
    return kind
