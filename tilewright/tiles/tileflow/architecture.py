"""An architecture of TileFlow's artifact as an accelerator.

As in Timeloop, a component of a container exists as often as the names of the container and of those around it say,
times what its own name says: ``L0[0..1023]`` in single containers are 1024 in the whole machine. A word of any level
holds an element, of the width of a word of DRAM; every level can add up what several units computed. Rates that are not
stated are unlimited. A tensor that bypasses a level takes nothing of it: there is a direct path between any two levels.
Energies are those of Timeloop's built-in model, by the straight line for every size. The format has no clock: cycles
count.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any, Final, NoReturn

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidFile
from tilewright.fields import Place
from tilewright.machine.description import Accelerator
from tilewright.tiles.energy import dram_energy, mac_energy, sram_energy
from tilewright.tiles.tileflow import schema
from tilewright.tiles.tileflow.mapping import level_of, spatial_tiles
from tilewright.tiles.tileflow.problem import Where

CLOCK_HZ: Final = 1e9  # nothing is in seconds
WORD_BITS: Final = 16  # Timeloop's, where a component does not say
_ARCHITECTURE: Final = ("architecture",)


def accelerator(given: schema.Architecture, mapping: schema.Node, where: Where) -> Accelerator:
    """The machine; spatial tiles of the mapping say which levels serve several units by one read.

    Raises InvalidFile with the place of what is wrong.
    """
    parts = [_Part(*found, where) for found in _components(given.subtree, (*_ARCHITECTURE, "subtree", 0), 1)]
    storage = [part for part in parts if part.technology != "arithmetic"]
    units = [part for part in parts if part.technology == "arithmetic"]
    if not storage or storage[0].technology != "dram" or any(part.technology == "dram" for part in storage[1:]):
        listed = ", ".join(part.technology for part in storage) or "none"
        raise InvalidFile(f"the levels are {listed}", where=where(_ARCHITECTURE),
                          help="a DRAM, then levels of other classes inside it")  # fmt: skip
    if len(units) != 1:
        raise InvalidFile(f"there are {len(units)} arithmetic components", where=where(_ARCHITECTURE),
                          help="one of class mac, intmac, fpmac or compute")  # fmt: skip
    bits = storage[0].word_bits
    multicasts = _multicasts(mapping, [part.name for part in storage], where)
    outside = _Part("dram", schema.Storage(name=("", 1)), 1, (), where)
    levels = [
        part.level(parent, bits, multicasts.get(part.name, True))
        for part, parent in zip(storage, (outside, *storage), strict=False)
    ]
    macs = mac_energy(units[0].word_bits, units[0].word_bits)
    facts = {
        "name": "architecture", "kind": "accelerator", "clock_hz": CLOCK_HZ, "word_bits": bits, "levels": levels,
        "direct_paths": [list(pair) for pair in combinations([part.name for part in storage], 2)],
        "compute": {"fanout": units[0].fanout(storage[-1]), "operations_per_cycle": 1, "operation_energy_macs": macs},
    }  # fmt: skip
    return Accelerator.from_json(facts, where(_ARCHITECTURE), InvalidFile)


def _components(
    container: schema.Container | None, place: Place, around: int
) -> Iterator[tuple[str, schema.Storage | schema.Arithmetic, int, Place]]:
    """All components with their technology, how many there are, and their place; outermost first."""
    if container is not None:
        count = around * container.name[1]
        for number, (technology, component) in enumerate(container.local):
            yield technology, component, count * component.name[1], (*place, "local", number)
        yield from _components(container.subtree, (*place, "subtree", 0), count)


def _multicasts(mapping: schema.Node, levels: list[str], where: Where) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for place, tile in spatial_tiles(mapping):
        level = level_of(tile.target, levels, where((*place, "target")))
        multicast = tile.multicast is not False
        if found.setdefault(level, multicast) != multicast:
            message = f"multicast is {str(multicast).lower()}, that of another tile at {level} is not"
            raise InvalidFile(message, where=where((*place, "multicast")), help="one for all tiles of a level")
    return found


@dataclass(frozen=True)
class _Part:
    """A component and how many of it the machine has."""

    technology: str
    component: schema.Storage | schema.Arithmetic
    count: int
    place: Place
    where: Where

    @property
    def name(self) -> str:
        return self.component.name[0]

    @property
    def word_bits(self) -> int:
        facts = self.component.attributes
        return facts.word_bits or facts.datawidth or WORD_BITS

    def level(self, parent: _Part, bits: int, multicasts: bool) -> dict[str, Any]:
        """The level as a machine file has it, with as many words, each of which holds an element of `bits`."""
        facts, words = self._facts, self._words
        if words is None and self.technology != "dram":
            self.refuse("attributes", "have no size", "sizeKB, entries, or depth with block-size")
        if words == 0:
            self.refuse("attributes", f"do not hold a word of {self.word_bits} bits", "a larger size")
        energy = dram_energy(self.word_bits)
        if self.technology != "dram" and words is not None:
            energy = sram_energy(words * self.word_bits / 8, self.word_bits, line=True)
        return {
            "name": self.name, "technology": self.technology, "fanout": self.fanout(parent),
            "capacity_bytes": None if words is None else max(1, words * bits // 8), "block_words": self._block,
            "read_words_per_cycle": facts.read_bandwidth, "write_words_per_cycle": facts.write_bandwidth,
            "read_energy_macs": energy, "write_energy_macs": energy, "reduces": True, "multicasts": multicasts,
        }  # fmt: skip

    def fanout(self, parent: _Part) -> tuple[int, int]:
        """How many stand below one of the level outside, along X and Y."""
        if self.count % parent.count:
            self.refuse("name", f"stands for {self.count} in the machine", f"a multiple of {parent.count}, those of "
                        f"{parent.name}")  # fmt: skip
        below = self.count // parent.count
        own, outer = self.component.attributes, parent.component.attributes
        columns, of_parent = own.meshX, outer.meshX or parent.count
        if columns is None:
            return below, 1
        if columns % of_parent or below % (columns // of_parent):
            self.refuse("attributes", f"have meshX {columns} of {self.count}", f"{self.count} in all, a multiple of "
                        f"{of_parent} along X")  # fmt: skip
        return columns // of_parent, below * of_parent // columns

    def refuse(self, field: str, message: str, help: str) -> NoReturn:
        raise InvalidFile(f"{field} of {self.name} {message}", where=self.where((*self.place, field)), help=help)

    @property
    def _facts(self) -> schema.StorageFacts:
        facts = self.component.attributes
        assert isinstance(facts, schema.StorageFacts), "bug: arithmetic units hold nothing"
        return facts

    @property
    def _block(self) -> int:
        return self._facts.block_size or max(1, (self._facts.width or 0) // self.word_bits)

    @property
    def _words(self) -> int | None:
        facts = self._facts
        if facts.sizeKB is not None:
            return facts.sizeKB * 1024 * 8 // self.word_bits
        return facts.entries if facts.depth is None else facts.depth * self._block
