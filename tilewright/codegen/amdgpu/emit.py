"""One kernel in distributed form to LLVM IR for AMD: its entry, and what operations it emits in its own way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from llvmlite import ir
from xdsl.ir import Operation

from tilewright.codegen.amdgpu import atomics, memory, mma
from tilewright.codegen.amdgpu import simt as threads
from tilewright.codegen.amdgpu.emission import Emission
from tilewright.codegen.amdgpu.target import Target
from tilewright.codegen.gpu.control import SHARED_ALIGN, block_of, index_type
from tilewright.codegen.gpu.emission import GLOBAL, SHARED
from tilewright.codegen.gpu.entry import declared, emit_body, written_views
from tilewright.codegen.gpu.launches import ArgumentFacts
from tilewright.codegen.gpu.memory import gather, load, store
from tilewright.codegen.values import I8
from tilewright.kernel import dialect as tile
from tilewright.kernel import simt
from tilewright.kernel.attributes import blocks_of, registers_of
from tilewright.kernel.block_limits import check_threads

_SIMDS = 4  # of a compute unit of CDNA, and of a work-group processor of RDNA: the ISA guides
# What a kernel of ours does not ask the runtime for; LLVM prepares for all of it otherwise.
_UNUSED = (
    "no-completion-action", "no-default-queue", "no-dispatch-id", "no-dispatch-ptr", "no-heap-ptr", "no-hostcall-ptr",
    "no-implicitarg-ptr", "no-lds-kernel-id", "no-multigrid-sync-arg", "no-queue-ptr",
)  # fmt: skip


def emit_kernel(module: ir.Module, target: Target, func: tile.FuncOp, given: Sequence[ArgumentFacts]) -> int:
    """Add a kernel to a module; `given` are what launches give for its arguments. Returns its shared bytes."""
    arguments = list(func.body.block.args)
    spaces = Emission.spaces
    parameters = [ir.PointerType(addrspace=spaces[GLOBAL])] * len(arguments)
    function = declared(module, func, parameters, "amdgpu_kernel", _limits(func, target))
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    written = written_views(func)
    read = {view for op in tile.operations(func.body) if not isinstance(op, tile.StoreOp) for view in op.operands}
    ordered = any(argument in written and argument in read for argument in arguments)
    at = Emission(builder, target, func, index_type(func), HANDLERS, ordered=ordered, unread=frozenset(written - read))
    shared_array = partial(_shared_array, module, function.name)
    return emit_body(at, function, given, "llvm.amdgcn.workgroup.id", shared_array)


def _limits(func: tile.FuncOp, target: Target) -> dict[str, str]:
    """Attributes of the function: threads of a block, what the runtime may leave out, limits that the kernel sets."""
    block = block_of(func, target.lanes)
    check_threads(func, block, target.facts)
    count = prod(block)
    limits = {"amdgpu-flat-work-group-size": f"{count},{count}", "uniform-work-group-size": "true"}
    limits |= {f"amdgpu-{name}": "" for name in _UNUSED}
    limits |= {f"amdgpu-no-workitem-id-{axis}": "" for axis, extent in zip("xyz", block, strict=True) if extent == 1}
    registers, blocks = registers_of(func), blocks_of(func)
    if registers is not None:
        limits["amdgpu-num-vgpr"] = str(registers)
    if blocks is not None:
        waves = -(-count // target.lanes)
        limits["amdgpu-waves-per-eu"] = str(max(1, -(-blocks * waves // _SIMDS)))
    return limits


def _shared_array(module: ir.Module, kernel: str, count: int) -> ir.Value:
    """Shared memory: of fixed size, which the code object tells."""
    type_ = ir.ArrayType(I8, count)
    array = ir.GlobalVariable(module, type_, f"{kernel}.shared", addrspace=Emission.spaces[SHARED])
    array.linkage, array.align, array.initializer = "internal", SHARED_ALIGN, ir.Constant(type_, ir.Undefined)
    return array


HANDLERS: dict[type[Operation], Callable[[Emission, Any], None]] = {
    tile.LoadOp: partial(load, memory.read),
    tile.StoreOp: partial(store, memory.write),
    tile.GatherOp: partial(gather, memory.read),
    tile.PrefetchOp: memory.prefetch,
    simt.ThreadIdOp: threads.thread_id,
    simt.BarrierOp: threads.barrier,
    simt.ShuffleOp: threads.shuffle,
    simt.AsyncCopyOp: threads.async_copy,
    simt.CommitOp: threads.nothing,
    simt.WaitOp: threads.nothing,
    simt.AtomicOp: atomics.atomic,
    simt.LoadMatrixOp: mma.load_matrix,
    simt.StoreMatrixOp: mma.store_matrix,
    simt.LoadFragmentOp: mma.no_fragment,
    simt.StoreFragmentOp: mma.no_fragment,
    simt.MmaOp: mma.mma,
}
