"""Mappings: which software loops each intrinsic loop executes. Enumerated lazily, smallest first.

Modes:

* `points`: every loop of every set occurs in a match point that lies inside the product of the sets (rule R);
* `signature`: any disjoint non-empty sets of loops that have the kind and signature of the intrinsic loop;
* `amos-compat`: as `points` up to 15 match points; beyond, the single points and the union of all of them, which need
  not be a function and is then refused by validation.

`(nq|k|c)` is how a mapping prints: one part per intrinsic loop, in the record's order. Loops in no part stay outside.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import combinations, product
from math import prod
from typing import Literal, get_args

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.expr.core import Axis, Compute
from tilewright.instruction.canonical import Canonical
from tilewright.instruction.matching import Match, Matrix, Point, match
from tilewright.intrinsics.intrinsic import Intrinsic

Mode = Literal["points", "signature", "amos-compat"]
MODES: tuple[Mode, ...] = get_args(Mode)

_COMPAT_POINTS = 15  # match points up to which the public code of AMOS forms unions


@dataclass(frozen=True)
class Mapping:
    """For every intrinsic loop of `match.record`, the software loops it executes, fused in the node's loop order."""

    match: Match
    sets: tuple[tuple[Axis, ...], ...]

    def __str__(self) -> str:
        return text_of(self.sets)

    @property
    def record(self) -> Intrinsic:
        return self.match.record

    @cached_property
    def loops(self) -> dict[str, tuple[str, ...]]:
        """Names of software loops by name of intrinsic loop."""
        return {
            loop.name: tuple(axis.name for axis in axes)
            for loop, axes in zip(self.record.loops, self.sets, strict=True)
        }

    @cached_property
    def mapped(self) -> frozenset[Axis]:
        return frozenset(axis for axes in self.sets for axis in axes)

    @cached_property
    def outer(self) -> tuple[Axis, ...]:
        """The loops that stay around the intrinsic, in the node's order."""
        return tuple(axis for axis in self.match.loops if axis not in self.mapped)

    @cached_property
    def matrix(self) -> Matrix:
        """Y: one row per intrinsic loop, one column per software loop."""
        rows = [[axis in axes for axis in self.match.loops] for axes in self.sets]
        return np.array(rows, np.bool_).reshape(len(self.sets), len(self.match.loops))

    @cached_property
    def fused(self) -> tuple[int, ...]:
        """The extent of every intrinsic loop's fused software loops."""
        return tuple(prod(axis.size for axis in axes) for axes in self.sets)

    @property
    def degenerate(self) -> bool:
        """Whether some intrinsic loop has a single value to run over."""
        return 1 in self.fused


def mappings(
    node: Compute | Canonical,
    record: Intrinsic,
    mode: Mode = "points",
    *,
    commute: bool = False,
    complete: bool = False,
    strict: bool = False,
    flip: bool = False,
    taken: Collection[str] = (),
) -> Iterator[Mapping]:
    """All mappings of a node onto a record, lazily and by increasing size; see `match` and `enumerate_mappings`."""
    for found in match(node, record, commute=commute, complete=complete, flip=flip, taken=taken):
        yield from enumerate_mappings(found, mode, strict=strict)


def enumerate_mappings(match: Match, mode: Mode = "points", *, strict: bool = False) -> Iterator[Mapping]:
    """The mappings of a match. `strict` leaves out those whose fused extents are below the record's."""
    if mode not in MODES:
        raise InvalidArgument(f"unknown mode {mode!r}", where="--mode", help=f"one of {', '.join(MODES)}")
    families = _compat(match) if mode == "amos-compat" else _families(match, mode)
    for sets in families:
        found = Mapping(match, sets)
        extents = match.record.extents.values()
        if not strict or all(have >= wanted for have, wanted in zip(found.fused, extents, strict=True)):
            yield found


def distinct(found: Iterable[Mapping]) -> list[Mapping]:
    """One mapping per program: mappings that differ in loops of extent 1 alone are one.

    Mappings that leave an intrinsic loop with nothing else to run over are kept only if there are no others.
    """
    programs: dict[object, Mapping] = {}
    poor: dict[object, Mapping] = {}
    for each in found:
        key = (each.match, tuple(tuple(axis for axis in axes if axis.size > 1) for axes in each.sets))
        (poor if each.degenerate else programs).setdefault(key, each)
    return list((programs or poor).values())


def mapping_of(match: Match, sets: Sequence[Iterable[str]]) -> Mapping:
    """The mapping with these loops, by name; it need not be valid. Raises InvalidArgument for unknown loops."""
    if len(sets) != len(match.record.loops):
        raise InvalidArgument(
            f"{len(sets)} parts for the {len(match.record.loops)} loops of {match.record.name}", where="--mapping",
            help=f"give one part for each of {', '.join(loop.name for loop in match.record.loops)}",
        )  # fmt: skip
    axes = {axis.name: axis for axis in match.loops}
    for name in (name for names in sets for name in names):
        if name not in axes:
            raise InvalidArgument(f"{name!r} is not a loop", where="--mapping", help=f"loops: {', '.join(axes)}")
    chosen = [set(names) for names in sets]
    return Mapping(match, tuple(tuple(axis for axis in match.loops if axis.name in names) for names in chosen))


def parse_mapping(match: Match, text: str) -> Mapping:
    """The mapping that prints as `text`: ``(nq|k|c)``, or ``(n q0|k|c)`` where a loop's name has several letters."""
    inner = re.fullmatch(r"\s*\(([^()]*)\)\s*", text)
    if inner is None:
        raise InvalidArgument(f"{text!r} is not a mapping", where="--mapping", help="write (nq|k|c)")
    parts = inner.group(1).split("|" if "|" in inner.group(1) else ",")
    names = {axis.name for axis in match.loops}
    sets = [[name for word in part.split() for name in ([word] if word in names else list(word))] for part in parts]
    return mapping_of(match, sets)


def text_of(sets: Sequence[Sequence[Axis]]) -> str:
    """``(nq|k|c)``; loops are separated by blanks if one has a longer name."""
    blank = " " if any(len(axis.name) > 1 for axes in sets for axis in axes) else ""
    return f"({'|'.join(blank.join(axis.name for axis in axes) for axes in sets)})"


# Families of sets

_Family = tuple[tuple[Axis, ...], ...]


def _families(match: Match, mode: Mode) -> Iterator[_Family]:
    points = match.points if mode == "points" else ()
    if mode == "points":
        candidates = [
            [axis for axis in match.loops if any(point[number] == axis for point in points)]
            for number in range(len(match.record.loops))
        ]
    else:
        candidates = [list(match.candidates(loop)) for loop in match.record.loops]
    if not all(candidates):
        return
    for total in range(len(candidates), sum(map(len, candidates)) + 1):
        for sizes in _compositions(total, [len(axes) for axes in candidates]):
            for sets in product(*(combinations(axes, size) for axes, size in zip(candidates, sizes, strict=True))):
                if len({axis for axes in sets for axis in axes}) < total:
                    continue
                if mode == "signature" or _witnessed(sets, points):
                    yield sets


def _compositions(total: int, limits: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Ways to write `total` as a sum of numbers from 1 to each limit."""
    if not limits:
        if total == 0:
            yield ()
        return
    for first in range(1, min(limits[0], total - len(limits) + 1) + 1):
        for rest in _compositions(total - first, limits[1:]):
            yield (first, *rest)


def _witnessed(sets: _Family, points: Sequence[Point]) -> bool:
    """Whether every loop of every set occurs in a match point inside the product of the sets."""
    seen: list[set[Axis]] = [set() for _ in sets]
    for point in points:
        if all(axis in axes for axis, axes in zip(point, sets, strict=True)):
            for loops, axis in zip(seen, point, strict=True):
                loops.add(axis)
    return all(len(loops) == len(axes) for loops, axes in zip(seen, sets, strict=True))


def _compat(match: Match) -> Iterator[_Family]:
    points = match.points
    if len(points) <= _COMPAT_POINTS:
        yield from _families(match, "points")
        return
    tile = tuple(match.record.extents.values())
    exact = [point for point in points if tuple(axis.size for axis in point) == tile]
    yield from (tuple((axis,) for axis in point) for point in exact or points)
    union = [{point[number] for point in points} for number in range(len(tile))]
    yield tuple(tuple(axis for axis in match.loops if axis in loops) for loops in union)
