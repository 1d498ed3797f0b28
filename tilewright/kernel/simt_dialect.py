"""All operations of the distributed form that `dialect` has not."""

from __future__ import annotations

from xdsl.ir import Dialect

from tilewright.kernel import simt
from tilewright.kernel.hopper import simt_async, simt_launches, simt_warpgroup
from tilewright.kernel.operation import with_direct_access

Simt = Dialect(
    "simt",
    [
        simt.ThreadIdOp, simt.BarrierOp, simt.ClusterBarrierOp, simt.ShuffleOp, simt.SharedOp, simt.AsyncCopyOp,
        simt.CommitOp, simt.WaitOp,
        simt.AtomicOp, simt.LoadMatrixOp, simt.StoreMatrixOp, simt.LoadFragmentOp, simt.StoreFragmentOp, simt.MmaOp,
        simt.JoinOp, simt.PartOp,
        *simt_async.OPERATIONS, *simt_launches.OPERATIONS,
        simt_warpgroup.WarpIdOp, simt_warpgroup.ElectOp, simt_warpgroup.RegistersOp,
        simt_warpgroup.WarpgroupFenceOp, simt_warpgroup.WarpgroupMmaOp, simt_warpgroup.WarpgroupCommitOp,
        simt_warpgroup.WarpgroupWaitOp,
    ],
)  # fmt: skip
with_direct_access(*Simt.operations)
