"""One block of a kernel in the making: what stands for its values, and what lies in shared memory to be read."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import Block, Operation, SSAValue

from tilewright.dataclass import dataclass
from tilewright.kernel import dialect as tile
from tilewright.kernel.axis_info import AxisAnalysis
from tilewright.kernel.passes.gpu.distribution.threads import Threads


@dataclass(frozen=True)
class Settings:
    """How the tiles of a kernel are expanded, and what is known of the kernel.

    `memory` is one of `MEMORIES`, of conversions; `at_once` are the bytes of those that pass through memory together.
    `read` are views that the kernel loads from: its stores to them are seen by all threads. Kernels with gathers have
    `facts`.
    """

    memory: str
    matrix_loads: bool
    outer_product: bool
    at_once: int
    read: frozenset[SSAValue]
    facts: AxisAnalysis | None


@dataclass(frozen=True)
class Written:
    """A conversion that lies in memory, its bytes, and how to read it behind the next barrier."""

    bytes: int
    read: Callable[[], SSAValue]


class Expansion(Threads):
    """A block: `values` says what stands for a value, of a tile what the thread holds of it."""

    def __init__(
        self, block: Block, values: dict[SSAValue, SSAValue], settings: Settings, outside: Expansion | None = None
    ) -> None:
        super().__init__(block, outside)
        self.values, self.settings = values, settings
        self.waiting: dict[tile.ConvertOp, Written] = {}

    def inside(self, block: Block) -> Expansion:
        """A block within this one, which knows the values so far."""
        return Expansion(block, {**self.values}, self.settings, self)

    def locate(self, op: Operation, before: Operation | None) -> None:
        """What was made for an operation, behind `before`, has its place in the source, and its results their names."""
        for result in () if op in self.waiting else op.results:
            value = self.values[result]
            value.name_hint = value.name_hint or result.name_hint
        made = self.target.first_op if before is None else before.next_op
        while made is not None:
            made.location = op.location
            made = made.next_op
