"""Atomic operations: ``atomicrmw``, which LLVM makes an instruction or a loop around compare-and-swap."""

from __future__ import annotations

from llvmlite import ir
from xdsl.dialects.builtin import AnyFloat, BFloat16Type
from xdsl.ir import Attribute

from tilewright.codegen.amdgpu.emission import Emission
from tilewright.codegen.gpu.emission import BF16, GLOBAL, SHARED, Place
from tilewright.codegen.gpu.memory import read_where
from tilewright.codegen.values import I16
from tilewright.errors import InvalidProgram
from tilewright.kernel import dialect as tile
from tilewright.kernel import simt

_SCOPES = {GLOBAL: "agent", SHARED: "workgroup"}
_FLOATS = {"add": "fadd", "max": "fmaximum", "min": "fminimum"}  # of which NaN wins
_UNSIGNED = {"max": "umax", "min": "umin"}


def atomic(at: Emission, op: simt.AtomicOp) -> None:
    """Relaxed, for all threads of the device in global memory and for those of the block in its own."""
    place = at.places[op.view]
    if place.space not in _SCOPES:
        raise InvalidProgram(f"kernel {at.name}: an atomic operation on memory of one thread")
    address, value = at.address(place, at.scalar(op.offset)), at.scalar(op.value)

    def modify() -> list[ir.Value]:
        return [_modify(at, op, place, address, value)]

    at.set(op.result, modify() if op.mask is None else read_where(at, at.scalar(op.mask), modify))


def _modify(at: Emission, op: simt.AtomicOp, place: Place, address: ir.Value, value: ir.Value) -> ir.Value:
    type_ = tile.element(op.value)
    as_bfloat = isinstance(type_, BFloat16Type) and op.kind.data in _FLOATS
    given = at.builder.bitcast(value, BF16) if as_bfloat else value
    order = f'syncscope("{_SCOPES[place.space]}") monotonic'  # llvmlite prints the two as one
    old = at.builder.atomic_rmw(_operation(op.kind.data, type_, bool(op.unsigned)), address, given, order)
    if isinstance(type_, AnyFloat) and place.space == GLOBAL:
        # Buffers lie in the memory of the device, which atomic instructions on floats ask for.
        for promise in ("amdgpu.no.fine.grained.memory", "amdgpu.no.remote.memory"):
            old.set_metadata(promise, at.module.add_metadata([]))
    return at.builder.bitcast(old, I16) if as_bfloat else old


def _operation(kind: str, type_: Attribute, unsigned: bool) -> str:
    if kind == "exchange":
        return "xchg"
    if isinstance(type_, AnyFloat):
        return _FLOATS[kind]
    return _UNSIGNED.get(kind, kind) if unsigned else kind
