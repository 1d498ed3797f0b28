"""The interpreter of mbarriers, tensor copies and products of four warps: what they do, and when others see it."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from xdsl.ir import Operation, SSAValue

from tilewright.kernel import simt_fragments as fragments
from tilewright.kernel.dialect import FuncOp, operations
from tilewright.kernel.elements import Array
from tilewright.kernel.hopper.simt_async import (
    FenceOp,
    MbarrierArriveOp,
    MbarrierInitOp,
    MbarrierWaitOp,
    TensorCommitOp,
    TensorLoadOp,
    TensorStoreOp,
    TensorWaitOp,
    WarpBarrierOp,
)
from tilewright.kernel.hopper.simt_warpgroup import (
    ROWS,
    WARPS,
    ElectOp,
    Matrix,
    RegistersOp,
    WarpgroupCommitOp,
    WarpgroupFenceOp,
    WarpgroupMmaOp,
    WarpgroupWaitOp,
    WarpIdOp,
    matrix_of,
)
from tilewright.kernel.records import extents_of_record, record_of
from tilewright.kernel.simt import BarrierOp, element_bytes
from tilewright.kernel.simt_clocks import Clocks, CountingBarrier, Landing
from tilewright.kernel.simt_memory import Access, Place
from tilewright.kernel.tensor_map_box import TensorMapBox, swizzled

if TYPE_CHECKING:
    from tilewright.kernel.simt_interpreter import Group

BOX_ALIGN = 128  # bytes of a box in shared memory, PTX ISA, "Tensor copies"


def apart(kernel: FuncOp) -> bool:
    """Whether the warps of a kernel are ordered by other than barriers of the whole block."""
    kinds = (MbarrierInitOp, WarpgroupMmaOp, TensorStoreOp)
    return kernel.blocks > 1 or any(
        isinstance(op, kinds) or (isinstance(op, BarrierOp) and op.number is not None) for op in operations(kernel.body)
    )


# Mbarriers ------------------------------------------------------------------------------------------------------------


def _clocks(group: Group) -> Clocks:
    clocks = group.memory.clocks
    assert clocks is not None, "kernels with such operations have clocks"
    return clocks


def _addresses(group: Group, op: Any, active: Array) -> Array:
    """The byte of the mbarrier of every active thread."""
    place, threads = group.places[op.barriers], group.threads[active]
    index = group.full(op.index)[active]
    group.memory.check_bounds(op, place, index, threads)
    return np.asarray(place.view.start + index * place.view.element_bytes)


def _barrier(group: Group, op: Operation, address: int, thread: int) -> CountingBarrier:
    clocks = _clocks(group)
    found = clocks.barriers.get(address)
    if found is None:
        group.memory.fail(op, f"no mbarrier is initialised at byte {address}", thread)
    warp = thread // group.kernel.lanes
    if found.maker != warp and clocks.known[warp, found.maker] < found.made:
        group.memory.fail(op, f"race: the mbarrier at byte {address} is used before its making is ordered", thread)
    return found


def _init(group: Group, op: MbarrierInitOp, active: Array) -> None:
    for address, thread in zip(_addresses(group, op, active), group.threads[active], strict=True):
        _clocks(group).make(int(address), op.arrivals.value.data, int(thread) // group.kernel.lanes)


def _arrive(group: Group, op: MbarrierArriveOp, active: Array) -> None:
    announced = 0 if op.bytes is None else op.bytes.value.data
    addresses = _addresses(group, op, active)
    if op.rank is not None:
        ranks = group.full(op.rank)[active]
        for rank, thread in zip(ranks.tolist(), group.threads[active].tolist(), strict=True):
            group.memory.use(op, rank, thread)
        addresses = addresses + (ranks - group.rank) * group.memory.stride
    for address, thread in zip(addresses, group.threads[active], strict=True):
        barrier = _barrier(group, op, int(address), int(thread))
        if not _clocks(group).arrive(barrier, int(thread) // group.kernel.lanes, announced):
            group.memory.fail(op, f"the mbarrier at byte {address} has had all arrivals of this phase", int(thread))


def waits(group: Group, op: MbarrierWaitOp, active: Array) -> Generator[Any, None, None]:
    """Yields until the phase is complete for all active threads; the copies that an mbarrier counts land meanwhile."""
    clocks = _clocks(group)
    given = (_addresses(group, op, active), group.full(op.parity)[active], group.threads[active])
    pending = list(zip(*(each.tolist() for each in given), strict=True))
    while True:
        left = []
        for address, wanted, thread in pending:
            barrier = _barrier(group, op, address, thread)
            if not clocks.passed(barrier, wanted & 1):
                land(group.memory, barrier)
            if clocks.passed(barrier, wanted & 1):
                clocks.learn(thread // group.kernel.lanes, barrier)
            else:
                left.append((address, wanted, thread))
        if not left:
            return
        pending = left
        yield op


def land(memory: Any, barrier: CountingBarrier) -> None:
    """The copies that an mbarrier counts are there."""
    clocks: Clocks = memory.clocks
    phase = barrier.phase
    while barrier.landings and barrier.phase == phase:
        landing = barrier.landings.pop(0)
        units = landing.place.units(landing.into).ravel()
        landing.place.arriving[units] = 0
        clocks.written[units], clocks.writer[units] = clocks.now, barrier.engine
        memory.define(landing.place, landing.into, landing.numbers)
        clocks.known[barrier.engine] = clocks.now
        clocks.gather(barrier, barrier.engine)
        barrier.bytes -= landing.bytes
        clocks.settle(barrier)


def _fence(group: Group, op: FenceOp, active: Array) -> None:
    _clocks(group).fence(np.unique(group.threads[active] // group.kernel.lanes))


# Tensor copies --------------------------------------------------------------------------------------------------------


def _in_shared(place: Place, offset: int, count: int, box: TensorMapBox) -> Array:
    """Elements of a view of shared memory in which the elements of a box lie."""
    size, start = place.view.element_bytes, place.view.start
    return np.asarray((swizzled(start + (offset + np.arange(count)) * size, box.swizzle) - start) // size)


def _tensor_load(group: Group, op: TensorLoadOp, active: Array) -> None:
    memory, source, target = group.memory, group.places[op.tensor], group.places[op.memory]
    for lane in np.flatnonzero(active).tolist():
        thread = int(group.threads[lane])
        taken, inside = op.form.elements([int(group.full(value)[lane]) for value in op.coordinates])
        offset = int(group.full(op.offset)[lane])
        memory.check_alignment(op, target, np.array([offset]), BOX_ALIGN, np.array([thread]))
        into = _in_shared(target, offset, len(taken), op.form)
        numbers = np.zeros(len(taken), source.view.array.dtype)
        same = np.full(len(taken), thread)
        reads = Access(op, taken[inside], same[inside], np.full(int(inside.sum()), lane))
        numbers[inside] = memory.read(source, reads)
        for rank in range(group.kernel.blocks) if op.everywhere is not None else (group.rank,):
            memory.use(op, rank, thread)
            there, barriers = memory.places[rank][op.memory], memory.places[rank][op.barriers]
            memory.start_box(op, there, Access(op, into, same, np.full(len(taken), lane)))
            address = barriers.view.start + int(group.full(op.barrier)[lane]) * barriers.view.element_bytes
            barrier = _barrier(group, op, address, thread)
            if _clocks(group).fenced[barrier.maker] <= barrier.made:
                memory.fail(op, f"missing fence: the mbarrier at byte {address} was made with none since", thread)
            barrier.landings.append(Landing(there, into, numbers))


def _tensor_store(group: Group, op: TensorStoreOp, active: Array) -> None:
    memory, source, target = group.memory, group.places[op.memory], group.places[op.tensor]
    for lane in np.flatnonzero(active).tolist():
        thread = int(group.threads[lane])
        chosen, inside = op.form.elements([int(group.full(value)[lane]) for value in op.coordinates])
        offset = int(group.full(op.offset)[lane])
        memory.check_alignment(op, source, np.array([offset]), BOX_ALIGN, np.array([thread]))
        taken = _in_shared(source, offset, len(chosen), op.form)
        same, lanes = np.full(len(chosen), thread), np.full(len(chosen), lane)
        numbers = memory.read_later(source, Access(op, taken, same, lanes), thread // group.kernel.lanes)
        memory.write(target, Access(op, chosen[inside], same[inside], lanes[inside]), numbers[inside])
        group.memory.stores.setdefault(thread, [[]])[-1].append((source, taken))


def _tensor_commit(group: Group, op: TensorCommitOp, active: Array) -> None:
    for thread in group.threads[active].tolist():
        group.memory.stores.setdefault(thread, [[]]).append([])


def _tensor_wait(group: Group, op: TensorWaitOp, active: Array) -> None:
    for thread in group.threads[active].tolist():
        groups = group.memory.stores.get(thread, [[]])
        done = max(0, len(groups) - 1 - op.pending.value.data)
        for place, taken in (each for one in groups[:done] for each in one):
            group.memory.end_reading(place, taken, np.array([thread // group.kernel.lanes]))
        group.memory.stores[thread] = groups[done:]


# Products -------------------------------------------------------------------------------------------------------------


def _warp_id(group: Group, op: WarpIdOp, active: Array) -> None:
    group.values[op.result] = group.threads % group.memory.block_threads // group.kernel.lanes


def _elect(group: Group, op: ElectOp, active: Array) -> None:
    group.warps(op, active)
    group.values[op.result] = group.threads % group.kernel.lanes == 0


def _groups(group: Group, op: Operation, active: Array) -> list[Array]:
    """The lanes of each group of four warps, all of which are there."""
    size = WARPS * group.kernel.lanes
    found = []
    for start in range(0, len(group.threads), size):
        lanes = np.arange(start, min(start + size, len(group.threads)))
        if not active[lanes].any():
            continue
        if len(lanes) < size or not active[lanes].all():
            group.fail(op, f"divergence: {op.name} is executed by four whole warps", int(lanes[0]))
        found.append(lanes)
    return found


def _operand_places(start: int, matrix: Matrix, rows: int, depth: int, size: int) -> Array:
    """Bytes of an operand in shared memory, (rows, depth), as `Matrix` describes it."""
    row, along = np.arange(rows)[:, None], np.arange(depth)[None, :]
    span = matrix.swizzle or 16
    wide = span // size
    across, down = (row, along) if matrix.transposed else (along, row)
    leading, stride = matrix.leading, matrix.stride
    if not matrix.swizzle and matrix.transposed:
        leading, stride = stride, leading
    found = start + down // 8 * stride + down % 8 * span + across // wide * leading + across % wide * size
    return swizzled(found, matrix.swizzle)


def _mma(group: Group, op: WarpgroupMmaOp, active: Array) -> None:
    record = record_of(op)
    _, n, k = extents_of_record(record)
    result = np.array(group.full(op.c))
    for lanes in _groups(group, op, active):
        threads = group.threads[lanes]
        c = group.full(op.c)[lanes][None]
        b = _operand(group, op, op.b, op.b_offset, matrix_of(op.b_matrix), (n, k), lanes)
        if op.a_matrix is None or op.a_offset is None:
            a = group.full(op.a)[lanes][None]
        else:
            a = _operand(group, op, op.a, op.a_offset, matrix_of(op.a_matrix), (ROWS, k), lanes)
        result[lanes] = fragments.multiply_tiles(record, a, b, c)[0]
        group.started(op, lanes, threads)
    group.values[op.result] = result


def _operand(
    group: Group, op: WarpgroupMmaOp, view: SSAValue, offset: SSAValue, matrix: Matrix, extents: tuple[int, int],
    lanes: Array,
) -> Array:  # fmt: skip
    place, memory = group.places[view], group.memory
    size, thread = element_bytes(view), int(group.threads[lanes[0]])
    starts = group.full(offset)[lanes]
    if (starts != starts[0]).any():
        group.fail(op, "the lanes of four warps disagree about an operand", int(lanes[0]))
    first = place.view.start + int(starts[0]) * size
    where = (_operand_places(first, matrix, *extents, size) - place.view.start) // size
    flat = where.ravel()
    same = np.full(len(flat), thread)
    access = Access(op, flat, same, np.full(len(flat), lanes[0]))
    numbers = memory.read_later(place, access, thread // group.kernel.lanes)
    group.reads.append((group.commits(thread), thread, place, flat))
    return np.asarray(numbers.reshape(where.shape))


def _pass(group: Group, op: WarpgroupFenceOp | WarpgroupWaitOp, active: Array) -> None:
    _groups(group, op, active)
    if isinstance(op, WarpgroupWaitOp):
        group.finish(op.pending.value.data, active)
    for value, made in zip(op.values, op.made, strict=True):
        group.values[made] = group.values[value]
        group.pass_on(value, made)


def _commit(group: Group, op: WarpgroupCommitOp, active: Array) -> None:
    _groups(group, op, active)
    group.commit(active)


HANDLERS: dict[type[Operation], Any] = {
    WarpBarrierOp: lambda group, op, active: None,  # lanes go in step
    MbarrierInitOp: _init,
    MbarrierArriveOp: _arrive,
    FenceOp: _fence,
    TensorLoadOp: _tensor_load,
    TensorStoreOp: _tensor_store,
    TensorCommitOp: _tensor_commit,
    TensorWaitOp: _tensor_wait,
    WarpIdOp: _warp_id,
    ElectOp: _elect,
    RegistersOp: lambda group, op, active: None,  # how many there are changes no value
    WarpgroupFenceOp: _pass,
    WarpgroupMmaOp: _mma,
    WarpgroupCommitOp: _commit,
    WarpgroupWaitOp: _pass,
}

WAITS: Final = (MbarrierWaitOp,)
"""Operations at which a group waits for others, by `waits`."""
