"""Which threads run next: groups of threads at the same instruction, the one furthest behind first.

Threads that part at a branch become groups of their own and are one group again where they meet. An instruction that
needs several lanes of a warp waits until they are there. Groups that only turn in loops step back behind the others
after a while, so that threads they wait for get their turn.
"""

from __future__ import annotations

import numpy as np

from tilewright.emulator.lanes import Index, Lanes, State, Step, as_index
from tilewright.emulator.scalars import Array

_PATIENCE = 1000  # steps that a group waits before those that turn in loops step back behind it
_TIME_LIMITS = 3  # how often stalled waits may return without success before it is a deadlock


class Scheduler:
    """Runs the steps of a program for all threads of a chunk."""

    def __init__(self, state: State, steps: list[Step], limit: int) -> None:
        self.state = state
        self.steps = steps
        self.limit = self.left = limit
        self.groups: dict[int, list[Array]] = {}
        self.parked: dict[int, list[Array]] = {}  # waiting for other lanes of their warp
        self.sleeping: dict[int, list[Array]] = {}  # waiting for an mbarrier, a cluster, registers
        self.waiting: dict[int, list[Array]] = {}  # at a barrier: not run again until it lets them go
        self.waits_since: dict[int, int] = {}  # by instruction, in steps left
        self.spinning = (1, 0)  # first and last instruction of loops that step back
        self.visited = (1 << 60, 0)
        self.progress = 0  # events that others may have waited for
        self.hurried = np.zeros(state.size, np.bool_)  # threads whose wait returns without success, once
        self.push(0, np.flatnonzero(state.alive))

    def run(self) -> None:
        stalls, last = 0, -1
        while True:
            while self.groups:
                at = self._choose()
                index = self._take(at)
                self._run_from(at, index)
                if self.state.launch.stopped:
                    return
            stalls = stalls + 1 if self.progress == last else 0
            last = self.progress
            if not self.sleeping or stalls >= _TIME_LIMITS:
                break
            for parts in self.sleeping.values():
                self.hurried[np.concatenate(parts)] = True
            self.wake()
        self._report_stuck()

    def _choose(self) -> int:
        """The group furthest behind; those in a loop that others wait for too long only if there is no other."""
        if max(self.waits_since[at] for at in self.groups) - self.left > _PATIENCE:
            self.spinning, self.visited = self.visited, (1 << 60, 0)
            self.waits_since = dict.fromkeys(self.groups, self.left)
        first, last = self.spinning
        at = min((at for at in self.groups if not first <= at <= last), default=min(self.groups))
        self.visited = (min(self.visited[0], at), max(self.visited[1], at))
        return at

    def _take(self, at: int) -> Index:
        self.waits_since.pop(at, None)
        parts = self.groups.pop(at) + self.parked.pop(at, [])
        if len(parts) == 1:
            return as_index(parts[0])
        return as_index(np.sort(np.concatenate(parts)))

    def push(self, at: int, positions: Array) -> None:
        """Threads go on at an instruction."""
        if len(positions):
            self.groups.setdefault(at, []).append(positions)
            self.waits_since.setdefault(at, self.left)

    def sleep(self, at: int, positions: Array) -> None:
        """Threads repeat the instruction when an mbarrier has changed."""
        if len(positions):
            self.sleeping.setdefault(at, []).append(positions)

    def wake(self) -> None:
        for at, parts in self.sleeping.items():
            for part in parts:
                self.push(at, part)
        self.sleeping = {}

    def happened(self) -> None:
        """Something that sleeping threads may wait for."""
        self.progress += 1
        self.hurried[:] = False
        self.wake()

    def unpark(self) -> None:
        """Lanes that others wait for have gone: look again."""
        for at, parts in self.parked.items():
            for part in parts:
                self.push(at, part)
        self.parked = {}

    def stop(self) -> None:
        """Nothing runs any more, here and in later blocks."""
        self.state.launch.stopped = True
        self.groups.clear()

    def _run_from(self, at: int, index: Index) -> None:
        """Run a group until it meets another, splits or waits, or the launch stops."""
        state, steps = self.state, self.steps
        clocks, counts, undefined, in_flight = state.clocks, state.counts, state.undefined, state.in_flight
        lanes = Lanes(state, index, _count(index), steps[at])
        warps = _warps(state, lanes)
        written_at, started = state.written_at, self.left
        limit = self._limit(at)
        while True:
            step = steps[at]
            lanes.step = step
            clocks.now += 1
            self.left -= 1
            if self.left < 0:
                message = f"the limit of {self.limit:,} executed instructions was reached here"
                lanes.report("no-end", f"{message}; --limit, or limit=, sets a higher one")
                self.stop()
                return
            active, active_warps = lanes, warps
            if step.guard is not None:
                if undefined:
                    lanes.require((step.guard,), "the guard")
                mask = state.registers[step.guard][lanes.index]
                if step.negated:
                    mask = ~mask
                if not mask.all():
                    active = lanes.only(mask)
                    active_warps = _warps(state, active) if active.count else 0
            if active.count and step.meeting is not None:
                ready = self._gather(at, active)
                if ready is not None:
                    rest = self._without(active, ready)
                    self.parked.setdefault(at, []).append(rest)
                    stay = self._without(lanes, rest)
                    if not len(stay):
                        return
                    lanes = Lanes(state, as_index(stay), len(stay), step)
                    warps = _warps(state, lanes)
                    active = Lanes(state, as_index(ready), len(ready), step)
                    active_warps = _warps(state, active) if len(ready) else 0
                    if len(ready) == len(stay):
                        active = lanes
            if not active.count:
                counts.instruction("predicated-off", warps, 0)
                at += 1
                if at >= limit or at in self.parked:
                    break
                continue
            counts.instruction(step.group, active_warps, active.count)
            if in_flight and not step.uses_products and not in_flight.keys().isdisjoint(step.joined):
                self._report_in_flight(active)
            if step.control is None:
                assert step.run is not None, "a step runs or controls"
                step.run(active)
                following: int | None = at + 1
            else:
                following = step.control(active, self, at)
            if undefined and not step.own_taint and not undefined.keys().isdisjoint(step.joined):
                if step.taint is not None:
                    step.taint(active)
                else:
                    active.define(step.writes, active.undefined(step.reads))
            if written_at and not step.uses_products:
                for slot in step.writes:
                    if slot in written_at:
                        written_at[slot][active.index] = clocks.now
            if step.control is None:
                at += 1
            else:
                if active is not lanes and following != at + 1:
                    self.push(at + 1, self._without(lanes, active.positions()))
                    if following is not None:
                        self.push(following, active.positions())
                    return
                if following is None:
                    return
                if following <= at and self.groups and started - self.left > _PATIENCE:
                    self.visited = (min(self.visited[0], following), max(self.visited[1], at))
                    self.push(following, lanes.positions())
                    return
                at = following
                limit = self._limit(at)
            if at >= limit or at in self.parked:  # others are there: go on together
                break
        self.push(at, lanes.positions())

    def _limit(self, at: int) -> int:
        """Up to where a group at `at` may run: to the first of the others, but past those that step back."""
        first, last = self.spinning
        if first <= at <= last:
            return min((other for other in self.groups if other >= at), default=1 << 60)
        return min((other for other in self.groups if not first <= other <= last), default=1 << 60)

    def _gather(self, at: int, lanes: Lanes) -> Array | None:
        """Of lanes at an instruction that needs others of their warps, those that can go; None if all can."""
        state = self.state
        step = lanes.step
        assert step.meeting is not None, "asked for"
        needed = step.meeting(lanes)
        if isinstance(needed, int) and lanes.all_of_chunk() and state.threads % (32 * step.warps) == 0:
            return None
        positions = lanes.positions()
        warp, lane = state.warp_of[positions], state.lane_of[positions]
        here = np.zeros(state.size // 32, np.uint32)
        np.bitwise_or.at(here, warp, np.uint32(1) << lane.astype(np.uint32))
        living = np.packbits(state.alive.reshape(-1, 4, 8), axis=-1, bitorder="little").reshape(-1, 4).view("<u4")[:, 0]
        wanted = np.broadcast_to(np.asarray(needed & 0xFFFFFFFF if isinstance(needed, int) else needed, np.uint32),
                                 positions.shape)  # fmt: skip
        ready = (wanted & living[warp] & ~here[warp]) == 0
        if step.warps > 1:
            size = 32 * step.warps
            group = positions // size
            gathered = np.bincount(group[ready], minlength=-(-state.size // size))
            ready &= (gathered == size)[group]
        return None if ready.all() else positions[ready]

    @staticmethod
    def _without(lanes: Lanes, gone: Array) -> Array:
        positions = lanes.positions()
        return positions[~np.isin(positions, gone)]

    def _report_in_flight(self, lanes: Lanes) -> None:
        for slot in sorted(self.state.in_flight.keys() & lanes.step.joined):
            uses = self.state.in_flight[slot]
            if "result" in uses and uses["result"][lanes.index].any():
                wrong = np.flatnonzero(uses["result"][lanes.index])
                lanes.report("early-read", "a register of a product is used before the wait for it", wrong)
                return
            if slot in lanes.step.writes and "source" in uses and uses["source"][lanes.index].any():
                wrong = np.flatnonzero(uses["source"][lanes.index])
                lanes.report("overwritten", "a register is written while a pending product still reads it", wrong)
                return

    def _report_stuck(self) -> None:
        """Nobody can go on although not all have ended: say where they wait."""
        for what, kind, waits in (
            ("other lanes of the warp", "barrier-divergence", self.parked),
            ("a barrier", "barrier-divergence", self.waiting),
            ("an mbarrier, a cluster or registers", "deadlock", self.sleeping),
        ):
            for at, parts in waits.items():
                positions = np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)
                positions = positions[self.state.alive[positions]]
                if not len(positions):
                    continue
                lanes = Lanes(self.state, positions, len(positions), self.steps[at])
                lanes.report(kind, f"{len(positions)} threads wait here for {what} for ever", np.arange(len(positions)))


def _count(index: Index) -> int:
    return index.stop - index.start if isinstance(index, slice) else len(index)


def _warps(state: State, lanes: Lanes) -> int:
    if isinstance(lanes.index, slice):
        return int((lanes.index.stop + 31) // 32 - lanes.index.start // 32)
    return int((np.diff(state.warp_of[lanes.index]) != 0).sum()) + 1
