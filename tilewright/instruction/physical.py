"""Mappings with numbers: fused indices, tiles, padding, where every tile of every operand starts, how many calls.

First *virtual*: the software loops of a set become one index ``v = sum x * stride``, decoded by
``v // stride % extent`` (the first loop without ``%``, so that padding is seen as an index that is too large). Then
*physical*: ``v`` is cut into tiles of the intrinsic's extent; loops in no set, and the numbers of the tiles, are loops
around the intrinsic.

An operand is stored `packed`, tile after tile in the order the record asks for, or `strided`, as a matrix with a
leading dimension. Outer loops that occur together in one dimension (``p + r``) may keep that dimension instead of two.
"""

from __future__ import annotations

from collections.abc import Mapping as Names
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, cached_property
from math import gcd, prod
from typing import Literal

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.expr.affine import Affine
from tilewright.expr.core import Axis, Const, Expr, Tensor
from tilewright.expr.dtypes import INDEX, DType
from tilewright.expr.names import claim, unique
from tilewright.expr.text import parse_compute, print_expr
from tilewright.instruction.mapping import Mapping
from tilewright.instruction.matching import Match
from tilewright.instruction.order import Digit, Index, Order
from tilewright.intrinsics.elements import bits
from tilewright.intrinsics.formula import formula
from tilewright.intrinsics.intrinsic import Intrinsic, Loop, Movement, Operand

Storage = Literal["packed", "strided"]


@dataclass(frozen=True)
class Placement:
    """One operand in memory: its dimensions and, for any call, where its tile starts.

    `loops` are the operand's, slowest first: the order that a movement of the record can load (or store, for the
    destination), row-major if none says otherwise. `tiles` are the numbers of tiles along them. `leading` is the padded
    row length of strided storage.
    """

    operand: Operand
    tensor: Tensor
    storage: Storage
    outer: tuple[Index, ...]
    loops: tuple[Loop, ...]
    tiles: tuple[int, ...]
    digits: tuple[Digit, ...]
    leading: int = 0

    @property
    def dtype(self) -> DType:
        return self.operand.dtype

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Dimensions of the stored operand: outer ones, then tiles and digits (packed), or padded indices (strided)."""
        front = tuple(outer.extent for outer in self.outer)
        if self.storage == "packed":
            return (*front, *self.tiles, *(digit.extent for digit in self.digits))
        whole = [count * loop.extent for count, loop in zip(self.tiles, self.loops, strict=True)]
        return (*front, *whole[:-1], *([self.leading] if whole else []))

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return -(-self.elements * bits(self.dtype) // 8)

    @property
    def tile_elements(self) -> int:
        return prod(loop.extent for loop in self.loops)

    @cached_property
    def tile_strides(self) -> tuple[int, ...]:
        """Elements between neighbouring tiles along each of the operand's loops."""
        if self.storage == "packed":
            return tuple(prod(self.tiles[number + 1 :]) * self.tile_elements for number in range(len(self.tiles)))
        return tuple(loop.extent * stride for loop, stride in zip(self.loops, self.strides.values(), strict=True))

    @cached_property
    def strides(self) -> Names[str, int]:
        """Elements between neighbours inside a tile, by loop; of a loop cut into several digits, for the lowest one."""
        if self.storage == "strided":
            rows = self.shape[len(self.outer) :]
            return {loop.name: prod(rows[number + 1 :]) for number, loop in enumerate(self.loops)}
        found: dict[str, int] = {loop.name: 1 for loop in self.loops}
        for number, digit in enumerate(self.digits):
            if digit.divisor == 1:
                found[digit.index] = prod(later.extent for later in self.digits[number + 1 :])
        return found

    @cached_property
    def outer_strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each outer dimension."""
        return tuple(prod(self.shape[number + 1 :]) for number in range(len(self.outer)))

    def base(self, index: Names[str, Expr]) -> Expr:
        """Where the tile starts that a call uses, in elements. `index` has the fused index of every intrinsic loop."""
        parts: list[Expr] = [
            _times(outer.form.expression(), stride)
            for outer, stride in zip(self.outer, self.outer_strides, strict=True)
            if outer.extent > 1
        ]
        parts += [
            _times(index[loop.name] // loop.extent, stride)
            for loop, count, stride in zip(self.loops, self.tiles, self.tile_strides, strict=True)
            if count > 1
        ]
        total: Expr | None = None
        for part in parts:
            total = part if total is None else total + part
        return Const(0, INDEX) if total is None else total


@dataclass(frozen=True)
class PhysicalMapping:
    """A mapping with its storage decided; everything else follows from it."""

    mapping: Mapping
    storage: tuple[Storage, ...]
    keep_windows: bool = True

    def __str__(self) -> str:
        return str(self.mapping)

    @property
    def match(self) -> Match:
        return self.mapping.match

    @property
    def record(self) -> Intrinsic:
        return self.mapping.record

    @property
    def outer(self) -> tuple[Axis, ...]:
        return self.mapping.outer

    @property
    def fused(self) -> tuple[int, ...]:
        """Extents of the fused indices, one per intrinsic loop."""
        return self.mapping.fused

    @cached_property
    def tiles(self) -> tuple[int, ...]:
        """Numbers of tiles, one per intrinsic loop."""
        return tuple(-(-have // loop.extent) for have, loop in zip(self.fused, self.record.loops, strict=True))

    @cached_property
    def calls(self) -> int:
        return prod(axis.size for axis in self.outer) * prod(self.tiles)

    @cached_property
    def points(self) -> int:
        """Points of the node's loop nest: useful multiply-adds."""
        return prod(axis.size for axis in self.match.loops)

    @property
    def utilisation(self) -> float:
        """Useful work over executed work, in (0, 1]."""
        return self.points / (self.calls * self.record.macs)

    @cached_property
    def placements(self) -> tuple[Placement, ...]:
        """Where the operands lie, in the record's order, the destination last."""
        return tuple(_placement(self, number) for number in range(len(self.record.operands)))

    @cached_property
    def orders(self) -> tuple[Order, ...]:
        """The dimensions of the operands, as `Placement.shape` has them, and the loops that they are digits of."""
        return tuple(self._order(placement) for placement in self.placements)

    @property
    def operand_bytes(self) -> tuple[int, ...]:
        """Stored bytes of every operand, padding included."""
        return tuple(placement.size_bytes for placement in self.placements)

    @property
    def relayout_bytes(self) -> int:
        """Bytes read and written if every relayout is a kernel of its own."""
        tensors = (*(read.tensor for read in self.match.reads), self.match.compute.output)
        return sum(self.operand_bytes) + sum(tensor.size_bytes for tensor in tensors)

    @cached_property
    def index_axes(self) -> dict[str, Axis]:
        """The fused index of every intrinsic loop as a loop of its own, named after it (apart from software loops)."""
        names = {axis.name for axis in self.match.loops}
        return {
            loop.name: Axis(unique(loop.name, names), have)
            for loop, have in zip(self.record.loops, self.fused, strict=True)
        }

    def _order(self, placement: Placement) -> Order:
        sets = dict(zip(self.record.extents, self.mapping.sets, strict=True))
        taken = {each.name for each in placement.outer}
        indices = list(placement.outer)
        digits = [Digit(each.name, 1, each.extent) for each in placement.outer]
        own: dict[str, str] = {}
        for loop in placement.loops:
            own[loop.name] = claim(loop.name, taken)
            indices.append(replace(Index.of(*sets[loop.name]), name=own[loop.name]))
        if placement.storage == "strided":
            inside = placement.shape[len(placement.outer) :]
            digits += [Digit(own[loop.name], 1, have) for loop, have in zip(placement.loops, inside, strict=True)]
        else:
            numbered = zip(placement.loops, placement.tiles, strict=True)
            digits += [Digit(own[loop.name], loop.extent, count) for loop, count in numbered]
            digits += [replace(digit, index=own[digit.index]) for digit in placement.digits]
        return Order(tuple(indices), tuple(digits))

    def to_json(self) -> dict[str, object]:
        """What a reader or a script wants to know, without any prediction."""
        return {
            "loops": {loop: list(names) for loop, names in self.mapping.loops.items()},
            "outer": [axis.name for axis in self.outer],
            "calls": self.calls,
            "utilisation": self.utilisation,
            "degenerate": self.mapping.degenerate,
            "operands": [
                {
                    "role": placement.operand.role,
                    "tensor": placement.tensor.name,
                    "storage": placement.storage,
                    "elements": placement.elements,
                    "base": print_expr(placement.base(dict(self.index_axes)), INDEX),
                    "strides": dict(placement.strides),
                }
                for placement in self.placements
            ],
        }


def physical(
    mapping: Mapping, *, storage: Storage | Sequence[Storage] = "packed", keep_windows: bool = True
) -> PhysicalMapping:
    """`mapping` with its operands stored in one way, or each in its own."""
    count = len(mapping.record.operands)
    chosen = (storage,) * count if isinstance(storage, str) else tuple(storage)
    if len(chosen) != count or any(each not in ("packed", "strided") for each in chosen):
        raise InvalidArgument(
            f"storage {storage!r} for {count} operands", where="storage", help="packed or strided, one for each"
        )
    return PhysicalMapping(mapping, chosen, keep_windows)


def has_formula(operand: Operand) -> bool:
    """Whether the operand's layout says where in its tile every element lies."""
    return isinstance(operand.layout, str) and operand.layout not in ("row_major", "opaque", "descriptor")


def fits(placement: Placement, move: Movement) -> bool:
    """Whether a movement can reach the elements of a tile as they are stored: in strides, not in alignment."""
    if has_formula(placement.operand) and placement.storage == "packed":
        return True
    fixed, free = address_strides(move, placement.operand)
    return all(placement.strides[name] == stride for name, stride in fixed.items()) and all(
        placement.strides[name] % move.stride_multiple == 0 for name in free
    )


@cache
def address_strides(move: Movement, operand: Operand) -> tuple[dict[str, int], tuple[str, ...]]:
    """Of a movement's address, the loops with a stride that it fixes, and those with one that it leaves open.

    >>> address_strides(Movement("lda", "A", "reg", "shared", "addr + i * stride + r"), Operand("A", "f16", ("i", "r")))
    ({'r': 1}, ('i',))
    """
    address = formula(move.address)
    names = dict.fromkeys(address.names | set(operand.loops), 0)
    strides = {name: 0 for name in address.names if name not in operand.loops}
    start = address({**names, **strides})
    fixed, free = {}, []
    for name in sorted(operand.loops, key=lambda name: move.address.find(name)):
        own = int(address({**names, **strides, name: 1}) - start)
        opened = int(address({**names, **dict.fromkeys(strides, 1 << 20), name: 1}))
        opened -= int(address({**names, **dict.fromkeys(strides, 1 << 20)}))
        if opened == own:
            fixed[name] = own
        else:
            free.append(name)
    return fixed, tuple(free)


def in_tile(operand: Operand, loops: Sequence[Loop]) -> tuple[Digit, ...]:
    """The order of elements inside a tile, slowest first, from the operand's layout formula; that of `loops` without.

    A formula is a sum of digits ``loop // divisor % extent * stride`` that number the elements without gaps.
    """
    extents = {loop.name: loop.extent for loop in loops}
    if not isinstance(operand.layout, str) or not has_formula(operand):
        return tuple(Digit(name, 1, have) for name, have in extents.items())
    text = f"at[{', '.join(operand.loops)}] = {operand.layout}"
    offset = parse_compute(text, dict(extents), INDEX, where=operand.role).body
    terms = [_digit(term, stride, extents) for term, stride in _terms(offset)]
    ordered = sorted((term for term in terms if term[0].extent > 1), key=lambda term: -term[1])
    expected = 1
    for digit, stride in reversed(ordered):
        if stride != expected:
            raise InvalidArgument(
                f"layout {operand.layout!r} of {operand.role} leaves gaps or overlaps at stride {stride}",
                help=f"a stride of {expected}",
            )
        expected *= digit.extent
    if expected != prod(extents[name] for name in operand.loops):
        raise InvalidArgument(f"layout {operand.layout!r} of {operand.role} does not number every element once")
    return tuple(digit for digit, _ in ordered)


# Placement


def _placement(whole: PhysicalMapping, number: int) -> Placement:
    record, match = whole.record, whole.match
    operand = record.operands[number]
    by_name = {loop.name: (loop, count) for loop, count in zip(record.loops, whole.tiles, strict=True)}
    order = _storage_order(record, operand)
    loops = tuple(by_name[name][0] for name in order)
    tiles = tuple(by_name[name][1] for name in order)
    source = number < len(match.reads)
    tensor = match.reads[number].tensor if source else match.compute.output
    storage = whole.storage[number] if loops else "packed"
    leading = 0
    if storage == "strided":
        multiple = max((move.stride_multiple for move in record.memory if move.operand == operand.role), default=1)
        leading = -(-tiles[-1] * loops[-1].extent // multiple) * multiple
    return Placement(operand, tensor, storage, _outer(whole, number), loops, tiles, in_tile(operand, loops), leading)


@cache
def _storage_order(record: Intrinsic, operand: Operand) -> tuple[str, ...]:
    """The operand's loops in the order of the first movement that can reach a packed tile of that order."""
    if has_formula(operand):
        return operand.loops
    for move in record.memory:
        if move.operand != operand.role or move.value is not None:
            continue
        fixed, free = address_strides(move, operand)
        order = (*free, *sorted(fixed, key=lambda name: -fixed[name]))
        loops = [loop for name in order for loop in record.loops if loop.name == name]
        trial = Placement(operand, Tensor("_", (), "i8"), "packed", (), tuple(loops), (1,) * len(loops),
                          in_tile(operand, loops))  # fmt: skip
        if fits(trial, move):
            return order
    return operand.loops


def _outer(whole: PhysicalMapping, number: int) -> tuple[Index, ...]:
    """The leading dimensions of an operand, in loop order."""
    match = whole.match
    used = dict(zip(match.loops, match.access[number], strict=True))
    axes = [axis for axis in whole.outer if used[axis]]
    if number == len(match.reads) or not whole.keep_windows:
        return tuple(Index.of(axis) for axis in axes)
    found: list[Index] = []
    done: set[Axis] = set()
    for axis in axes:
        if axis in done:
            continue
        group = _window(match, number, axis, axes)
        done.update(group.form.terms)
        found.append(group)
    return tuple(found)


def _window(match: Match, number: int, axis: Axis, axes: Sequence[Axis]) -> Index:
    """The dimension that `axis` shares with other outer loops which occur nowhere else; `axis` alone without any."""
    alone = Index.of(axis)
    homes = [form for form in match.forms[number] if axis in form.terms]
    if len(homes) != 1:
        return alone
    others = [form for form in match.forms[number] if form is not homes[0]]
    terms = {
        each: coefficient
        for each, coefficient in homes[0].terms.items()
        if each in axes and not any(each in form.terms for form in others)
    }
    if len(terms) < 2:
        return alone
    step = gcd(*terms.values())
    terms = {each: terms[each] // step for each in axes if each in terms}
    low = sum(min(0, coefficient * (each.size - 1)) for each, coefficient in terms.items())
    size = 1 + sum(abs(coefficient) * (each.size - 1) for each, coefficient in terms.items())
    if size >= prod(axis.size for axis in terms):
        return alone
    return Index(".".join(each.name for each in terms), size, Affine(-low, terms))


def _times(value: Expr, factor: int) -> Expr:
    return value if factor == 1 else value * factor


# Layout formulas


def _terms(expr: Expr) -> list[tuple[Expr, int]]:
    """The summands of a formula, each with its constant factor."""
    function = getattr(expr, "function", "")
    args: tuple[Expr, ...] = getattr(expr, "args", ())
    if function == "add":
        return [*_terms(args[0]), *_terms(args[1])]
    if function == "mul":
        for this, other in (args, args[::-1]):
            if isinstance(other, Const):
                return [(term, factor * int(other.value)) for term, factor in _terms(this)]
    if isinstance(expr, Const) and expr.value == 0:
        return []
    return [(expr, 1)]


def _digit(term: Expr, stride: int, extents: Names[str, int]) -> tuple[Digit, int]:
    divisor, limit = 1, 0
    value = term
    while not isinstance(value, Axis):
        function = getattr(value, "function", "")
        args: tuple[Expr, ...] = getattr(value, "args", ())
        if function not in ("floordiv", "mod") or not isinstance(args[1], Const):
            raise InvalidArgument(f"{print_expr(term, INDEX)} is not a digit of a loop", help="write loop // 4 % 2")
        number = int(args[1].value)
        if function == "mod":
            limit = number if limit == 0 else min(limit, number)
        else:
            divisor *= number
        value = args[0]
    have = extents[value.name]
    count = -(-have // divisor)
    return Digit(value.name, divisor, min(limit, count) if limit else count), stride
