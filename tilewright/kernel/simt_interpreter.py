"""The reference interpreter of the distributed form, in NumPy: what blocks of threads do, checked at every access.

The threads of a group run the body together: a value is an array whose first axis is the thread (of extent 1 where all
threads have the same), and a mask says which of them are there. A group runs to the next barrier before the next group
does; groups are the whole block, or its warps in some order. Order changes nothing but what atomic operations give:
anything else that could depend on it is a race, which `simt_memory` reports, whoever comes first.

Asynchronous copies land when the thread that started them waits for their group. Errors are InvalidProgram with the
kernel, the block, a thread and the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import Any, Literal, NoReturn, get_args

import numpy as np
from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tilewright.errors import InvalidArgument, InvalidProgram
from tilewright.kernel import simt_fragments as fragments
from tilewright.kernel.arrays import WHOLE
from tilewright.kernel.dialect import (
    AllocOp,
    BlockRankOp,
    FuncOp,
    GatherOp,
    LoadOp,
    PrefetchOp,
    ProgramIdOp,
    ReturnOp,
    StoreOp,
    shape,
    strides_of,
)
from tilewright.kernel.elements import ELEMENT, Array, dtype_of, evaluate, tf32, unsigned
from tilewright.kernel.hopper.simt_async_interpreter import HANDLERS as ASYNCHRONOUS
from tilewright.kernel.hopper.simt_async_interpreter import WAITS, apart, waits
from tilewright.kernel.hopper.simt_launches import OPERATIONS as LAUNCHES
from tilewright.kernel.hopper.simt_warpgroup import WARPS, WarpgroupFenceOp, WarpgroupMmaOp, WarpgroupWaitOp
from tilewright.kernel.records import record_of
from tilewright.kernel.simt import (
    ROW_BYTES,
    AsyncCopyOp,
    AtomicOp,
    BarrierOp,
    ClusterBarrierOp,
    CommitOp,
    JoinOp,
    LoadFragmentOp,
    LoadMatrixOp,
    MmaOp,
    PartOp,
    SharedOp,
    ShuffleOp,
    StoreFragmentOp,
    StoreMatrixOp,
    ThreadIdOp,
    WaitOp,
    element_bytes,
)
from tilewright.kernel.simt_memory import Access, BlockMemory, Place
from tilewright.kernel.views import View

Order = Literal["together", "ascending", "descending", "random"]
"""The threads of a block run together, or warp by warp in this order, and lanes take turns at atomics likewise."""
ORDERS: tuple[Order, ...] = get_args(Order)

Run = Generator[Operation, None, list[Array]]
"""Runs a region until the next barrier, again and again; at last gives what the region's terminator does."""


def run_blocks(kernel: FuncOp, views: Sequence[View], numbers: Sequence[int], order: Order, seed: int) -> None:
    """Run these blocks of the grid, one after the other. InvalidArgument for an unknown order."""
    if order not in ORDERS:
        raise InvalidArgument(f"no order {order!r} of threads", help=f"one of {', '.join(ORDERS)}")
    memory = BlockMemory(kernel, list(views), apart(kernel))
    rng = np.random.default_rng(seed)
    for number in numbers:
        coordinates = [int(x) for x in np.unravel_index(number, kernel.extents)] if kernel.extents else []
        _run_program(memory, memory.enter(number, coordinates), order, rng)


def _run_program(
    memory: BlockMemory, places: Sequence[dict[SSAValue, Place]], order: Order, rng: np.random.Generator
) -> None:
    """Run the blocks of a program together."""
    body = memory.kernel.body.block
    last = body.last_op
    assert last is not None
    groups = [
        Group(memory, chunk, dict(own), rank, order, rng)
        for rank, own in enumerate(places)
        for chunk in _chunks(memory, rank, order)
    ]
    runs = [group.run(body, np.ones(len(group.threads), np.bool_)) for group in groups]
    reached: list[Operation | None] = [None] * len(runs)
    waiting = np.zeros(len(runs), np.bool_)  # at a barrier, where `reached` says
    ended = np.zeros(len(runs), np.bool_)
    while not ended.all():
        moment = None if memory.clocks is None else memory.clocks.now
        moved = False
        for turn in _turns(len(runs), order, rng):
            if waiting[turn] or ended[turn]:
                continue
            reached[turn] = next(runs[turn], None)
            ended[turn] = reached[turn] is None
            waiting[turn] = isinstance(reached[turn], BarrierOp | ClusterBarrierOp)
            moved |= bool(ended[turn] or waiting[turn])
            rank = groups[turn].rank
            if all(ended[other] for other, group in enumerate(groups) if group.rank == rank):
                memory.leave(last, rank)
        if _met(memory, groups, reached, waiting, ended):
            continue
        if not moved and (memory.clocks is None or memory.clocks.now == moment):
            stuck = int(np.flatnonzero(~ended)[0])
            op = reached[stuck]
            assert op is not None
            groups[stuck].fail(op, "waits for what does not come: everybody waits", 0)


def _chunks(memory: BlockMemory, rank: int, order: Order) -> list[Array]:
    """Threads that run together: the block or its warps; four warps each where those work together."""
    threads = np.arange(memory.block_threads) + rank * memory.block_threads
    if memory.apart:
        size = WARPS * memory.kernel.lanes
        return [threads[start : start + size] for start in range(0, len(threads), size)]
    return [threads] if order == "together" else list(threads.reshape(-1, memory.kernel.lanes))


def _met(
    memory: BlockMemory, groups: list[Group], reached: list[Operation | None], waiting: Array, ended: Array
) -> bool:
    """Let go those that wait at a barrier at which all are that it is for."""
    found = False
    late: tuple[Operation, int] | None = None
    for turn in np.flatnonzero(waiting).tolist():
        if not waiting[turn]:
            continue
        barrier = reached[turn]
        assert isinstance(barrier, BarrierOp | ClusterBarrierOp)
        rank = None if isinstance(barrier, ClusterBarrierOp) else groups[turn].rank
        all_ = [number for number, group in enumerate(groups) if rank is None or group.rank == rank]
        own = [other for other in all_ if waiting[other] and reached[other] is barrier]
        if turn != own[0]:
            continue
        if isinstance(barrier, ClusterBarrierOp) or barrier.threads is None:
            if len(own) == len(all_):
                memory.order(rank)
                waiting[own] = False
                found = True
            elif not (~waiting & ~ended)[all_].any():
                late = barrier, next(number for number in all_ if number not in own)
        elif sum(len(groups[other].threads) for other in own) >= barrier.threads.value.data:
            assert memory.clocks is not None
            together = np.concatenate([groups[other].threads for other in own])
            memory.clocks.meet(np.unique(together // memory.kernel.lanes))
            waiting[own] = False
            found = True
    if late is not None and not found:
        groups[late[1]].fail(late[0], _APART, 0)
    return found


_APART = "divergence: a barrier that this thread does not reach, but others do"


def _turns(count: int, order: Order, rng: np.random.Generator) -> Array:
    ascending = np.arange(count)
    return {"descending": ascending[::-1], "random": rng.permutation(count)}.get(order, ascending)


class Group:
    """Threads that run together: the values of their operations, by thread."""

    def __init__(
        self,
        memory: BlockMemory,
        threads: Array,
        places: dict[SSAValue, Place],
        rank: int,
        order: Order,
        rng: np.random.Generator,
    ) -> None:
        self.memory, self.threads, self.places, self.order, self.rng = memory, threads, places, order, rng
        self.rank = rank  # of the block
        self.kernel = memory.kernel
        self.values: dict[SSAValue, Array] = {}
        # Products: how many groups of them each thread has committed and how many are done; in which group each value
        # is under way (-1: in none); what operands they read.
        self.committed, self.done = (np.zeros(memory.threads, np.int64) for _ in range(2))
        self.under_way: dict[SSAValue, Array] = {}
        self.reads: list[tuple[int, int, Place, Array]] = []

    def fail(self, op: Operation, message: str, lane: int) -> NoReturn:
        self.memory.fail(op, message, int(self.threads[lane]))

    # Control --------------------------------------------------------------------------------------------------

    def run(self, block: Block, active: Array) -> Run:
        """Run a block for the active threads, of which there are some."""
        for op, kind, operands, results in self.memory.steps(block):
            if self.under_way:
                self.check_products(op, active)
            if op.name in ELEMENT:
                self.values[results[0]] = evaluate(op, *self.operands(operands))
            elif kind in WHOLE:
                found = WHOLE[kind](op, *(self.values[operand] for operand in operands))
                self.values[results[0]] = found if operands else found[None]
            elif kind in _HANDLERS:
                _HANDLERS[kind](self, op, active)
            elif isinstance(op, WAITS):
                yield from waits(self, op, active)
            elif isinstance(op, BarrierOp | ClusterBarrierOp):
                if not active.all():
                    self.fail(op, _APART, _first(~active))
                yield op
            elif isinstance(op, scf.ForOp):
                yield from self.loop(op, active)
            elif isinstance(op, scf.IfOp):
                yield from self.branch(op, active)
            elif isinstance(op, scf.YieldOp | ReturnOp):
                return [self.values[operand] for operand in operands]
            else:
                self.fail(op, f"{op.name} is not an operation of the distributed form", _first(active))
        raise AssertionError("verified blocks end with a terminator")

    def loop(self, op: scf.ForOp, active: Array) -> Run:
        low, high, step = (self.values[bound] for bound in (op.lb, op.ub, op.step))
        stuck = active & (step <= 0)
        if stuck.any():
            lane = _first(stuck)
            self.fail(op, f"steps by {int(_wide(step, len(active))[lane])}; a step is positive", lane)
        low, high, step = (np.where(active, bound, 1) if bound.size > 1 else bound for bound in (low, high, step))
        bounds = np.broadcast_arrays(low, high, step)
        trips = np.asarray([len(range(*each)) for each in zip(*(bound.tolist() for bound in bounds), strict=True)])
        carried, sources = [self.values[value] for value in op.iter_args], list(op.iter_args)
        block = op.body.block
        for trip in range(int(trips.max())):
            running = active & (trip < trips)
            if not running.any():
                break
            self.values[block.args[0]] = (low + trip * step).astype(dtype_of(block.args[0].type))
            self.values.update(zip(block.args[1:], carried, strict=True))
            for source, argument in zip(sources, block.args[1:], strict=True):
                self.pass_on(source, argument)
            following = yield from self.run(block, running)
            sources = list(_terminator(block).operands)
            carried = [_choose(trip < trips, new, old) for new, old in zip(following, carried, strict=True)]
        self.values.update(zip(op.results, carried, strict=True))
        for source, result in zip(sources, op.results, strict=True):
            self.pass_on(source, result)
        return []

    def branch(self, op: scf.IfOp, active: Array) -> Run:
        condition = self.values[op.cond]
        results: list[list[Array]] = []
        for region, taken in ((op.true_region, condition), (op.false_region, ~condition)):
            there = active & taken
            if there.any():
                results.append((yield from self.run(region.block, there)) if region.blocks else [])
        if len(results) == 2:
            merged = [_choose(condition, yes, no) for yes, no in zip(*results, strict=True)]
        else:
            merged = results[0]
        self.values.update(zip(op.results, merged, strict=True))
        return []

    # Products under way ---------------------------------------------------------------------------------------

    def started(self, op: WarpgroupMmaOp, lanes: Array, threads: Array) -> None:
        """A product of these threads has begun."""
        groups = self.under_way.setdefault(op.result, np.full(len(self.threads), -1))
        groups[lanes] = self.committed[threads]

    def commits(self, thread: int) -> int:
        return int(self.committed[thread])

    def commit(self, active: Array) -> None:
        self.committed[self.threads[active]] += 1

    def finish(self, pending: int, active: Array) -> None:
        """All groups but the latest `pending` of these threads are done; who waited knows that operands were read."""
        threads = self.threads[active]
        self.done[threads] = np.maximum(self.done[threads], self.committed[threads] - pending)
        left = []
        for group, thread, place, chosen in self.reads:
            if group < self.done[thread]:
                first = thread // self.kernel.lanes
                self.memory.end_reading(place, chosen, np.arange(first, first + WARPS))
            else:
                left.append((group, thread, place, chosen))
        self.reads = left

    def pass_on(self, source: SSAValue, made: SSAValue) -> None:
        """What is under way stays so under another name."""
        self.under_way.pop(made, None)
        if source in self.under_way:
            self.under_way[made] = self.under_way[source]

    def check_products(self, op: Operation, active: Array) -> None:
        """Results that are under way go to other products, round loops and through waits, or get other names."""
        if isinstance(op, WarpgroupMmaOp | WarpgroupWaitOp | WarpgroupFenceOp | scf.YieldOp | scf.ForOp):
            return
        if isinstance(op, JoinOp | PartOp):
            known = [self.under_way[operand] for operand in op.operands if operand in self.under_way]
            self.under_way.pop(op.result, None)
            if known:
                self.under_way[op.result] = np.max(known, axis=0)
            return
        for operand in op.operands:
            groups = self.under_way.get(operand)
            early = None if groups is None else active & (groups >= self.done[self.threads]) & (groups >= 0)
            if early is not None and early.any():
                self.fail(op, "uses the result of a product that is under way", _first(early))

    # Values ---------------------------------------------------------------------------------------------------

    def operands(self, values: Sequence[SSAValue]) -> list[Array]:
        """Those of an element operation, a scalar beside tiles with as many axes as they have."""
        given = [self.values[value] for value in values]
        axes = max([value.ndim for value in given])
        return [_with_axes(value, axes) for value in given]

    def full(self, value: SSAValue) -> Array:
        """A value with an entry for every thread of the group."""
        return _wide(self.values[value], len(self.threads))

    def warps(self, op: Operation, active: Array) -> Array:
        """Which warps execute a warp operation; all lanes of each must."""
        by_warp = active.reshape(-1, self.kernel.lanes)
        missing = by_warp.any(axis=1, keepdims=True) & ~by_warp
        if missing.any():
            message = f"divergence: {op.name} is executed by whole warps, and this thread is not there"
            self.fail(op, message, _first(missing.ravel()))
        return np.asarray(by_warp[:, 0])

    def by_warp(self, value: SSAValue) -> Array:
        """A value as (warps, lanes, ...)."""
        full = self.full(value)
        return full.reshape(-1, self.kernel.lanes, *full.shape[1:])

    # Memory ---------------------------------------------------------------------------------------------------

    def touched(self, op: LoadOp | StoreOp, extents: tuple[int, ...], active: Array) -> tuple[Array, Array]:
        """Element number of every element of the access, and which of them are touched: (threads, *extents)."""
        ones = [1] * len(extents)
        offsets = self.full(op.offset)
        places = offsets.reshape(-1, *ones) + _distances(extents, strides_of(op))
        touched = active.reshape(-1, *ones)
        for axis, bound in enumerate(op.bounds):
            count = np.arange(extents[axis]).reshape(*ones[:axis], extents[axis], *ones[axis + 1 :])
            touched = touched & (count < self.values[bound].reshape(-1, *ones))
        if op.mask is not None:
            touched = touched & self.values[op.mask]
        touched = _broadcast(touched, (len(active), *extents))
        if op.align is not None:
            lanes = np.flatnonzero(touched.reshape(len(active), -1).any(axis=1))
            self.memory.check_alignment(
                op, self.places[op.view], offsets[lanes], op.align.value.data, self.threads[lanes]
            )
        return places, touched

    def access(self, op: Operation, places: Array, touched: Array, warps: bool = False) -> Access:
        """The access of these elements by their threads, which are the first axis."""
        lanes = np.arange(len(self.threads)).reshape(-1, *[1] * (touched.ndim - 1))
        lanes = _broadcast(lanes, touched.shape)[touched]
        return Access(op, places[touched], self.threads[lanes], lanes, warps)

    def read(self, op: Operation, view: SSAValue, places: Array, touched: Array, warps: bool = False) -> Array:
        """The elements at `places` where touched, else 0."""
        found = self.memory.read(self.places[view], self.access(op, places, touched, warps))
        result = np.zeros(touched.shape, found.dtype)
        result[touched] = found
        return result

    def write(
        self, op: Operation, view: SSAValue, places: Array, touched: Array, value: Array, warps: bool = False
    ) -> None:
        numbers = _broadcast(value, touched.shape)[touched]
        self.memory.write(self.places[view], self.access(op, places, touched, warps), numbers)


def _terminator(block: Block) -> Operation:
    last = block.last_op
    assert last is not None, "verified blocks end with a terminator"
    return last


def _first(mask: Array) -> int:
    return int(np.flatnonzero(mask)[0])


def _wide(value: Array, threads: int) -> Array:
    return _broadcast(value, (threads, *value.shape[1:]))


def _broadcast(value: Array, extents: tuple[int, ...]) -> Array:
    return value if value.shape == extents else np.broadcast_to(value, extents)


def _with_axes(value: Array, axes: int) -> Array:
    return value if value.ndim == axes else value.reshape(*value.shape, *[1] * (axes - value.ndim))


@lru_cache(maxsize=4096)
def _distances(extents: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """How far each element of an access lies from the first: (1, *extents)."""
    axes = np.ogrid[tuple(slice(extent) for extent in extents)] if extents else []
    found = sum((axis * stride for axis, stride in zip(axes, strides, strict=True)), np.zeros(extents, np.int64))
    return np.asarray(found)[None]


def _choose(condition: Array, yes: Array, no: Array) -> Array:
    """``condition ? yes : no`` by thread."""
    if condition.all():
        return yes
    return np.where(condition.reshape(-1, *[1] * (yes.ndim - 1)), yes, no)


# Operations of one thread ---------------------------------------------------------------------------------------------


def _program_id(group: Group, op: ProgramIdOp, active: Array) -> None:
    group.values[op.result] = np.asarray([group.memory.coordinates[op.axis.value.data]], np.int64)


def _block_rank(group: Group, op: BlockRankOp, active: Array) -> None:
    group.values[op.result] = np.asarray([group.rank], np.int64)


def _thread_id(group: Group, op: ThreadIdOp, active: Array) -> None:
    x, y, z = group.kernel.block
    below, extent = ((1, x), (x, y), (x * y, z))[op.axis.value.data]
    group.values[op.result] = group.threads // below % extent


def _alloc(group: Group, op: AllocOp, active: Array) -> None:
    """Memory of each thread, one behind the other."""
    elements = int(op.result.type.get_shape()[0])
    array = np.zeros(elements * len(group.threads), dtype_of(op.result.type))
    view = View(array, np.zeros((len(array), array.itemsize), np.bool_))
    group.places[op.result] = Place(view, per_thread=elements)


def _load(group: Group, op: LoadOp, active: Array) -> None:
    places, touched = group.touched(op, shape(op.result), active)
    group.values[op.result] = group.read(op, op.view, places, touched)


def _store(group: Group, op: StoreOp, active: Array) -> None:
    places, touched = group.touched(op, shape(op.value), active)
    group.write(op, op.view, places, touched, group.values[op.value])


def _gather(group: Group, op: GatherOp, active: Array) -> None:
    places = group.full(op.offsets)
    touched = np.broadcast_to(active.reshape(-1, *[1] * (places.ndim - 1)), places.shape)
    if op.mask is not None:
        touched = touched & group.values[op.mask]
    group.values[op.result] = group.read(op, op.view, places, touched)


_UPDATES: dict[str, Any] = {
    "add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "exchange": lambda old, value: value,
}  # fmt: skip


def _atomic(group: Group, op: AtomicOp, active: Array) -> None:
    touched = active if op.mask is None else active & group.values[op.mask]
    access = group.access(op, group.full(op.offset), touched)
    values = group.full(op.value)[touched]
    function, plain = _UPDATES[op.kind.data], unsigned if op.unsigned is not None else lambda number: number

    def new(position: int, old: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(function(plain(old), plain(values[position])))

    turns = _turns(len(values), group.order, group.rng)
    result = np.zeros(len(active), values.dtype)
    result[touched] = group.memory.update(group.places[op.view], access, new, turns)
    group.values[op.result] = result


def _async_copy(group: Group, op: AsyncCopyOp, active: Array) -> None:
    threads, memory = group.threads[active], group.memory
    source, target = group.places[op.source], group.places[op.target]
    elements = np.arange(op.elements.value.data)
    starts = [group.full(offset)[active] for offset in (op.source_offset, op.target_offset)]
    for place, start in zip((source, target), starts, strict=True):
        memory.check_alignment(op, place, start, op.bytes, threads)
    taken, into = (start[:, None] + elements for start in starts)
    limit = elements.size if op.valid is None else group.full(op.valid)[active][:, None]
    valid = np.broadcast_to(elements < limit, taken.shape)
    memory.start_copy(op, source, target, taken, valid, into, threads)


def _commit(group: Group, op: CommitOp, active: Array) -> None:
    group.memory.commit(group.threads[active])


def _wait(group: Group, op: WaitOp, active: Array) -> None:
    group.memory.wait(group.threads[active], op.pending.value.data)


# Operations of a warp -------------------------------------------------------------------------------------------------


def _shuffle(group: Group, op: ShuffleOp, active: Array) -> None:
    group.warps(op, active)
    value, number = group.by_warp(op.value), group.by_warp(op.lane)
    lane = np.broadcast_to(np.arange(group.kernel.lanes), number.shape)
    source = {"xor": lane ^ number, "up": lane - number, "down": lane + number, "index": number}[op.kind.data]
    source = np.where((source >= 0) & (source < group.kernel.lanes), source, lane)
    found = value[np.arange(len(value))[:, None], source]
    group.values[op.result] = found.reshape(-1, *value.shape[2:])


def _rows(group: Group, op: LoadMatrixOp | StoreMatrixOp, active: Array) -> tuple[Array, Array]:
    """Of each 8 x 8 matrix and lane, the elements (threads, elements) that the lane gets, and which are touched."""
    lanes, count = group.kernel.lanes, op.count.value.data
    warps = group.warps(op, active)
    if lanes != 32:
        group.fail(op, f"{op.name} is executed by 32 lanes; warps here have {lanes}", _first(active))
    size = element_bytes(op.view)
    starts = group.by_warp(op.offset)[:, : 8 * count].reshape(-1, count, 8)  # of rows: (warps, matrices, rows)
    giving = group.threads.reshape(-1, lanes)[:, : 8 * count]
    rows = starts[warps].ravel()
    group.memory.check_alignment(op, group.places[op.view], rows, ROW_BYTES, giving[warps].ravel())
    lane, part = np.arange(lanes)[:, None], np.arange(4 // size)
    row, column = np.broadcast_arrays(lane // 4, lane % 4 * (4 // size) + part)
    if op.transpose is not None:
        row, column = column, row
    places = starts[:, :, row] + column  # (warps, matrices, lanes, elements of 4 bytes)
    places = places.transpose(0, 2, 1, 3).reshape(len(group.threads), -1)
    return places, np.broadcast_to(active[:, None], places.shape)


def _load_matrix(group: Group, op: LoadMatrixOp, active: Array) -> None:
    places, touched = _rows(group, op, active)
    group.values[op.result] = group.read(op, op.view, places, touched, warps=True)


def _store_matrix(group: Group, op: StoreMatrixOp, active: Array) -> None:
    places, touched = _rows(group, op, active)
    group.write(op, op.view, places, touched, group.values[op.value], warps=True)


def _matrix(
    group: Group, op: LoadFragmentOp | StoreFragmentOp, operand: str, tile: SSAValue, active: Array
) -> tuple[Array, Array]:
    """Of each thread the elements of its fragment, and which are touched."""
    group.warps(op, active)
    lanes = group.kernel.lanes
    for value, what in ((op.offset, "offset"), (op.stride, "stride")):
        given = group.by_warp(value)
        differs = ((given != given[:, :1]) & active.reshape(given.shape)).any(axis=1)
        if differs.any():
            group.fail(op, f"the lanes of a warp disagree about the {what}", _first(differs) * lanes)
    record = record_of(op)
    fragments.check_element(record, operand, dtype_of(op.view.type), lanes)
    align, multiple = fragments.granularity(record, operand, lanes)
    offsets, strides = group.full(op.offset)[active], group.full(op.stride)[active]
    group.memory.check_alignment(op, group.places[op.view], offsets, align, group.threads[active])
    if (strides % multiple).any():
        group.fail(op, f"a stride of {strides[0]} elements is no multiple of {multiple}", _first(active))
    row, column = fragments.matrix_places(record, operand, shape(tile)[0], lanes)
    if op.columns is not None:
        row, column = column, row
    places = group.by_warp(op.offset)[:, :, None] + row * group.by_warp(op.stride)[:, :, None] + column
    places = places.reshape(len(active), -1)
    return places, np.broadcast_to(active[:, None], places.shape)


def _load_fragment(group: Group, op: LoadFragmentOp, active: Array) -> None:
    places, touched = _fitting(group, op, active, lambda: _matrix(group, op, op.operand.data, op.result, active))
    group.values[op.result] = group.read(op, op.view, places, touched, warps=True)


def _store_fragment(group: Group, op: StoreFragmentOp, active: Array) -> None:
    places, touched = _fitting(group, op, active, lambda: _matrix(group, op, "c", op.value, active))
    group.write(op, op.view, places, touched, group.values[op.value], warps=True)


def _mma(group: Group, op: MmaOp, active: Array) -> None:
    warps = group.warps(op, active)
    registers = [group.by_warp(operand) for operand in (op.a, op.b, op.c)]
    result = np.zeros_like(registers[2])
    given = [each[warps] for each in registers]
    a, b, c = given
    record = _fitting(group, op, active, lambda: record_of(op))

    def multiplied() -> Array:
        if op.precision is None:
            return fragments.multiply(record, a, b, c)
        high, low = ([tf32(kind, each) for each in (a, b)] for kind in ("high", "low"))
        total = fragments.multiply(record, high[0], low[1], fragments.multiply(record, low[0], high[1], c))
        return fragments.multiply(record, high[0], high[1], total)

    result[warps] = _fitting(group, op, active, multiplied)
    group.values[op.result] = result.reshape(-1, *shape(op.result))


def _fitting(group: Group, op: Operation, active: Array, compute: Callable[[], Any]) -> Any:
    """What a record gives; where it does not fit, the error at this operation."""
    try:
        return compute()
    except InvalidProgram as error:
        if error.where:
            raise
        group.fail(op, error.message, _first(active))


_HANDLERS: dict[type[Operation], Callable[[Group, Any, Array], None]] = {
    ProgramIdOp: _program_id,
    BlockRankOp: _block_rank,
    ThreadIdOp: _thread_id,
    AllocOp: _alloc,
    SharedOp: lambda group, op, active: None,  # there from the start of the block
    LoadOp: _load,
    StoreOp: _store,
    GatherOp: _gather,
    PrefetchOp: lambda group, op, active: None,  # a hint
    AtomicOp: _atomic,
    AsyncCopyOp: _async_copy,
    CommitOp: _commit,
    WaitOp: _wait,
    ShuffleOp: _shuffle,
    LoadMatrixOp: _load_matrix,
    StoreMatrixOp: _store_matrix,
    LoadFragmentOp: _load_fragment,
    StoreFragmentOp: _store_fragment,
    MmaOp: _mma,
    **dict.fromkeys(LAUNCHES, lambda group, op, active: None),  # kernels run one after the other
    **ASYNCHRONOUS,
}
