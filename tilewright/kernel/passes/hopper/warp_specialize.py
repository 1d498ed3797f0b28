"""Warps that only fill the circular buffers of a block, beside those that compute."""

from __future__ import annotations

from math import prod

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel.attributes import BLOCKS, blocks_of, registers_of
from tilewright.kernel.dialect import INDEX, CompareOp, FuncOp, GatherOp, LoadOp, ReturnOp, operations, written_view
from tilewright.kernel.facts import facts_of
from tilewright.kernel.hopper.simt_async import FenceOp, MbarrierInitOp, TensorLoadOp
from tilewright.kernel.hopper.simt_launches import LaunchDependentsOp, WaitForLaunchesOp
from tilewright.kernel.hopper.simt_warpgroup import WARPS, ElectOp, RegistersOp, WarpIdOp
from tilewright.kernel.passes.common.effects import PURE
from tilewright.kernel.rewrite import erase, insert_before
from tilewright.kernel.simt import BarrierOp, ClusterBarrierOp, SharedOp, ThreadIdOp
from tilewright.kernel.tile_types import i64s

BARRIER = 1  # of the threads that compute
REGISTERS = 65_536  # of a multiprocessor; CUDA C++ Programming Guide, "Compute Capabilities", 7.0 and later
FEW, MANY = 24, 240  # registers of a thread that fills, and most of one that computes
PLENTY = 256  # threads, each of which can have as many registers as there are names for


@dataclass(frozen=True)
class WarpSpecializePass(ModulePass):
    """Add four warps of which one thread starts all tensor copies; the others only compute.

    Before:  scf.for { scf.if (thread == 0) { wait empty  tensor_load }  wait full  …  arrive empty }
    After:   scf.if (warp < 4) { scf.for { wait full  …  arrive empty } }
             else { scf.if (warp == 4) { scf.if (elect) { scf.for { wait empty  tensor_load } } } }
    Legal where the places of copies depend on nothing that warps compute; barriers of those that compute leave the
    others out. Registers move from the warps that fill to those that compute, where threads are many, the machine
    has the unit setmaxnreg, and the kernel asks for no other share of them. A kernel that has roles, and a block for
    which four warps more are too many, stay as they are. Needs `distribute`.
    """

    name = "warp-specialize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        facts = facts_of(op)
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and kernel.block and kernel.block[1:] == (1, 1):
                first, more = _first(kernel), WARPS * kernel.lanes
                if first is not None and prod(kernel.block) % more == 0 and prod(kernel.block) + more <= facts.threads:
                    free = blocks_of(kernel) in (None, 1) and registers_of(kernel) is None
                    _split(kernel, first, free and "setmaxnreg" in facts.units)


def _fills(op: Operation) -> bool:
    return isinstance(op, TensorLoadOp) or any(
        isinstance(each, TensorLoadOp) for region in op.regions for each in operations(region)
    )


def _first(kernel: FuncOp) -> Operation | None:
    """Where roles part: at the first copy, or before that where not all threads may do what is done.

    None where nothing is copied, roles have parted already, or the mbarriers of a circular buffer are made later.
    """
    ops = list(kernel.body.block.ops)
    if not any(map(_fills, ops)) or any(isinstance(op, scf.IfOp) and _has_roles(op) for op in ops):
        return None
    written = {view for op in operations(kernel.body) if (view := written_view(op)) is not None}
    first = next(number for number, op in enumerate(ops) if _fills(op) or not _for_all(op, written))
    return None if any(isinstance(each, MbarrierInitOp) for op in ops[first:] for each in op.walk()) else ops[first]


def _has_roles(op: scf.IfOp) -> bool:
    """Whether only those start copies that do nothing else."""
    return any(isinstance(each, TensorLoadOp) for block in op.false_region.blocks for each in block.walk())


def _for_all(op: Operation, written: set[SSAValue]) -> bool:
    """Whether more threads can do it as well: it changes nothing and reads nothing of `written`, or makes mbarriers."""
    if isinstance(op, scf.IfOp):
        return all(_for_all(each, written) for region in op.regions for block in region.blocks for each in block.ops)
    if isinstance(op, LoadOp | GatherOp) and op.view in written:
        return False
    return op.name in PURE or isinstance(op, _FOR_ALL)


_FOR_ALL = (
    ThreadIdOp, WarpIdOp, SharedOp, BarrierOp, ClusterBarrierOp, LoadOp, GatherOp, MbarrierInitOp, FenceOp, scf.YieldOp,
    LaunchDependentsOp, WaitForLaunchesOp,
)  # fmt: skip


def _split(kernel: FuncOp, first: Operation, moves: bool) -> None:
    """Everything from `first` on, by role."""
    threads = prod(kernel.block)
    block = kernel.body.block
    common: list[Operation] = []
    rest: list[Operation] = []
    for op in block.ops:
        (rest if rest or op is first else common).append(op)
    last = rest.pop()
    assert isinstance(last, ReturnOp)
    if rest and isinstance(rest[-1], ClusterBarrierOp):  # where blocks meet before they end, all warps do
        last = rest.pop()
    computing, filling = Block(), Block()
    _fill_only(common, rest, filling)
    for op in rest:
        block.detach_op(op)
        computing.add_op(op)
    for op in [each for each in computing.walk() if isinstance(each, scf.IfOp) and _is_fill(each)]:
        erase(op)
    for op in [each for each in computing.walk() if isinstance(each, BarrierOp)]:
        insert_before(op, BarrierOp(BARRIER, threads))
        erase(op)
    for each in (computing, filling):
        each.add_op(scf.YieldOp())
    own = arith.ConstantOp(IntegerAttr(threads // kernel.lanes, INDEX))
    warp, elected = WarpIdOp(), ElectOp()
    computes, fills = (CompareOp(kind, warp.result, own.result) for kind in ("lt", "eq"))
    alone = Block([elected, scf.IfOp(elected.result, [], Region(filling), Region()), scf.YieldOp()])
    other = Block([fills, scf.IfOp(fills.result, [], Region(alone), Region()), scf.YieldOp()])
    everybody = threads + WARPS * kernel.lanes
    if moves and everybody > PLENTY:
        most = min(MANY, (REGISTERS - WARPS * kernel.lanes * FEW) // threads // 8 * 8)
        start, begin = other.first_op, computing.first_op
        assert start is not None
        assert begin is not None
        insert_before(start, RegistersOp("shrink", FEW))
        insert_before(begin, RegistersOp("grow", most))
        kernel.attributes[BLOCKS] = IntegerAttr(1, 64)
    insert_before(last, own, warp, computes, scf.IfOp(computes.result, [], Region(computing), Region(other)))
    kernel.threads = i64s([everybody, 1, 1])


def _is_fill(op: scf.IfOp) -> bool:
    """Whether a branch starts copies itself."""
    return any(isinstance(each, TensorLoadOp) for each in op.true_region.block.ops)


def _fill_only(common: list[Operation], rest: list[Operation], into: Block) -> None:
    """What the first thread does to fill, for a thread that takes its place."""
    zero = arith.ConstantOp(IntegerAttr(0, INDEX))
    into.add_op(zero)
    values: dict[SSAValue, SSAValue] = {}
    missing: set[SSAValue] = set()
    for op in common:
        if isinstance(op, ThreadIdOp):
            values[op.result] = zero.result
        elif op.name in PURE:
            _copy(op, into, values)
    _copy_fills(rest, into, values, missing, zero.result)


def _copy_fills(
    ops: list[Operation], into: Block, values: dict[SSAValue, SSAValue], missing: set[SSAValue], zero: SSAValue
) -> None:
    for op in ops:
        unknown = any(operand in missing for operand in op.operands)
        if isinstance(op, ThreadIdOp):
            values[op.result] = zero
        elif isinstance(op, scf.IfOp) and _is_fill(op):
            _copy(op, into, values)
        elif isinstance(op, scf.ForOp) and _fills(op):
            counts, source = _counts(op, missing), op.body.block
            inside = Block(arg_types=[INDEX, *(INDEX for _ in counts)])
            missing.update([*source.args[1:], *op.results])
            missing.difference_update(source.args[1 + number] for number in counts)
            values.update(zip([source.args[0], *(source.args[1 + n] for n in counts)], inside.args, strict=True))
            _copy_fills(list(source.ops), inside, values, missing, zero)
            last = source.last_op
            assert last is not None, "a loop yields"
            inside.add_op(scf.YieldOp(*(values.get(last.operands[n], last.operands[n]) for n in counts)))
            low, high, step, *start = (
                values.get(each, each) for each in (op.lb, op.ub, op.step, *(op.iter_args[n] for n in counts))
            )
            into.add_op(scf.ForOp(low, high, step, start, inside))
        elif op.name in PURE and not unknown:
            _copy(op, into, values)
        else:
            missing.update(op.results)


def _counts(loop: scf.ForOp, missing: set[SSAValue]) -> list[int]:
    """Which carried values of a loop are numbers that any thread can count: indices, by what changes nothing.

    What they begin with is not `missing`.
    """
    last = loop.body.block.last_op
    assert last is not None, "a loop yields"
    numbers = [n for n, value in enumerate(loop.iter_args) if value.type == INDEX and value not in missing]
    known = {loop.body.block.args[0], *(loop.body.block.args[1 + number] for number in numbers)}

    def counted(value: SSAValue) -> bool:
        owner = value.owner
        if isinstance(owner, Block):
            return value in known or owner is not loop.body.block
        if owner.parent is not loop.body.block:
            return True
        return owner.name in PURE and all(map(counted, owner.operands))

    return numbers if all(counted(last.operands[number]) for number in numbers) else []


def _copy(op: Operation, into: Block, values: dict[SSAValue, SSAValue]) -> None:
    made = op.clone(value_mapper=values)
    made.location = op.location
    values.update(zip(op.results, made.results, strict=True))
    into.add_op(made)
