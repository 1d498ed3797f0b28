"""Barriers that count arrivals and bytes, and copies of tensor boxes by the copy engine, with the maps they need."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir
from xdsl.ir import SSAValue

from tilewright.codegen.host_program import TensorMap
from tilewright.codegen.nvptx.emission import I16, I32, I64, Emission, resized
from tilewright.errors import InvalidProgram
from tilewright.kernel import dialect as tile
from tilewright.kernel.hopper import simt_async
from tilewright.kernel.simt import element_bytes

MAP_BYTES = 128
MAP_ALIGN = 128  # of CUtensorMap in cuda.h since CUDA 13; 64 before
SINCE = (90, 80)  # compute capability and PTX version, both times ten
_ELEMENTS = {"i8": "u8", "i16": "u16", "i32": "s32", "i64": "s64"}  # what maps call elements without a sign

TensorCopy = simt_async.TensorLoadOp | simt_async.TensorStoreOp
Mbarrier = simt_async.MbarrierInitOp | simt_async.MbarrierArriveOp | simt_async.MbarrierWaitOp


def maps_of(func: tile.FuncOp) -> tuple[TensorMap, ...]:
    """The tensor maps that a kernel takes behind its arguments, each once, in the order of first use."""
    found = [map_of(func, op) for op in tile.operations(func.body) if isinstance(op, TensorCopy)]
    return tuple(dict.fromkeys(found))


def map_of(func: tile.FuncOp, op: TensorCopy) -> TensorMap:
    """The map of a copy; raises InvalidProgram where the tensor is no argument of the kernel."""
    arguments: list[SSAValue] = list(func.body.block.args)
    if op.tensor not in arguments:
        name = func.sym_name.data
        raise InvalidProgram(f"kernel {name}: a tensor copy from memory of its own", help="an argument of the kernel")
    box, size, kind = op.form, element_bytes(op.tensor), str(tile.element(op.tensor))
    strides = tuple(stride * size for stride in box.strides)
    kind = _ELEMENTS.get(kind, kind)
    return TensorMap(arguments.index(op.tensor), kind, box.extents, strides, box.sides, box.swizzle)


def parameters(function: ir.Function, count: int) -> list[ir.Value]:
    """Mark the last parameters of a function as maps, which lie among its parameters themselves."""
    made = list(function.args)[len(function.args) - count :]
    for parameter in made:
        set.add(parameter.attributes, f"byval([{MAP_BYTES} x i8])")  # llvmlite knows neither attribute
        set.add(parameter.attributes, '"nvvm.grid_constant"')
        parameter.attributes.align = MAP_ALIGN
    return made


def prefetch_maps(at: Emission) -> None:
    """One thread prefetches the tensor maps of a kernel into the cache that the copy engine reads them from."""
    if not at.maps:
        return
    first = at.builder.icmp_unsigned("==", at.call("llvm.nvvm.read.ptx.sreg.tid.x", I32, []), I32(0))
    for given in at.maps.values():
        here = at.builder.ptrtoint(given, I64)
        at.asm("@$1 prefetch.tensormap [$0];", ir.VoidType(), "l,b", [here, first])


# Barriers -------------------------------------------------------------------------------------------------------------


def _address(
    at: Emission, op: simt_async.MbarrierInitOp | simt_async.MbarrierArriveOp | simt_async.MbarrierWaitOp
) -> ir.Value:
    at.require("an mbarrier", *SINCE)
    return at.address(at.places[op.barriers], at.scalar(op.index))


def mbarrier_init(at: Emission, op: simt_async.MbarrierInitOp) -> None:
    text = "mbarrier.init.shared::cta.b64 [$0], $1;"
    at.asm(text, ir.VoidType(), "r,r", [_address(at, op), I32(op.arrivals.value.data)])


def mbarrier_arrive(at: Emission, op: simt_async.MbarrierArriveOp) -> None:
    """In another block too without a scope: of the cluster, it would have the warp wait for all that it has stored, and
    whoever waits forget what is cached; what a release orders here, reads of products that are done, needs neither.
    """
    address = _address(at, op)
    if op.rank is not None:
        text = (
            "{ .reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; "
            "mbarrier.arrive.shared::cluster.b64 _, [there]; }"
        )
        at.asm(text, ir.VoidType(), "r,r", [address, resized(at.builder, at.scalar(op.rank), I32)])
        return
    if op.bytes is None:
        at.asm("mbarrier.arrive.shared::cta.b64 _, [$0];", ir.VoidType(), "r", [address])
        return
    text = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
    at.asm(text, ir.VoidType(), "r,r", [address, I32(op.bytes.value.data)])


def mbarrier_wait(at: Emission, op: simt_async.MbarrierWaitOp) -> None:
    """A loop of its own, as the instruction gives up after a while."""
    parity = resized(at.builder, at.scalar(op.parity), I32)
    text = (
        "{ .reg .pred complete; wait: mbarrier.try_wait.parity.shared::cta.b64 complete, [$0], $1; "
        "@!complete bra wait; }"
    )
    at.asm(text, ir.VoidType(), "r,r", [_address(at, op), parity])


def fence(at: Emission, op: simt_async.FenceOp) -> None:
    at.require("a fence of asynchronous operations", *SINCE)
    name = {"async": "fence.proxy.async.shared::cta", "mbarrier": "fence.mbarrier_init.release.cluster"}[op.kind.data]
    at.asm(f"{name};", ir.VoidType(), "", [])


# Copies ---------------------------------------------------------------------------------------------------------------


def _box(at: Emission, op: TensorCopy, coordinates: Sequence[ir.Value]) -> tuple[ir.Value, list[ir.Value]]:
    """The address of the map, and the coordinates as the instruction wants them: the innermost first."""
    at.require("a tensor copy", *SINCE)
    here = at.builder.ptrtoint(at.maps[map_of(at.func, op)], I64)
    return here, [resized(at.builder, value, I32) for value in reversed(coordinates)]


def tensor_load(at: Emission, op: simt_async.TensorLoadOp) -> None:
    map_, coordinates = _box(at, op, [at.scalar(value) for value in op.coordinates])
    target = at.address(at.places[op.memory], at.scalar(op.offset))
    barrier = at.address(at.places[op.barriers], at.scalar(op.barrier))
    rank = len(coordinates)
    names = ", ".join(f"${3 + number}" for number in range(rank))
    kind, given, letters = "", [target, map_, barrier, *coordinates], ["r", "l", "r", *["r"] * rank]
    more = ""
    if op.everywhere is not None:
        kind, more = ".multicast::cluster", f", ${len(given)}"
        given.append(I16((1 << at.func.blocks) - 1))
        letters.append("h")
    text = (
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes{kind} "
        f"[$0], [$1, {{{names}}}], [$2]{more};"
    )
    at.asm(text, ir.VoidType(), ",".join(letters), given)


def tensor_store(at: Emission, op: simt_async.TensorStoreOp) -> None:
    map_, coordinates = _box(at, op, [at.scalar(value) for value in op.coordinates])
    source = at.address(at.places[op.memory], at.scalar(op.offset))
    rank = len(coordinates)
    names = ", ".join(f"${2 + number}" for number in range(rank))
    text = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [$0, {{{names}}}], [$1];"
    at.asm(text, ir.VoidType(), ",".join(["l", "r", *["r"] * rank]), [map_, source, *coordinates])


def tensor_commit(at: Emission, op: simt_async.TensorCommitOp) -> None:
    at.require("a tensor copy", *SINCE)
    at.asm("cp.async.bulk.commit_group;", ir.VoidType(), "", [])


def tensor_wait(at: Emission, op: simt_async.TensorWaitOp) -> None:
    at.require("a tensor copy", *SINCE)
    at.asm(f"cp.async.bulk.wait_group.read {op.pending.value.data};", ir.VoidType(), "", [])
