"""One kernel in distributed form to LLVM IR for PTX: its entry, and what operations it emits in its own way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from llvmlite import ir
from xdsl.dialects import scf
from xdsl.ir import Operation

from tilewright.codegen.gpu.control import SHARED_ALIGN, block_of, index_type
from tilewright.codegen.gpu.entry import declared, emit_body
from tilewright.codegen.gpu.launches import ArgumentFacts
from tilewright.codegen.gpu.memory import gather, load, store
from tilewright.codegen.nvptx import atomics, memory, mma, tensor_copies, warpgroup
from tilewright.codegen.nvptx import simt as threads
from tilewright.codegen.nvptx.emission import GLOBAL, SHARED, SPACES, Emission, Needs
from tilewright.codegen.nvptx.target import Target
from tilewright.codegen.values import I8
from tilewright.kernel import dialect as tile
from tilewright.kernel import simt
from tilewright.kernel.attributes import blocks_of, registers_of
from tilewright.kernel.block_limits import check_threads
from tilewright.kernel.hopper import simt_async, simt_launches, simt_warpgroup

SHARED_NAME = "shared"


def emit_kernel(
    module: ir.Module, target: Target, func: tile.FuncOp, given: Sequence[ArgumentFacts], needs: Needs
) -> int:
    """Add a kernel to a module; `given` are what launches give for its arguments. Returns its shared bytes."""
    block = block_of(func, threads.LANES)
    check_threads(func, block, target.facts)
    maps = tensor_copies.maps_of(func)
    parameters = [ir.PointerType(addrspace=SPACES[GLOBAL])] * len(func.body.block.args) + [ir.PointerType()] * len(maps)
    limits = {"nvvm.reqntid": ",".join(map(str, block))}
    if func.blocks > 1:
        limits["nvvm.cluster_dim"] = f"{func.blocks},1,1"
    asked = {"nvvm.maxnreg": registers_of(func), "nvvm.minctasm": blocks_of(func)}
    limits |= {name: str(count) for name, count in asked.items() if count is not None}
    function = declared(module, func, parameters, "ptx_kernel", limits)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    at = Emission(builder, target, func, index_type(func), HANDLERS, needs=needs)
    at.maps = dict(zip(maps, tensor_copies.parameters(function, len(maps)), strict=True))
    return emit_body(at, function, given, "llvm.nvvm.read.ptx.sreg.ctaid", partial(_shared_array, module))


def _shared_array(module: ir.Module, count: int) -> ir.Value:
    """Shared memory, as large as its launch says."""
    found = module.globals.get(SHARED_NAME)
    if found is None:
        found = ir.GlobalVariable(module, ir.ArrayType(I8, 0), SHARED_NAME, addrspace=SPACES[SHARED])
        found.linkage, found.align = "external", SHARED_ALIGN
    return found


HANDLERS: dict[type[Operation], Callable[[Emission, Any], None]] = {
    tile.LoadOp: partial(load, memory.read),
    tile.StoreOp: partial(store, memory.write),
    tile.GatherOp: partial(gather, memory.read),
    tile.PrefetchOp: memory.prefetch,
    tile.BlockRankOp: threads.block_rank,
    scf.IfOp: threads.branch,
    simt.ThreadIdOp: threads.thread_id,
    simt.BarrierOp: threads.barrier,
    simt.ClusterBarrierOp: threads.cluster_barrier,
    simt_launches.LaunchDependentsOp: threads.launch_dependents,
    simt_launches.WaitForLaunchesOp: threads.wait_for_launches,
    simt.ShuffleOp: threads.shuffle,
    simt.AsyncCopyOp: threads.async_copy,
    simt.CommitOp: threads.commit,
    simt.WaitOp: threads.wait,
    simt.AtomicOp: atomics.atomic,
    simt.LoadMatrixOp: mma.load_matrix,
    simt.StoreMatrixOp: mma.store_matrix,
    simt.LoadFragmentOp: mma.load_fragment,
    simt.StoreFragmentOp: mma.store_fragment,
    simt.MmaOp: mma.mma,
    tile.Tf32Op: mma.tf32,
    simt_async.WarpBarrierOp: threads.warp_barrier,
    simt_async.MbarrierInitOp: tensor_copies.mbarrier_init,
    simt_async.MbarrierArriveOp: tensor_copies.mbarrier_arrive,
    simt_async.MbarrierWaitOp: tensor_copies.mbarrier_wait,
    simt_async.FenceOp: tensor_copies.fence,
    simt_async.TensorLoadOp: tensor_copies.tensor_load,
    simt_async.TensorStoreOp: tensor_copies.tensor_store,
    simt_async.TensorCommitOp: tensor_copies.tensor_commit,
    simt_async.TensorWaitOp: tensor_copies.tensor_wait,
    simt_warpgroup.WarpIdOp: warpgroup.warp_id,
    simt_warpgroup.ElectOp: warpgroup.elect,
    simt_warpgroup.RegistersOp: warpgroup.registers,
    simt_warpgroup.WarpgroupFenceOp: warpgroup.fence,
    simt_warpgroup.WarpgroupMmaOp: warpgroup.mma,
    simt_warpgroup.WarpgroupCommitOp: warpgroup.commit,
    simt_warpgroup.WarpgroupWaitOp: warpgroup.wait,
}
