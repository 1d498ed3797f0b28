"""Which accesses of a block lie between which barriers, along every course that the kernel can take.

A course is a straight line: what the accesses of a stretch touch, and the barriers between stretches. A loop stands
there three times, as any two of its trips are ordered like two of three: neighbours are, or a whole trip lies between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product

from xdsl.dialects import scf
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Block, Operation, SSAValue

from tilewright.kernel.dialect import (
    AllocOp,
    FuncOp,
    GatherOp,
    LoadOp,
    PrefetchOp,
    ReturnOp,
    StoreOp,
    operations,
    written_view,
)
from tilewright.kernel.hopper.simt_launches import LaunchDependentsOp, WaitForLaunchesOp
from tilewright.kernel.passes.common.effects import PURE
from tilewright.kernel.passes.common.rules.control import trips
from tilewright.kernel.simt import (
    AsyncCopyOp,
    AtomicOp,
    BarrierOp,
    CommitOp,
    LoadFragmentOp,
    LoadMatrixOp,
    MmaOp,
    SharedOp,
    ShuffleOp,
    StoreFragmentOp,
    StoreMatrixOp,
    WaitOp,
)

READ, WRITE, ARRIVED = 1, 2, 4
Stretch = dict[SSAValue, int]
"""What is done to which view, some of READ, WRITE and ARRIVED added; the last says that copies to it were waited for,
which others see behind a barrier. What comes before the wait is ordered with the start of the copies, if with any."""
Course = list[Stretch | BarrierOp]

_KNOWN = frozenset((
    AllocOp, AsyncCopyOp, AtomicOp, BarrierOp, CommitOp, GatherOp, LaunchDependentsOp, LoadFragmentOp, LoadMatrixOp,
    LoadOp, MmaOp, PrefetchOp, ReturnOp, SharedOp, ShuffleOp, StoreFragmentOp, StoreMatrixOp, StoreOp,
    WaitForLaunchesOp, WaitOp, scf.ForOp, scf.IfOp, scf.YieldOp,
))  # fmt: skip
_TRIPS = 3
_UNSURE = 3  # loops that may have no trip, of which every combination is a course


class Order:
    """The courses of a kernel in distributed form.

    `known` is False where an operation orders memory in another way, a barrier stands in a branch, or too many loops
    with barriers have bounds that are not constant.
    """

    def __init__(self, kernel: FuncOp) -> None:
        ops = operations(kernel.body)
        self.barriers = [op for op in ops if type(op) is BarrierOp]
        copies = [op for op in ops if type(op) is AsyncCopyOp]
        self.arriving = {op.target: ARRIVED for op in copies} | {op.source: READ for op in copies}
        loops = [op for op in ops if type(op) is scf.ForOp and trips(op) is None and _has_barrier(op)]
        branches = [op for op in ops if type(op) is scf.IfOp and _has_barrier(op)]
        plain = all(type(op) in _KNOWN or op.name in PURE for op in ops)
        whole = all(barrier.number is None for barrier in self.barriers)
        self.known = plain and whole and not branches and len(loops) <= _UNSURE
        self.courses: list[Course] = []
        for taken in product((True, False), repeat=len(loops)) if self.known else ():
            course: Course = []
            self._walk(kernel.body.block, course, {loop for loop, there in zip(loops, taken, strict=True) if not there})
            self.courses.append(course)

    def touched(self, op: Operation) -> Stretch:
        """What an operation without regions does to views that threads share."""
        if type(op) is WaitOp:
            return dict(self.arriving)
        written = written_view(op)
        found: Stretch = {}
        for operand in op.operands:
            if type(operand.type) is MemRefType and type(operand.owner) is not AllocOp:
                found[operand] = found.get(operand, 0) | (WRITE if operand is written else READ)
        return found

    def _walk(self, block: Block, course: Course, skipped: set[scf.ForOp]) -> None:
        for op in block.ops:
            if type(op) is BarrierOp:
                course.append(op)
            elif type(op) is scf.ForOp:
                count = trips(op)
                for _ in range(0 if op in skipped else _TRIPS if count is None else min(_TRIPS, count)):
                    self._walk(op.body.block, course, skipped)
            elif type(op) is scf.IfOp:
                for region in op.regions:
                    for inner in region.blocks:
                        self._walk(inner, course, skipped)
            elif touched := self.touched(op):
                if not course or isinstance(course[-1], BarrierOp):
                    course.append({})
                last = course[-1]
                assert not isinstance(last, BarrierOp)
                for view, modes in touched.items():
                    last[view] = last.get(view, 0) | modes


def stretches(course: Course, without: Iterable[BarrierOp] = ()) -> Iterator[list[Stretch]]:
    """The stretches of a course that no barrier separates, where some barriers are left out."""
    left_out, together = set(without), list[Stretch]()
    for item in course:
        if not isinstance(item, BarrierOp):
            together.append(item)
        elif item not in left_out:
            yield together
            together = []
    yield together


def clash(earlier: Stretch, later: Stretch, overlaps: Mapping[SSAValue, frozenset[SSAValue]]) -> bool:
    """Whether a stretch must be ordered with an earlier one; `overlaps` says which views share memory."""
    for view, before in earlier.items():
        for same in overlaps.get(view, (view,)):
            after = later.get(same, 0)
            if after & WRITE or (before & (WRITE | ARRIVED) and after & READ):
                return True
    return False


def overlapping(kernel: FuncOp) -> dict[SSAValue, frozenset[SSAValue]]:
    """For every view of shared memory that has a place: the views that lie over it, itself among them."""
    placed = [op for op in operations(kernel.body) if isinstance(op, SharedOp) and op.offset is not None]

    def start(op: SharedOp) -> int:
        assert op.offset is not None
        return int(op.offset.value.data)

    return {
        one.result: frozenset(
            other.result
            for other in placed
            if start(one) < start(other) + other.bytes and start(other) < start(one) + one.bytes
        )
        for one in placed
    }


def _has_barrier(op: Operation) -> bool:
    return any(isinstance(inner, BarrierOp) for inner in op.walk())
