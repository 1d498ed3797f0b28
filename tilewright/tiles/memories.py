"""What the memories of a machine hold while a tile tree runs, and what moves when a child asks for its slices.

These are the rules of spec 1, section 5.4, with slices as values of any type: intervals along each dimension (`brute`),
sets of addresses where a program was watched (`touched`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Generic, TypeVar

from tilewright.dataclass import dataclass
from tilewright.tiles.topology import Topology
from tilewright.tiles.traffic import Moved, Traffic
from tilewright.tiles.tree import Kind, Path, Scope

Slice = TypeVar("Slice")
Place = tuple[int, ...]
#: One memory instance, for one tensor: the nest that fills it, the tensor, the spatial tiles whose children share it,
#: and the iterations of spatial loops that run on it.
Key = tuple[Path, str, tuple[Path, ...], Place]


@dataclass
class _State(Generic[Slice]):
    """The slice of a tensor in one memory instance, and what of it the level outside lacks, if anything."""

    slice: Slice
    dirty: Slice | None


class Memories(Generic[Slice]):
    """The slices that memories hold, and what has moved so far.

    `lacking(a, b)` is how many elements of slice `a` are not in `b`; all of them where `b` is None.
    """

    def __init__(
        self, topology: Topology, lacking: Callable[[Slice, Slice | None], int], *, compat_evict: bool = False
    ) -> None:
        self.topology, self.lacking, self.compat_evict = topology, lacking, compat_evict
        self.counts: dict[tuple[Path, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        self.states: dict[Key, _State[Slice]] = {}

    def visit(
        self, key: Key, need: Slice, reads: Slice | None, *, writes: bool, written: Slice | None = None,
        first: bool | None = None,
    ) -> None:  # fmt: skip
        """Bring the slice that a child needs of a tensor; of it the child `reads` a part, or nothing.

        What is not there yet of what it reads is loaded. What another child wrote, or this one and needs no more, is
        stored. A child that `writes` the tensor leaves all of the slice to be stored, or what is `written` of it. Of
        instances that read one slice together, the `first` one reads it for all: unless that is given, the one at the
        first iterations of the spatial loops.
        """
        counts, state = self.counts[key[:2]], self.states.get(key)
        if reads is not None:
            stays = state is not None and (writes or self.topology.retains(key[0]))
            new = self.lacking(reads, state.slice if state is not None and stays else None)
            counts[1] += new
            together = self.topology.levels[self.topology.level(key[0])].multicast
            if not together or (self.stores_itself(key) if first is None else first):
                counts[0] += new
        if state is not None and state.dirty is not None and self.stores_itself(key):
            counts[2] += self.lacking(state.dirty, need if writes else None)
        self.states[key] = _State(need, (need if written is None else written) if writes else None)

    def drop(self, key: Key) -> None:
        """Give a slice up."""
        state = self.states.pop(key)
        if state.dirty is not None and self.stores_itself(key):
            self.counts[key[:2]][2] += self.lacking(state.dirty, None)

    def evict(self, path: Path, scope: Scope, number: int, place: Place | None = None) -> None:
        """Drop what the child after a child of a scope does not need; of one place only, where that is given."""
        topology = self.topology
        evicts = scope.kind is Kind.SEQ or (self.compat_evict and scope.kind is Kind.PIPE)
        around = topology.around(path)
        last = number == len(scope.children) - 1
        in_scope = bool(path) and isinstance(topology.nodes[path[:-1]], Scope)
        if not evicts or not around or (last and in_scope):
            return
        top = topology.top(around[-1])
        level = topology.level(top)
        needed = topology.crossing((*path, 0 if last else number + 1), level) | topology.kept(path)
        done = (*path, number)
        ended = [visit for visit in topology.visits(top) if visit[: len(done)] == done]
        held = {(t, topology.par_tiles(v)) for v in ended for t in topology.crossing(v, level) - needed}
        for key in [key for key in self.states if key[0] == top and key[1:3] in held and place in (None, key[3])]:
            self.drop(key)

    def traffic(self) -> Traffic:
        """What has moved once the run is over; what is still to be stored is stored."""
        for top, tensor, *_ in self.states:
            self.counts[top, tensor]  # every tensor has an entry
        for key in list(self.states):
            self.drop(key)
        moved: dict[Path, dict[str, Moved]] = {top: {} for top in self.topology.tops}
        for (top, tensor), (loads, fills, stores) in self.counts.items():
            moved[top][tensor] = Moved(loads, fills, stores)
        return self.topology.traffic(moved)

    def stores_itself(self, key: Key) -> bool:
        """Whether no other instance stores the same slice for it."""
        return self.first_holder(key)[3] == key[3]

    def first_holder(self, key: Key) -> Key:
        """Of the instances that hold the same slice, the one at the first iterations of the spatial loops."""
        top, tensor, tiles, place = key
        visit = next(v for v in self.topology.visits(top) if self.topology.par_tiles(v) == tiles)
        loops = [loop for loop in self.topology.above(visit) if loop.spatial]
        moving = self.topology.moving(top, tensor, tiles)
        own = (loop.axis in moving or loop.level != self.topology.level(top) for loop in loops)
        return top, tensor, tiles, tuple(value if moves else 0 for value, moves in zip(place, own, strict=True))
