"""Barriers of a block (`bar`, `barrier`) and of a cluster: who has arrived, who waits, what that orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulator.lanes import Lanes, State
from tilewright.emulator.scalars import Array

if TYPE_CHECKING:
    from tilewright.emulator.schedule import Scheduler

BARRIERS = 16


class Barriers:
    """The 16 barriers of each block, and the barrier of each cluster."""

    def __init__(self, state: State, cluster_of: Array) -> None:
        self.state = state
        # Threads, whether they wait, and what those knew at that time that do not.
        self.arrived: dict[tuple[int, int], list[tuple[Array, bool, Array | None]]] = {}
        self.expected: dict[tuple[int, int], int] = {}
        self.finish: dict[tuple[int, int], Callable[[Array], None]] = {}
        self.resume = np.zeros(state.size, np.int64)
        self.cluster_of = cluster_of  # of each block of the chunk
        clusters = int(cluster_of.max()) + 1
        self.cluster_phase = np.zeros(clusters, np.int64)
        self.cluster_target = np.zeros(state.size, np.int64)
        self.cluster_since = np.zeros(clusters, np.int64)  # first arrival of the open phase
        self.cluster_left = np.zeros(clusters, np.int64)  # threads that have waited for the last phase
        # What the threads that arrived knew: of the open phase, and of the last one with its first arrival.
        self.cluster_gathered: dict[int, Array] = {}
        self.cluster_known: dict[int, tuple[Array, int]] = {}

    def arrive(
        self, lanes: Lanes, scheduler: Scheduler, at: int, numbers: Array, count: Array | None, waits: bool,
        finish: Callable[[Array], None] | None = None,
    ) -> bool:  # fmt: skip
        """Threads arrive at barriers `numbers`, for `count` threads or all; True if all of them may go on at once.

        `finish` is called with the threads of each barrier that is complete, before they go on.
        """
        state = self.state
        positions = lanes.positions()
        if count is None and waits and not self.arrived and lanes.count == int(state.alive.sum()) == state.size:
            state.clocks.block_barrier(np.arange(len(state.blocks)))
            scheduler.progress += 1
            if finish is not None:
                for block in range(len(state.blocks)):
                    finish(positions[block * state.threads : (block + 1) * state.threads])
            return True
        keys = state.block_of[positions] * BARRIERS + numbers
        passed = np.zeros(0, np.int64)
        held = []
        for key in np.unique(keys).tolist():
            mine = keys == key
            group = positions[mine]
            block, number = divmod(key, BARRIERS)
            if count is not None:
                self.expected[block, number] = int(count[mine][0])
            known = None if waits else state.clocks.known(block, group % state.threads)
            self.arrived.setdefault((block, number), []).append((group, waits, known))
            self.resume[group] = at + 1
            if waits:
                held.append(group)
                scheduler.waiting.setdefault(at, []).append(group)
            if finish is not None:
                self.finish[block, number] = finish
            if self._complete(block, number, lanes):
                passed = np.concatenate([passed, self._release(block, number, scheduler)])
        if not waits:
            self._let_go(scheduler, passed)
            return True
        self._let_go(scheduler, passed)
        return False

    def _complete(self, block: int, number: int, lanes: Lanes) -> bool:
        total = sum(len(group) for group, _, _ in self.arrived[block, number])
        expected = self.expected.get((block, number))
        if expected is None:
            return total >= self._living(block)
        if total > expected:
            lanes.report("barrier-divergence", f"{total} threads arrive at barrier {number}, which expects {expected}")
        return total >= expected

    def _living(self, block: int) -> int:
        start = block * self.state.threads
        return int(self.state.alive[start : start + self.state.threads].sum())

    def _living_in(self, cluster: int) -> int:
        return int(self.state.alive[self.cluster_of[self.state.block_of] == cluster].sum())

    def _release(self, block: int, number: int, scheduler: Scheduler) -> Array:
        state = self.state
        groups = self.arrived.pop((block, number))
        self.expected.pop((block, number), None)
        everyone = np.concatenate([group for group, _, _ in groups])
        finish = self.finish.pop((block, number), None)
        if finish is not None:
            finish(everyone)
        leaving = [group for group, waits, _ in groups if waits]
        if len(everyone) >= self._living(block) and len(leaving) == len(groups):
            state.clocks.block_barrier(np.array([block]))
        elif leaving:
            facts = [
                state.clocks.known(block, group % state.threads) if known is None else known
                for group, _, known in groups
            ]
            state.clocks.learn(block, np.concatenate(leaving) % state.threads, np.max(facts, axis=0))
        scheduler.happened()
        return np.concatenate(leaving) if leaving else np.zeros(0, np.int64)

    def _let_go(self, scheduler: Scheduler, positions: Array) -> None:
        if not len(positions):
            return
        for at, parts in list(scheduler.waiting.items()):
            left = [part[~np.isin(part, positions)] for part in parts]
            scheduler.waiting[at] = [part for part in left if len(part)]
            if not scheduler.waiting[at]:
                del scheduler.waiting[at]
        positions = np.sort(positions)
        for at in np.unique(self.resume[positions]).tolist():
            scheduler.push(int(at), positions[self.resume[positions] == at])

    def gone(self, lanes: Lanes, scheduler: Scheduler) -> None:
        """Threads have exited: barriers of whole blocks and clusters no longer wait for them (PTX ISA, `exit`)."""
        for block, number in list(self.arrived):
            waits = any(waits for _, waits, _ in self.arrived[block, number])
            if waits and (block, number) not in self.expected and self._complete(block, number, lanes):
                self._let_go(scheduler, self._release(block, number, scheduler))
        if self.cluster_target.any():
            self._settle_clusters(self.cluster_of[self.state.block_of[lanes.positions()]], scheduler)

    # Clusters

    def cluster_arrive(self, lanes: Lanes, scheduler: Scheduler) -> None:
        state = self.state
        positions = lanes.positions()
        homes = state.block_of[positions]
        clusters = self.cluster_of[homes]
        self.cluster_target[positions] = self.cluster_phase[clusters] + 1
        for cluster in np.unique(clusters).tolist():
            mine = clusters == cluster
            before = self.cluster_gathered.get(cluster)
            if before is None:
                self.cluster_since[cluster] = state.clocks.now
            if before is None and int(mine.sum()) == self._living_in(cluster):  # nobody did anything since
                self.cluster_gathered[cluster] = np.full(state.clocks.columns, state.clocks.now)
                continue
            facts = [] if before is None else [before]
            for block in np.unique(homes[mine]).tolist():
                facts.append(state.clocks.known(block, positions[homes == block] % state.threads))
            self.cluster_gathered[cluster] = np.max(facts, axis=0)
        self._settle_clusters(clusters, scheduler)

    def _settle_clusters(self, clusters: Array, scheduler: Scheduler) -> None:
        """Complete the phases for which every thread that has not exited has arrived."""
        state = self.state
        for cluster in np.unique(clusters).tolist():
            living = state.alive & (self.cluster_of[state.block_of] == cluster)
            if living.any() and (self.cluster_target[living] > self.cluster_phase[cluster]).all():
                self.cluster_phase[cluster] += 1
                self.cluster_left[cluster] = 0
                self.cluster_known[cluster] = self.cluster_gathered.pop(cluster), int(self.cluster_since[cluster])
                scheduler.happened()

    def cluster_passed(self, lanes: Lanes) -> Array:
        """Which threads may leave ``barrier.cluster.wait``."""
        state, positions = self.state, lanes.positions()
        homes = state.block_of[positions]
        passed = np.asarray(self.cluster_phase[self.cluster_of[homes]] >= self.cluster_target[positions])
        for cluster in np.unique(self.cluster_of[homes[passed]]).tolist():
            if cluster not in self.cluster_known:
                continue
            mine = passed & (self.cluster_of[homes] == cluster)
            known, since = self.cluster_known[cluster]
            blocks = np.flatnonzero(self.cluster_of == cluster)
            self.cluster_left[cluster] += int(mine.sum())
            everyone = self.cluster_left[cluster] >= self._living_in(cluster)
            if not everyone or known.max() > since:  # else their floor says it all
                for block in np.unique(homes[mine]).tolist():
                    state.clocks.learn(block, positions[mine & (homes == block)] % state.threads, known)
            if everyone:
                state.clocks.cluster_barrier(blocks, since)
        return passed
