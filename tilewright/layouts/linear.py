"""Linear layouts: every bit of a place (register, lane, warp, …) contributes one offset, and offsets are XORed.

A `LinearLayout` maps named inputs to named outputs. A tile that is spread over registers maps (register, lane, warp,
block) to (dim0, dim1, …); a tile in shared memory maps an offset to them; products, compositions and inverses of maps
are such maps. As one number, a place has its first input in the low bits (register, then lane), and an index its last
output (row-major order), so the numbers of one map are those of the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, reduce
from math import prod
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.layouts.bits import Span, is_power_of_two, log2, powers_around

Array = np.ndarray[Any, Any]
Base = tuple[int, ...]  # one coordinate per output

PLACE = ("register", "lane", "warp", "block")
SHORT = {"register": "r", "lane": "l", "warp": "w", "block": "b", "offset": "o"}
_MOST_BITS = 30


@dataclass(frozen=True)
class LinearLayout:
    """`bases` are (input, one base per bit, lowest first); `outs` are (output, extent), extents powers of two."""

    bases: tuple[tuple[str, tuple[Base, ...]], ...]
    outs: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        for name, extent in self.outs:
            if not is_power_of_two(extent):
                raise InvalidArgument(
                    f"a linear layout over {name} of {extent} elements",
                    help=f"extents are powers of two: pad to {powers_around(extent)} under a mask",
                )
        for name, vectors in self.bases:
            for base in vectors:
                if len(base) != len(self.outs):
                    raise InvalidArgument(f"base {base} of {name} for {len(self.outs)} dimensions")
                for coordinate, (out, extent) in zip(base, self.outs, strict=True):
                    if not 0 <= coordinate < extent:
                        raise InvalidArgument(
                            f"base {base} of {name} reaches outside of {out}, which has {extent} elements",
                            help=f"0 to {extent - 1}",
                        )
        names = [*self.in_names, *self.out_names]
        if len(set(self.in_names)) < len(self.in_names) or len(set(self.out_names)) < len(self.out_names):
            raise InvalidArgument(f"a dimension occurs twice in {', '.join(names)}")
        if max(self.in_bits, self.out_bits) > _MOST_BITS:
            raise InvalidArgument(f"a layout of {max(self.in_bits, self.out_bits)} bits", help=f"at most {_MOST_BITS}")

    # Names and sizes

    @cached_property
    def in_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.bases)

    @cached_property
    def out_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.outs)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Extents of the outputs."""
        return tuple(extent for _, extent in self.outs)

    @cached_property
    def in_bits(self) -> int:
        return sum(len(vectors) for _, vectors in self.bases)

    @cached_property
    def out_bits(self) -> int:
        return log2(prod(self.shape))

    def of(self, name: str) -> tuple[Base, ...]:
        """The bases of an input; none where it does not occur."""
        return dict(self.bases).get(name, ())

    def in_size(self, name: str) -> int:
        """Values of an input: registers per lane, lanes per warp, …"""
        return 1 << len(self.of(name))

    # As matrix and as table

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """The bases as row-major numbers, one per input bit, lowest bit first: columns of a 0/1 matrix."""
        return tuple(self.number(base) for _, vectors in self.bases for base in vectors)

    def columns_of(self, *names: str) -> tuple[int, ...]:
        """The columns of some inputs, in the order given."""
        return tuple(self.number(base) for name in names for base in self.of(name))

    def number(self, index: Sequence[int]) -> int:
        """Row-major number of an index."""
        total = 0
        for coordinate, extent in zip(index, self.shape, strict=True):
            total = total * extent + coordinate
        return total

    def index(self, number: int) -> Base:
        """The index of a row-major number."""
        found = []
        for extent in reversed(self.shape):
            found.append(number % extent)
            number //= extent
        return tuple(reversed(found))

    def table(self) -> Array:
        """Row-major number of the element at every place: one axis per input, the last input first (w, l, r).

        Replicated elements occur several times. The array is shared and read-only.
        """
        return self._table

    @cached_property
    def _table(self) -> Array:
        flat = np.zeros(1, np.int64)
        for column in self.columns:
            flat = np.concatenate([flat, flat ^ column])
        flat.flags.writeable = False
        return flat.reshape([1 << len(vectors) for _, vectors in reversed(self.bases)])

    def coordinates(self) -> tuple[Array, ...]:
        """As `table`, with one array per output."""
        left, found = self._table, []
        for extent in reversed(self.shape):
            found.append(left % extent)
            left = left // extent
        return tuple(reversed(found))

    def apply(self, **place: int) -> Base:
        """The index at one place.

        >>> linear((4, 2), register=[(0, 1)], lane=[(1, 0), (2, 0)]).apply(register=1, lane=2)
        (2, 1)
        """
        total = [0] * len(self.outs)
        for name, value in place.items():
            vectors = self.of(name)
            if not 0 <= value < 1 << len(vectors):
                raise InvalidArgument(f"{name} {value} in a layout with {1 << len(vectors)}")
            for bit, base in enumerate(vectors):
                if value >> bit & 1:
                    total = [a ^ b for a, b in zip(total, base, strict=True)]
        return tuple(total)

    def holders(self, *index: int) -> list[Base]:
        """Every place of an element, as (last input, …, first input): (warp, lane, register)."""
        if len(index) != len(self.shape) or not all(0 <= i < n for i, n in zip(index, self.shape, strict=True)):
            raise InvalidArgument(f"no element {index} in a tile of {self.shape}")
        found = np.argwhere(self._table == self.number(index))
        return [tuple(map(int, place)) for place in found]

    # Properties

    @cached_property
    def rank(self) -> int:
        return Span(self.columns).rank

    @property
    def is_surjective(self) -> bool:
        """Whether every element lies somewhere."""
        return self.rank == self.out_bits

    @property
    def is_injective(self) -> bool:
        """Whether no element lies in two places."""
        return self.rank == self.in_bits

    def free_bits(self) -> dict[str, int]:
        """Mask, per input, of the bits that only replicate: their column is a sum of the columns before them.

        >>> linear((2,), register=[(1,)], lane=[(0,), (1,)]).free_bits()
        {'register': 0, 'lane': 3}
        """
        span = Span()
        return {
            name: sum(0 if span.add(self.number(base)) else 1 << bit for bit, base in enumerate(vectors))
            for name, vectors in self.bases
        }

    # Algebra

    def __mul__(self, other: LinearLayout) -> LinearLayout:
        """Repeat `self` as `other` says: the bits of `other` follow, and its bases count tiles of `self`.

        >>> str(along("lane", 4, "dim0") * along("register", 2, "dim0"))
        '#linear<l=[(1),(2)], r=[(4)]>'
        """
        extents = dict(self.outs)
        outs = {**extents}
        for name, extent in other.outs:
            outs[name] = outs.get(name, 1) * extent
        scales = [extents.get(name, 1) for name in other.out_names]
        bases: dict[str, list[dict[str, int]]] = {
            name: [dict(zip(self.out_names, base, strict=True)) for base in vectors] for name, vectors in self.bases
        }
        for name, vectors in other.bases:
            for base in vectors:
                scaled = [scale * coordinate for scale, coordinate in zip(scales, base, strict=True)]
                bases.setdefault(name, []).append(dict(zip(other.out_names, scaled, strict=True)))
            bases.setdefault(name, [])
        return LinearLayout(
            tuple((n, tuple(tuple(base.get(o, 0) for o in outs) for base in v)) for n, v in bases.items()),
            tuple(outs.items()),
        )

    def then(self, other: LinearLayout) -> LinearLayout:
        """The composition: `self` first, then `other`, whose inputs are the outputs of `self`, by name.

        Raises InvalidArgument where an output of `self` is no input of `other`, or is larger.
        """
        for name, extent in self.outs:
            if extent > 1 and (name not in other.in_names or extent > other.in_size(name)):
                raise InvalidArgument(
                    f"composition: {name} has {extent} values, the second map takes {other.in_size(name)}",
                    help=f"its inputs are {', '.join(f'{n}: {other.in_size(n)}' for n in other.in_names)}",
                )
        inputs = set(other.in_names)

        def image(base: Base) -> Base:
            return other.apply(**{n: c for n, c in zip(self.out_names, base, strict=True) if n in inputs})

        bases = tuple((name, tuple(image(base) for base in vectors)) for name, vectors in self.bases)
        return LinearLayout(bases, other.outs)

    def inverse(self) -> LinearLayout:
        """For every element its place; of several, the one with the smallest number (replicating bits 0).

        Raises InvalidArgument for a map that is not surjective.
        """
        span = Span(self.columns)
        places = LinearLayout((), tuple((name, self.in_size(name)) for name in reversed(self.in_names)))
        bases, bit = [], 0
        for name, extent in reversed(self.outs):
            vectors = []
            for _ in range(log2(extent)):
                left, numbers = span.express(1 << bit)
                if left:
                    raise InvalidArgument(
                        f"no inverse of {self}: it reaches {1 << self.rank} of {prod(self.shape)} elements",
                        help="add bases (registers) until every element has a place",
                    )
                vectors.append(places.index(numbers))
                bit += 1
            bases.append((name, tuple(vectors)))
        return LinearLayout(tuple(bases), places.outs)

    def invert_and_compose(self, other: LinearLayout) -> LinearLayout:
        """Where `other` holds what `self` holds at a place: `self`, then the inverse of `other`."""
        if dict(self.outs) != dict(other.outs):
            raise InvalidArgument(f"layouts of different tiles: {dict(self.outs)} and {dict(other.outs)}")
        return self.then(other.inverse())

    def divide_left(self, tile: LinearLayout) -> LinearLayout | None:
        """The `rest` with ``tile * rest == self``; None where there is none."""
        extents = dict(self.outs)
        if any(name not in extents or extents[name] % extent for name, extent in tile.outs):
            return None
        if any(self.of(n)[: len(v)] != self._widened(tile, v) for n, v in tile.bases):
            return None
        sizes = [dict(tile.outs).get(name, 1) for name in self.out_names]
        kept = []
        for name, vectors in self.bases:
            left = vectors[len(tile.of(name)) :]
            if any(c % size for base in left for c, size in zip(base, sizes, strict=True)):
                return None
            kept.append((name, tuple(tuple(c // size for c, size in zip(b, sizes, strict=True)) for b in left)))
        outs = tuple((name, extent // size) for (name, extent), size in zip(self.outs, sizes, strict=True))
        return LinearLayout(tuple(kept), outs)

    def _widened(self, tile: LinearLayout, vectors: Iterable[Base]) -> tuple[Base, ...]:
        at = {name: place for place, name in enumerate(tile.out_names)}
        return tuple(tuple(base[at[n]] if n in at else 0 for n in self.out_names) for base in vectors)

    def sublayout(self, ins: Sequence[str], outs: Sequence[str]) -> LinearLayout:
        """The part of some inputs (others 0) and outputs (others dropped), in the order given."""
        at = [self.out_names.index(name) for name in outs]
        bases = tuple((name, tuple(tuple(base[i] for i in at) for base in self.of(name))) for name in ins)
        return LinearLayout(bases, tuple(self.outs[i] for i in at))

    def quotient(self, name: str) -> LinearLayout | None:
        """`self` without a dimension that is an input and an output and passes through; None where it is touched."""
        if name not in self.in_names or name not in self.out_names:
            return None
        ins, outs = ([n for n in names if n != name] for names in (self.in_names, self.out_names))
        size = dict(self.outs)[name]
        through = self.sublayout([name], [name]) == along(name, size, name) or self.in_size(name) == size == 1
        mixed = any(any(base) for base in self.sublayout([name], outs).of(name)) or any(
            any(base) for n in ins for base in self.sublayout([n], [name]).of(n)
        )
        return self.sublayout(ins, outs) if through and not mixed else None

    def without_zeros(self, name: str) -> LinearLayout:
        """`self` without the bits of an input whose base is 0."""
        return LinearLayout(tuple((n, tuple(b for b in v if any(b) or n != name)) for n, v in self.bases), self.outs)

    def fit(self, shape: Sequence[int], order: Sequence[int], into: str = "register") -> LinearLayout:
        """The layout on a tile of another shape: what reaches outside repeats, what is missing is added to `into`.

        Coordinates beyond an extent become 0, so those bits replicate; bits of `into` (of dimensions in `order`) walk
        through the rest of a larger tile.
        """
        vectors = {name: [tuple(c % n for c, n in zip(b, shape, strict=True)) for b in v] for name, v in self.bases}
        for dim in order:
            unit = self.shape[dim]
            while unit < shape[dim]:
                vectors.setdefault(into, []).append(tuple(unit if d == dim else 0 for d in range(len(shape))))
                unit *= 2
        outs = tuple((name, extent) for name, extent in zip(self.out_names, shape, strict=True))
        return LinearLayout(tuple((name, tuple(v)) for name, v in vectors.items()), outs)

    # Either side seen in another shape

    def regroup(self, sizes: Mapping[str, int]) -> LinearLayout:
        """The same map from other inputs: the input bits, lowest first, distributed to inputs of these sizes.

        >>> str(linear((8,), register=[(1,)], lane=[(2,), (4,)]).regroup({"offset": 8}))
        '#linear<o=[(1),(2),(4)]>'
        """
        if not all(map(is_power_of_two, sizes.values())) or prod(sizes.values()) != 1 << self.in_bits:
            raise InvalidArgument(
                f"{1 << self.in_bits} places as {dict(sizes)}", help="powers of two whose product is that"
            )
        left = [base for _, vectors in self.bases for base in vectors]
        found = []
        for name, size in sizes.items():
            count = log2(size)
            found.append((name, tuple(left[:count])))
            left = left[count:]
        return LinearLayout(tuple(found), self.outs)

    def reshape(self, shape: Sequence[int]) -> LinearLayout:
        """The same places for a tile of another shape with as many elements, in row-major order."""
        if prod(shape) != prod(self.shape):
            raise InvalidArgument(f"reshape of {prod(self.shape)} elements to {tuple(shape)}")
        target = LinearLayout((), tuple(zip(dims(len(shape)), shape, strict=True)))
        bases = tuple((n, tuple(target.index(self.number(b)) for b in v)) for n, v in self.bases)
        return LinearLayout(bases, target.outs)

    def transpose(self, order: Sequence[int]) -> LinearLayout:
        """The same places for a tile whose dimension `i` is dimension `order[i]` of this one."""
        if sorted(order) != list(range(len(self.outs))):
            raise InvalidArgument(f"transpose of {len(self.outs)} dimensions by {list(order)}")
        bases = tuple((n, tuple(tuple(b[d] for d in order) for b in v)) for n, v in self.bases)
        shape = [self.shape[d] for d in order]
        return LinearLayout(bases, tuple(zip(dims(len(order)), shape, strict=True)))

    def to_linear(self, shape: Sequence[int]) -> LinearLayout:
        """`self`: a linear layout belongs to one shape. Raises InvalidArgument for another."""
        if tuple(shape) != self.shape:
            raise InvalidArgument(f"a layout of {self.shape} for a tile of {tuple(shape)}", where=str(self))
        return self

    def __str__(self) -> str:
        """Canonical text. Extents are left out where the bases show them: a power of two just beyond the largest."""
        parts = [
            f"{SHORT.get(name, name)}=[{','.join(_tuple(base) for base in vectors)}]" for name, vectors in self.bases
        ]
        if self.out_names != dims(len(self.outs)):
            parts.append(f"out=[{','.join(f'{SHORT.get(name, name)}:{extent}' for name, extent in self.outs)}]")
        elif self.shape != implied_shape((base for _, v in self.bases for base in v), len(self.outs)):
            parts.append(f"shape=[{','.join(map(str, self.shape))}]")
        return f"#linear<{', '.join(parts)}>"


def linear(shape: Sequence[int], **bases: Iterable[Sequence[int]]) -> LinearLayout:
    """A layout of a tile from the bases of its inputs."""
    return LinearLayout(
        tuple((name, tuple(tuple(base) for base in vectors)) for name, vectors in bases.items()),
        tuple(zip(dims(len(shape)), shape, strict=True)),
    )


def named(bases: Mapping[str, Iterable[Sequence[int]]], outs: Mapping[str, int]) -> LinearLayout:
    """A linear map between any inputs and outputs."""
    return LinearLayout(tuple((n, tuple(tuple(b) for b in v)) for n, v in bases.items()), tuple(outs.items()))


def along(name: str, count: int, out: str) -> LinearLayout:
    """`count` values of an input walk along one output."""
    if not is_power_of_two(count):
        raise InvalidArgument(f"{count} {name}s along {out}", help=f"a power of two: {powers_around(count)}")
    return LinearLayout(((name, tuple((1 << bit,) for bit in range(log2(count)))),), ((out, count),))


def repeated(name: str, count: int) -> LinearLayout:
    """`count` values of an input that all hold the same."""
    if not is_power_of_two(count):
        raise InvalidArgument(f"{count} {name}s with the same", help=f"a power of two: {powers_around(count)}")
    return LinearLayout(((name, ((),) * log2(count)),), ())


def product(rank: int, *factors: LinearLayout) -> LinearLayout:
    """The product of factors, for a tile of `rank` dimensions over registers, lanes and warps."""
    start = linear((1,) * rank, register=(), lane=(), warp=())
    return reduce(LinearLayout.__mul__, factors, start)


def dims(rank: int) -> tuple[str, ...]:
    """The names of a tile's dimensions."""
    return tuple(f"dim{d}" for d in range(rank))


def implied_shape(bases: Iterable[Base], rank: int) -> tuple[int, ...]:
    """The smallest extents that bases of a tile of `rank` dimensions fit in."""
    largest = [0] * rank
    for base in bases:
        largest = [max(a, b) for a, b in zip(largest, base, strict=True)]
    return tuple(1 << value.bit_length() for value in largest)


def _tuple(base: Base) -> str:
    return f"({','.join(map(str, base))})"
