"""What moves between two memory levels: the result of the walk and of the boundary method, in elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.dataclass import dataclass
from tilewright.tiles.tree import Path


@dataclass(frozen=True)
class Moved:
    """Elements of one tensor that move at one nest of tiles, in the whole run.

    `loads` are reads at the level of the nest, `fills` what arrives in all instances of the next inner level (more than
    `loads` where one read serves several instances), `stores` are updates at the level of the nest. Each is an int, or
    an array with one entry per tree of a batch.
    """

    loads: Any
    fills: Any
    stores: Any


@dataclass(frozen=True)
class Traffic:
    """What moves in a tree, by the path of the outermost tile of each nest (in the completed tree) and by tensor.

    `sources` names the level that each (nest, tensor) loads from and stores to, `targets` the level that a nest fills.
    `through` names the levels between both that its words pass without staying there.
    """

    moved: Mapping[Path, Mapping[str, Moved]]
    sources: Mapping[tuple[Path, str], str]
    targets: Mapping[Path, str]
    through: Mapping[tuple[Path, str], tuple[str, ...]]

    def at(self, level: str) -> dict[str, Moved]:
        """What moves between `level` and the levels inside it, by tensor."""
        found: dict[str, Moved] = {}
        for (path, name), source in self.sources.items():
            if source == level or level in self.through.get((path, name), ()):
                _add(found, name, self.moved[path][name])
        return found

    def into(self, level: str) -> dict[str, Moved]:
        """What moves between `level` and the levels outside it, by tensor.

        What passes `level` arrives there once for each of its reads.
        """
        found: dict[str, Moved] = {}
        for path, target in self.targets.items():
            if target == level:
                for name, moved in self.moved[path].items():
                    _add(found, name, moved)
        for (path, name), passed in self.through.items():
            if level in passed:
                moved = self.moved[path][name]
                _add(found, name, Moved(moved.loads, moved.loads, moved.stores))
        return found

    def total(self, level: str) -> Moved:
        """What moves between `level` and the levels inside it, all tensors together."""
        return sum_of(list(self.at(level).values()))


def _add(found: dict[str, Moved], name: str, moved: Moved) -> None:
    """Count movement of a tensor beside what is there."""
    found[name] = sum_of([found[name], moved]) if name in found else moved


def sum_of(parts: Sequence[Moved]) -> Moved:
    """What moves in all of these together."""
    return Moved(sum(p.loads for p in parts), sum(p.fills for p in parts), sum(p.stores for p in parts))
