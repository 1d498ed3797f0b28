"""Random factors of a tile tree, many trees at once (spec 1, section 5.11).

The open loops of one name form a forest: along every path their factors make up the extent. Loop by loop, every factor
that leaves a way to do so is equally likely; spatial factors are drawn first, and only as large as the machine has
units and memory instances left. What the bounds of single paths do not see, such as capacities, is decided about whole
trees, by `tiles.capacity`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.search.factors import divisors
from tilewright.tiles.resources import Resources, Units

if TYPE_CHECKING:
    from numpy.random import Generator

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class OpenLoop:
    """An open loop, by its number in the tree, and what else has part in its extent.

    `below` are the numbers of the loops of its name that are drawn next, on every path that has some. `ends`: on some
    path below none follows, so that the factors up to this one make up the extent. A loop that no operator below has is
    `idle`: its factor is 1. `level` is that of its tile if distinct units run it, else "". `leaves` are the numbers
    of those below.
    """

    number: int
    name: str
    level: str
    below: tuple[int, ...]
    ends: bool
    idle: bool
    leaves: tuple[int, ...]


@dataclass(frozen=True)
class Draws:
    """Draws factors for all open `loops`, in their order: what is `below` comes later.

    `extents` are what the factors of every name make up. Loops whose numbers are in `ones` have the factor 1. `units`
    are those that run each leaf, none without resources. `given`
    are spatial factors that the tree has already: (leaf, level, factor). `together` are the scopes whose children
    run at the same time: the level of the tile around, and the leaves of every child.
    """

    loops: tuple[OpenLoop, ...]
    extents: Mapping[str, int]
    ones: Collection[int]
    units: Sequence[Units]
    given: Sequence[tuple[int, str, int]] = ()
    together: Sequence[tuple[int, Sequence[Sequence[int]]]] = ()
    resources: Resources | None = None

    def drawn(self, possible: Sequence[Array], count: int, numbers: Generator) -> Array:
        """Up to `count` rows of `possible` factors, as integers: fewer where draws led nowhere."""
        bounds = self._bounds(count, numbers)
        alive = np.ones(count, bool)
        table = np.ones((count, len(self.loops)), np.int64)
        rests = {number: np.full(count, len(self._divisors[loop.name]) - 1) for number, loop in self._tops.items()}
        for loop in self.loops:
            number, choices = loop.number, self._divisors[loop.name]
            able = possible[number][rests[number]]
            limits = [(leaf, loop.level) for leaf in loop.leaves if (leaf, loop.level) in bounds]
            if limits:
                able = able & (choices <= np.minimum.reduce([bounds[key] for key in limits])[:, None])
            chance = numbers.random(count)
            if number in self.ones:
                alive &= able[:, 0]
                rests.update(dict.fromkeys(loop.below, rests[number]))
                continue
            total = np.cumsum(able, axis=1)
            chosen = np.argmax(total > chance[:, None] * total[:, -1:], axis=1)
            alive &= able[np.arange(count), chosen] > 0
            table[:, number] = factors = choices[chosen]
            for key in limits:
                bounds[key] //= factors
            rest = np.maximum(self._rest[loop.name][rests[number], chosen], 0)
            rests.update(dict.fromkeys(loop.below, rest))
        return table[alive]

    def possible(self, decided: Sequence[int | None]) -> list[Array]:
        """For every loop, by what is left of its extent and by choice: whether the loops below can complete it.

        Factors that are `decided` stay.
        """
        found: list[Array] = [np.empty(0)] * len(self.loops)
        for loop in reversed(self.loops):
            choices, rest = self._divisors[loop.name], self._rest[loop.name]
            after = np.arange(len(choices)) == 0 if loop.ends else np.ones(len(choices), bool)
            for below in loop.below:
                after = after & found[below].any(axis=1)
            possible = (rest >= 0) & after[rest]
            for factor in (decided[loop.number], 1 if loop.idle or loop.number in self.ones else None):
                if factor is not None:
                    possible = possible & (choices == factor)
            found[loop.number] = possible
        return found

    def _bounds(self, count: int, numbers: Generator) -> dict[tuple[int, str], Array]:
        """How large the product of a level's spatial factors may be, by leaf.

        What runs `together` takes random shares that make up the whole; of units, what runs on the same class.
        """
        if self.resources is None:
            return {}
        names = [level.name for level in self.resources.levels]
        bounds = {
            (leaf, name): np.full(count, fanout)
            for leaf, units in enumerate(self.units)
            for number, name in enumerate(names[:-1], 1)
            if (fanout := self._fanout(number, units)) is not None
        }
        for leaf, name, factor in self.given:
            if (leaf, name) in bounds:
                bounds[leaf, name] //= factor
        for around, parts in self.together:
            own = around if around + 2 == len(names) else around + 1
            for number, name in enumerate(names[own:-1], own + 1):
                if not any((leaf, name) in bounds for part in parts for leaf in part):
                    continue
                wishes = numbers.random((count, len(parts)))
                of_units = number == len(names) - 1
                inside = [self.units[leaf] for part in parts for leaf in part]
                for units in dict.fromkeys(inside) if of_units else (None,):
                    sharing = [[leaf for leaf in part if units in (None, self.units[leaf])] for part in parts]
                    shares = wishes * np.array([bool(part) for part in sharing])
                    shares /= shares.sum(axis=1, keepdims=True)
                    for part, share in zip(sharing, shares.T, strict=True):
                        for leaf in part:
                            if (leaf, name) in bounds:
                                bounds[leaf, name] = np.maximum(1, (bounds[leaf, name] * share).astype(np.int64))
        return bounds

    def _fanout(self, number: int, units: Units) -> int | None:
        """What one instance of the level outside level `number` feeds of it; of the innermost one, these units."""
        assert self.resources is not None
        last = number == len(self.resources.levels) - 1
        return self.resources.fanout_of(units) if last else self.resources.fanout(number)

    @cached_property
    def _tops(self) -> dict[int, OpenLoop]:
        inner = {number for loop in self.loops for number in loop.below}
        return {loop.number: loop for loop in self.loops if loop.number not in inner}

    @cached_property
    def _divisors(self) -> dict[str, Array]:
        return {name: np.array(divisors(extent)) for name, extent in self.extents.items()}

    @cached_property
    def _rest(self) -> dict[str, Array]:
        """The number of the divisor a / b, by the numbers of a and b; -1 where b does not divide a."""
        found = {}
        for name, each in self._divisors.items():
            quotient, remainder = np.divmod(each[:, None], each[None, :])
            found[name] = np.where(remainder == 0, np.searchsorted(each, quotient), -1)
        return found
