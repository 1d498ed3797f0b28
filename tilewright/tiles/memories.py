"""What the memories of a machine hold while a tile tree runs, and what moves when a child asks for its slices.

`Memories` has the rules of spec 1, section 5.4, with slices as values of any type, for walks of a tree (`brute`). Where
a program is watched (`touched`), slices are rows of elements (`held_slices`), and `Movement` counts what moves too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from tilewright.dataclass import dataclass
from tilewright.tiles.topology import LoopAt, Topology
from tilewright.tiles.traffic import Moved, Traffic
from tilewright.tiles.tree import Kind, Path, Scope

Slice = TypeVar("Slice")
Place = tuple[int, ...]
#: One memory instance, for one tensor: the nest that fills it, the tensor, the spatial tiles whose children share it,
#: and the iterations of spatial loops that run on it.
Key = tuple[Path, str, tuple[Path, ...], Place]


#: How many iterations of each spatial loop one stands for, by loop: those that hold equal slices at other places.
Iterations = Mapping[LoopAt, Mapping[int, int]]


@dataclass
class _State(Generic[Slice]):
    """The slice of a tensor in one memory instance, and what of it the level outside lacks, if anything.

    `visit` is the number of the visit that left it there.
    """

    slice: Slice
    dirty: Slice | None
    visit: int


class _Instance(NamedTuple):
    """A memory instance: which one reads and stores for it, how many it stands for, and how many different slices."""

    holder: Key
    instances: int
    slices: int


class Movement:
    """What has moved so far between the memories of a tree, each of which may stand for several.

    What moves counts `times` times: a step may stand for several. An iteration of a spatial loop stands for as many as
    `iterations` has.
    """

    def __init__(
        self, topology: Topology, *, compat_evict: bool = False, iterations: Iterations | None = None
    ) -> None:  # fmt: skip
        self.topology, self.compat_evict = topology, compat_evict
        self.iterations = iterations or {}
        self.counts: dict[tuple[Path, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        self.times = 1
        self._instances: dict[Key, _Instance] = {}

    def fill(self, key: Key, elements: int, first: bool | None = None) -> None:
        """Count what is brought to an instance; and as read, unless another one, the `first`, reads it for all."""
        counts, instance = self.counts[key[:2]], self.instance(key)
        counts[1] += elements * instance.instances * self.times
        together = self.topology.levels[self.topology.level(key[0])].multicast
        if not together or (instance.holder == key if first is None else first):
            counts[0] += elements * (instance.slices if together else instance.instances) * self.times

    def store(self, key: Key, elements: int) -> None:
        """Count what is stored, if no other instance stores the same slice."""
        instance = self.instance(key)
        if instance.holder == key:
            self.counts[key[:2]][2] += elements * instance.slices * self.times

    def ended(self, path: Path, scope: Scope, number: int) -> frozenset[tuple[Path, str, tuple[Path, ...]]]:
        """The memories, of any place, of what the child after a child of a scope does not need."""
        topology = self.topology
        evicts = scope.kind is Kind.SEQ or (self.compat_evict and scope.kind is Kind.PIPE)
        around = topology.around(path)
        last = number == len(scope.children) - 1
        in_scope = bool(path) and isinstance(topology.nodes[path[:-1]], Scope)
        if not evicts or not around or (last and in_scope):
            return frozenset()
        top = topology.top(around[-1])
        level = topology.level(top)
        needed = topology.crossing((*path, 0 if last else number + 1), level) | topology.kept(path)
        done = (*path, number)
        ended = [visit for visit in topology.visits(top) if visit[: len(done)] == done]
        return frozenset(
            (top, tensor, topology.par_tiles(visit))
            for visit in ended
            for tensor in topology.crossing(visit, level) - needed
        )

    def traffic(self) -> Traffic:
        """What has moved, once the run is over."""
        moved: dict[Path, dict[str, Moved]] = {top: {} for top in self.topology.tops}
        for (top, tensor), (loads, fills, stores) in self.counts.items():
            moved[top][tensor] = Moved(loads, fills, stores)
        return self.topology.traffic(moved)

    def instance(self, key: Key) -> _Instance:
        """What a memory instance stands for.

        Of instances that hold the same slice, the one at the first iterations of the spatial loops is the holder.
        """
        if key not in self._instances:
            top, tensor, tiles, place = key
            visit = next(v for v in self.topology.visits(top) if self.topology.par_tiles(v) == tiles)
            loops = [loop for loop in self.topology.above(visit) if loop.spatial]
            moving = self.topology.moving(top, tensor, tiles)
            first, instances, slices = [], 1, 1
            for loop, iteration in zip(loops, place, strict=True):
                own = loop.axis in moving or loop.level != self.topology.level(top)
                alike = self.iterations[loop][iteration] if loop in self.iterations else 1
                first.append(iteration if own else 0)
                instances, slices = instances * alike, slices * alike if own else slices
            self._instances[key] = _Instance((top, tensor, tiles, tuple(first)), instances, slices)
        return self._instances[key]


class Memories(Movement, Generic[Slice]):
    """The slices that memories hold, and what has moved so far.

    `lacking(a, b)` is how many elements of slice `a` are not in `b`; all of them where `b` is None.
    """

    def __init__(
        self, topology: Topology, lacking: Callable[[Slice, Slice | None], int], *, compat_evict: bool = False,
        iterations: Iterations | None = None,
    ) -> None:  # fmt: skip
        super().__init__(topology, compat_evict=compat_evict, iterations=iterations)
        self.lacking, self.visits = lacking, 0
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
        self.visits += 1
        state, new = self.states.get(key), 0
        if reads is not None:
            stays = state is not None and (writes or self.topology.retains(key[0]))
            new = self.lacking(reads, state.slice if state is not None and stays else None)
        self.fill(key, new, first)
        if state is not None and state.dirty is not None:
            self.store(key, self.lacking(state.dirty, need if writes else None))
        self.states[key] = _State(need, (need if written is None else written) if writes else None, self.visits)

    def drop(self, key: Key) -> None:
        """Give a slice up."""
        state = self.states.pop(key)
        if state.dirty is not None:
            self.store(key, self.lacking(state.dirty, None))

    def move(self, visits: int, moved: Callable[[Key, Slice], Slice]) -> None:
        """Put the slices that later visits than the first `visits` have left where `moved` says."""
        for key, state in self.states.items():
            if state.visit > visits:
                state.slice = moved(key, state.slice)
                state.dirty = None if state.dirty is None else moved(key, state.dirty)

    def evict(self, path: Path, scope: Scope, number: int) -> None:
        """Drop what the child after a child of a scope does not need."""
        ended = self.ended(path, scope, number)
        for key in [key for key in self.states if key[:3] in ended]:
            self.drop(key)

    def traffic(self) -> Traffic:
        """What has moved once the run is over; what is still to be stored is stored."""
        for key in list(self.states):
            self.drop(key)
        return super().traffic()
