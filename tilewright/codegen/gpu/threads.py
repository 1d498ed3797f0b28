"""Threads of a block, their neighbours and their copies, as far as targets do not differ."""

from __future__ import annotations

from llvmlite import ir

from tilewright.codegen.gpu.emission import Emission, resized
from tilewright.codegen.gpu.memory import Read, Write
from tilewright.codegen.values import I32
from tilewright.kernel import simt


def thread_id(intrinsic: str, at: Emission, op: simt.ThreadIdOp) -> None:
    """The coordinate that `intrinsic` with the name of the axis gives; 0 where the block has an extent of 1."""
    axis = op.axis.value.data
    if at.func.block[axis] == 1:
        at.set(op.result, [at.index(0)])
        return
    number = at.call(f"{intrinsic}.{'xyz'[axis]}", I32, [])
    at.set(op.result, [resized(at.builder, number, at.index)])


def source_lane(at: Emission, kind: str, lane: ir.Value, amount: ir.Value) -> ir.Value:
    """The lane that a shuffle of lane `lane` reads, perhaps outside of the warp."""
    own = resized(at.builder, lane, at.index)
    if kind == "xor":
        return at.builder.xor(own, amount)
    if kind == "up":
        return at.builder.sub(own, amount)
    return at.builder.add(own, amount) if kind == "down" else amount


def copy_ends(at: Emission, op: simt.AsyncCopyOp) -> tuple[ir.Value, ir.Value]:
    """The addresses from which and to which a copy goes."""
    source, target = at.places[op.source], at.places[op.target]
    return at.address(source, at.scalar(op.source_offset)), at.address(target, at.scalar(op.target_offset))


def copy_now(read: Read, write: Write, at: Emission, op: simt.AsyncCopyOp) -> None:
    """A copy as a load and a store: complete at once, which is sooner than the program asks for."""
    source, target, elements = at.places[op.source], at.places[op.target], op.elements.value.data
    there, here = copy_ends(at, op)
    if op.valid is None:
        values = read(at, source, there, 0, elements, op.bytes, None)
    else:
        valid, values = at.scalar(op.valid), []
        for number in range(elements):
            inside = at.builder.icmp_signed("<", valid.type(number), valid)
            values += read(at, source, there, number, 1, source.bytes, frozenset([inside]))
    write(at, target, here, 0, values, op.bytes, frozenset())
