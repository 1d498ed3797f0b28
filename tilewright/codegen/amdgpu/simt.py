"""Threads, waves and shared memory: what `kernel.simt` adds, but for atomics and fragments."""

from __future__ import annotations

from functools import partial

from llvmlite import ir

from tilewright.codegen.amdgpu.emission import Emission
from tilewright.codegen.amdgpu.memory import read, write
from tilewright.codegen.gpu import threads
from tilewright.codegen.gpu.elements import known
from tilewright.codegen.gpu.emission import from_words, resized, to_words
from tilewright.codegen.values import I1, I32
from tilewright.kernel import simt

# What DPP does within a row of 16 lanes. LLVM, AMDGPUUsage, "dpp_ctrl"; the ISA guides, "Data Parallel Processing".
_QUAD = {1: 0xB1, 2: 0x4E, 3: 0x1B}  # lanes 1 0 3 2, 2 3 0 1, 3 2 1 0 of every four
_MIRROR = {7: 0x141, 15: 0x140}
_ROTATE_8 = 0x128
_ROW_XMASK = 0x160
_IDENTITY = (0x76543210, -0x01234568)  # lanes 0 to 7 and 8 to 15 of the other row, four bits each


thread_id = partial(threads.thread_id, "llvm.amdgcn.workitem.id")


def lane_id(at: Emission) -> ir.Value:
    low = at.call("llvm.amdgcn.mbcnt.lo", I32, [I32(-1), I32(0)])
    return low if at.target.lanes == 32 else at.call("llvm.amdgcn.mbcnt.hi", I32, [I32(-1), low])


def barrier(at: Emission, op: simt.BarrierOp) -> None:
    """What was written before is seen after: of shared memory, and of global memory where threads pass on
    values there. Waiting for all of global memory would wait for loads that are on their way to registers.
    """
    _fence(at, "release")
    at.call("llvm.amdgcn.s.barrier", ir.VoidType(), [])
    _fence(at, "acquire")


def _fence(at: Emission, ordering: str) -> None:
    fence = at.builder.fence(ordering, "workgroup")
    if not at.ordered:
        texts = [ir.MetaDataString(at.module, text) for text in ("amdgpu-synchronize-as", "local")]
        local = at.module.add_metadata(texts)
        fence.ordering += f", !mmra {local.get_reference()}"  # llvmlite's own printing of a fence knows no metadata


def shuffle(at: Emission, op: simt.ShuffleOp) -> None:
    """32 bits at a time; a source outside of the wave leaves a lane its own value."""
    values = at.elements(op.value)
    same = values[0].type == at.index == I32
    words = list(values) if same else to_words(at.builder, values)
    lanes, amount, kind = at.target.lanes, at.scalar(op.lane), op.kind.data
    number = known(amount)
    if (number == 0 and kind != "index") or (number is not None and not 0 <= number < lanes and kind == "index"):
        moved = words
    elif number is not None and 0 <= number < lanes and kind == "xor":
        moved = [_exchanged(at, word, number) for word in words]
    elif number is not None and kind == "index":
        moved = [at.call("llvm.amdgcn.readlane.i32", I32, [word, I32(number)], convergent=True) for word in words]
    else:
        source = threads.source_lane(at, kind, lane_id(at), amount)
        inside = at.builder.icmp_unsigned("<", source, source.type(lanes))
        low = resized(at.builder, source, I32)
        moved = [at.builder.select(inside, taken(at, low, word), word) for word in words]
    at.set(op.result, moved if same else from_words(at.builder, moved, values[0].type, len(values)))


def taken(at: Emission, lane: ir.Value, word: ir.Value) -> ir.Value:
    """A word of the lane that every lane names."""
    address = at.builder.shl(lane, I32(2))
    return at.call("llvm.amdgcn.ds.bpermute", I32, [address, word], convergent=True)


def _exchanged(at: Emission, word: ir.Value, distance: int) -> ir.Value:
    """A word of lane ``l xor distance``: within a row of 16 and between two by moves of registers, else by the LDS."""
    control = {**_QUAD, **_MIRROR, 8: _ROTATE_8}.get(distance)
    if control is None and distance < 16 and at.target.generation >= 10:
        control = _ROW_XMASK | distance
    if control is not None:
        given = [word, word, I32(control), I32(15), I32(15), I1(1)]
        return at.call("llvm.amdgcn.update.dpp.i32", I32, given, convergent=True)
    if distance == 16 and at.target.generation >= 10:
        low, high = _IDENTITY
        given = [word, word, I32(low), I32(high), I1(0), I1(1)]
        return at.call("llvm.amdgcn.permlanex16.i32", I32, given, convergent=True)
    if distance < 32:
        pattern = distance << 10 | 31  # of 32 lanes: and with 31, xor
        return at.call("llvm.amdgcn.ds.swizzle", I32, [word, I32(pattern)], convergent=True)
    return taken(at, at.builder.xor(lane_id(at), I32(distance)), word)


# Asynchronous copies --------------------------------------------------------------------------------------------------

async_copy = partial(threads.copy_now, read, write)


def nothing(at: Emission, op: simt.CommitOp | simt.WaitOp) -> None:
    """Groups of copies, which are complete where they start."""
