"""Threads, warps and shared memory: what `kernel.simt` adds, but for atomics and fragments."""

from __future__ import annotations

from functools import partial

from llvmlite import ir
from xdsl.dialects import scf
from xdsl.ir import SSAValue

from tilewright.codegen.gpu import control, threads
from tilewright.codegen.gpu.elements import known
from tilewright.codegen.nvptx.emission import I32, Emission, from_words, resized, to_words
from tilewright.codegen.nvptx.memory import read, write
from tilewright.codegen.nvptx.tensor_copies import prefetch_maps
from tilewright.kernel import dialect as tile
from tilewright.kernel import simt
from tilewright.kernel.hopper import simt_async, simt_launches
from tilewright.kernel.passes.common.effects import PURE

LANES = 32
COPIES_SINCE = 80  # compute capability, times ten
CLUSTERS_SINCE = (90, 78)  # compute capability and PTX version, both times ten
DEPENDENT_LAUNCHES_SINCE = (90, 78)
_DIRECT = {"xor": ("bfly", 31), "up": ("up", 0), "down": ("down", 31), "index": ("idx", 31)}


thread_id = partial(threads.thread_id, "llvm.nvvm.read.ptx.sreg.tid")


def block_rank(at: Emission, op: tile.BlockRankOp) -> None:
    """Blocks that run a program together are neighbours along x: `%cluster_ctarank`, as the assembler can reckon it."""
    block = at.call("llvm.nvvm.read.ptx.sreg.ctaid.x", I32, [])
    at.set(op.result, [resized(at.builder, at.builder.urem(block, I32(at.func.blocks)), at.index)])


def lane_id(at: Emission) -> ir.Value:
    return at.call("llvm.nvvm.read.ptx.sreg.laneid", I32, [])


def barrier(at: Emission, op: simt.BarrierOp) -> None:
    if op.number is None or op.threads is None:
        at.call("llvm.nvvm.barrier.cta.sync.aligned.all", ir.VoidType(), [I32(0)])
        return
    given = [I32(op.number.value.data), I32(op.threads.value.data)]
    at.call("llvm.nvvm.barrier.cta.sync.aligned.count", ir.VoidType(), given)


def warp_barrier(at: Emission, op: simt_async.WarpBarrierOp) -> None:
    at.asm("bar.warp.sync 0xffffffff;", ir.VoidType(), "", [], "together")


def cluster_barrier(at: Emission, op: simt.ClusterBarrierOp) -> None:
    """It releases and acquires: what threads wrote before, other blocks see behind it."""
    at.require("a cluster of blocks", *CLUSTERS_SINCE)
    at.asm("barrier.cluster.arrive.aligned;", ir.VoidType(), "", [], "together")
    at.asm("barrier.cluster.wait.aligned;", ir.VoidType(), "", [], "together")


def launch_dependents(at: Emission, op: simt_launches.LaunchDependentsOp) -> None:
    _grid_control(at, "launch_dependents")


def wait_for_launches(at: Emission, op: simt_launches.WaitForLaunchesOp) -> None:
    """Tensor maps are arguments of the kernel, which no kernel writes: they are prefetched before the wait."""
    prefetch_maps(at)
    _grid_control(at, "wait")


def _grid_control(at: Emission, action: str) -> None:
    """Convergent assembly that touches memory: LLVM neither moves an access across it, nor itself into a branch."""
    at.require("a dependent launch", *DEPENDENT_LAUNCHES_SINCE)
    at.asm(f"griddepcontrol.{action};", ir.VoidType(), "", [], "together")


def shuffle(at: Emission, op: simt.ShuffleOp) -> None:
    """32 bits at a time; a source outside of the warp leaves a lane its own value."""
    values = at.elements(op.value)
    if values[0].type == at.index and values[0].type == I32:
        words = list(values)
    else:
        words = to_words(at.builder, values)
    amount, kind = at.scalar(op.lane), op.kind.data
    number = known(amount)
    if number is not None and not 0 <= number < LANES and kind == "index":
        at.set(op.result, values)
        return
    if number is not None and 0 <= number < LANES:
        mode, limit = _DIRECT[kind]
        moved = [_shuffle(at, mode, word, I32(number), limit) for word in words]
    else:
        source = threads.source_lane(at, kind, lane_id(at), amount)
        inside = at.builder.icmp_unsigned("<", source, source.type(LANES))
        low = resized(at.builder, source, I32)
        moved = [at.builder.select(inside, _shuffle(at, "idx", word, low, LANES - 1), word) for word in words]
    at.set(op.result, from_words(at.builder, moved, values[0].type, len(values)))


def _shuffle(at: Emission, mode: str, word: ir.Value, lane: ir.Value, limit: int) -> ir.Value:
    return at.call(f"llvm.nvvm.shfl.sync.{mode}.i32", I32, [I32(-1), word, lane, I32(limit)])


# Asynchronous copies --------------------------------------------------------------------------------------------------


def async_copy(at: Emission, op: simt.AsyncCopyOp) -> None:
    """``cp.async``, which fills with zeros what it does not read; a load and a store where there is none."""
    if at.target.capability < COPIES_SINCE:
        threads.copy_now(read, write, at, op)
        return
    there, here = threads.copy_ends(at, op)
    at.require("an asynchronous copy", COPIES_SINCE, 70)
    cache, valid = "cg" if op.bypass is not None else "ca", [] if op.valid is None else [_valid_bytes(at, op, op.valid)]
    if at.where is None:
        name = f"llvm.nvvm.cp.async.{cache}.shared.global.{op.bytes}{'.s' if valid else ''}"
        at.call(name, ir.VoidType(), [here, there, *valid])
        return
    text = f"@$2 cp.async.{cache}.shared.global [$0], [$1], {op.bytes}{', $3' if valid else ''};"
    at.asm(text, ir.VoidType(), "r,l,b,r" if valid else "r,l,b", [here, there, at.where, *valid])


def branch(at: Emission, op: scf.IfOp) -> None:
    """Copies under a condition are predicated instructions, not a branch: products around them stay in one block, whose
    instructions the assembler mixes.
    """
    if at.target.capability < COPIES_SINCE or not _only_copies(op):
        control.branch(at, op)
        return
    outer, own = at.where, at.scalar(op.cond)
    at.where = own if outer is None else at.builder.and_(outer, own)
    control.walk(at, op.true_region.block)
    at.where = outer


def _only_copies(op: scf.IfOp) -> bool:
    """Whether a branch starts copies, and besides only computes, which it could at any time."""
    if op.results or op.false_region.blocks:
        return False
    ops = [each for each in op.true_region.block.ops if not isinstance(each, scf.YieldOp)]
    rest = [each for each in ops if each.name not in PURE]
    return bool(rest) and all(
        isinstance(each, simt.AsyncCopyOp) or (isinstance(each, scf.IfOp) and _only_copies(each)) for each in rest
    )


def _valid_bytes(at: Emission, op: simt.AsyncCopyOp, valid: SSAValue) -> ir.Value:
    elements = op.elements.value.data
    number, builder = at.scalar(valid), at.builder
    most, none = number.type(elements), number.type(0)
    number = builder.select(builder.icmp_signed("<", number, most), number, most)
    number = builder.select(builder.icmp_signed(">", number, none), number, none)
    return builder.mul(resized(builder, number, I32), I32(op.bytes // elements))


def commit(at: Emission, op: simt.CommitOp) -> None:
    if at.target.capability >= COPIES_SINCE:
        at.call("llvm.nvvm.cp.async.commit.group", ir.VoidType(), [])


def wait(at: Emission, op: simt.WaitOp) -> None:
    if at.target.capability >= COPIES_SINCE:
        at.call("llvm.nvvm.cp.async.wait.group", ir.VoidType(), [I32(op.pending.value.data)])
