"""Predicted cycles of the passes over one row on a CPU, by which rules compare ways to compute the same row.

A pass has arithmetic with all data near (`operator.cycles`), and bytes that come from where they lie: inputs that no
cache holds from main memory when they are first read, all else from the smallest cache that holds what the rows under
way touch. Arithmetic and bytes hide each other but where they are equal.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis, Expr, Read, walk
from tilewright.machine.description import Cpu
from tilewright.machine.roofline import OVERLAP
from tilewright.operator.cycles import (
    accumulation_instructions,
    body_counts,
    following_instructions,
    slowest_port,
)
from tilewright.operator.passes import passes_of, row_buffers, values_read, walks_inner
from tilewright.operator.statements import Statements, covering, outer_loops
from tilewright.tiles.kernel import Statement


class RowTime:
    """What one row of a kernel takes on one of some threads, whose vectors of so many lanes run along an inner loop.

    `far` names inputs and outputs that the last cache does not hold.
    """

    def __init__(
        self, statements: Statements, vector: Axis, lanes: int, machine: Cpu, threads: int, far: Collection[str]
    ) -> None:
        self.statements, self.vector, self.lanes = statements, vector, lanes
        self.machine, self.far, self.inlined = machine, far, covering(statements)
        dram, cores = machine.dram, min(threads, machine.cores)
        memory = min(dram.core_bytes_per_second, dram.bytes_per_second / cores)
        self.memory = memory / machine.nominal_clock_hz

    def cycles(self, joined: Collection[str] = (), starts: Collection[int] = ()) -> float:
        """Cycles of a row with sums that are `joined` to other passes, in a pipeline whose stages begin at `starts`."""
        buffers = row_buffers(self.statements, joined)
        stages: list[list[list[Statement]]] = [[]]
        swept = 0
        for step in passes_of(self.statements, buffers, joined):
            if walks_inner(step[-1], self.statements):
                if swept in starts and swept:
                    stages.append([])
                swept += 1
                stages[-1].append(step)
        rate = self._rate(buffers, len(stages))
        unread = set(self.far)
        taken = [[self._pass(step, buffers, joined, rate, unread) for step in stage] for stage in stages]
        # The first passes of all stages are one sweep.
        sweeps = [[stage[0] for stage in taken], *([each] for stage in taken for each in stage[1:])]
        together = (tuple(map(sum, zip(*sweep, strict=True))) for sweep in sweeps)
        vectors = -(-self.vector.size // self.lanes)
        total: float = sum((near**OVERLAP + moved**OVERLAP) ** (1 / OVERLAP) for near, moved in together)
        return vectors * total

    def _pass(
        self,
        step: Sequence[Statement],
        buffers: Collection[str],
        joined: Collection[str],
        rate: float,
        unread: set[str],
    ) -> tuple[float, float]:
        """Cycles for one vector of a pass: of arithmetic, and of bytes. What it reads is not `unread` any more."""
        arithmetic = loads = stores = moved = 0.0
        read: dict[str, int] = {}
        for each in step:
            arithmetic += accumulation_instructions(each, self.vector)
            if each.name in joined:
                arithmetic += following_instructions(each, self.machine)
                continue
            for body in self._computed(each, buffers):
                more, loaded = body_counts(body, self.machine, self.vector, self.lanes)
                arithmetic, loads = arithmetic + more, loads + loaded
                read |= self._read(body, buffers, step)
            if each.name in self.inlined:
                stores += 1
                size = self._bytes(each.tensor.dtype)
                moved += size / (self.memory if each.name in self.far else rate)
                if each.name in buffers and rate == self.memory:
                    moved += size / rate  # a line that is written through the caches is read before
        for name, size in read.items():
            moved += size / (self.memory if name in unread else rate)
            unread.discard(name)
        return slowest_port(arithmetic, loads, stores, self.machine), moved

    def _computed(self, statement: Statement, buffers: Collection[str]) -> list[Expr]:
        """The bodies of a statement and of the values that are computed again where it reads them, each once."""
        again = {name: each for name, each in self.inlined.items() if name not in buffers and each is not statement}
        return [statement.body, *(again[name].body for name in values_read(statement.body, again) if name in again)]

    def _read(self, body: Expr, buffers: Collection[str], step: Sequence[Statement]) -> dict[str, int]:
        """Bytes of a vector of what a body reads along it: tensors, and row buffers that `step` does not fill."""
        found, filled = {}, {each.name for each in step}
        for read in (each for each in walk(body) if isinstance(each, Read)):
            form = affine(read.indices[0]) if read.indices else None
            along = form is not None and form.coefficient(self.vector) != 0
            if along or (read.tensor.name in buffers and read.tensor.name not in filled):
                found[read.tensor.name] = self._bytes(read.dtype)
        return found

    def _bytes(self, dtype: str) -> int:
        return self.lanes * dtypes.size_bytes(dtype)

    def _rate(self, buffers: Collection[str], rows: int) -> float:
        """Bytes per cycle from the smallest cache that holds what so many rows touch; of main memory, if none does.

        What all rows read is there once, and what bypasses the caches is not.
        """
        outer, touched = outer_loops(self.statements), dict.fromkeys(buffers, rows * self._bytes("f32"))
        for each in self.statements:
            for read in walk(each.body):
                form = affine(read.indices[0]) if isinstance(read, Read) and read.indices else None
                if isinstance(read, Read) and form is not None and form.coefficient(self.vector):
                    own = any(form.coefficient(axis) for axis in outer)
                    touched[read.tensor.name] = (rows if own else 1) * self._bytes(read.dtype)
            if each.address is not None and each.name in self.inlined and each.name not in self.far:
                touched[each.name] = self._bytes(each.tensor.dtype)
        needed = sum(touched.values()) * self.vector.size // self.lanes
        level = next((cache for cache in self.machine.caches if needed <= cache.bytes), None)
        if level is None:
            return self.memory
        return level.bytes_per_cycle or self.machine.vector_bits / 8
