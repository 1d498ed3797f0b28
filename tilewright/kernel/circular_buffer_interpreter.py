"""The interpreter of circular buffers in tile form: copies are done at once. The distributed form checks who waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Operation, SSAValue

from tilewright.kernel import circular_buffer
from tilewright.kernel.elements import Array, cast, dtype_of
from tilewright.kernel.simt import element_bytes
from tilewright.kernel.tensor_map_box import swizzled
from tilewright.kernel.views import View
from tilewright.layouts.form import InShared
from tilewright.layouts.text import parse


class Program(Protocol):
    """What the interpreter offers."""

    values: dict[SSAValue, Array]
    views: dict[SSAValue, View]

    def scalar(self, value: SSAValue) -> int: ...
    def fail(self, op: Operation, message: str) -> NoReturn: ...
    def read(self, op: Operation, view: View, places: Array, active: Array) -> Array: ...
    def write(self, op: Operation, view: View, places: Array, active: Array, value: Array) -> None: ...


def _circular(program: Program, op: circular_buffer.CircularOp) -> None:
    """The state holds, by slot, one more than the use that filled it, and than the one that released it."""
    for result in (op.state, *op.buffers):
        assert isinstance(result.type, MemRefType)
        array = np.zeros(result.type.get_shape(), dtype_of(result.type))
        program.views[result] = View(array, np.zeros((len(array), array.itemsize), np.bool_))


def _slot(program: Program, op: Any, view: SSAValue, number_of: SSAValue | None = None) -> tuple[Array, int, int, int]:
    """The state of a circular buffer, its slots, the slot of a use (the one of `op`, if none is named), its number."""
    circular = view.owner
    assert isinstance(circular, circular_buffer.CircularOp), "verified"
    slots, number = circular.slots.value.data, program.scalar(op.number if number_of is None else number_of)
    return program.views[circular.state].array, slots, number % slots, number


def _produce(program: Program, op: circular_buffer.ProduceOp) -> None:
    if not program.values[op.when]:
        return
    state, slots, slot, number = _slot(program, op, op.state)
    if state[slot] != state[slots + slot] or (number >= slots and state[slot] != number - slots + 1):
        program.fail(op, f"fills slot {slot} for use {number}, while use {state[slot] - 1} has it")
    state[slot] = number + 1
    for copy in op.body.block.ops:
        assert isinstance(copy, circular_buffer.BulkLoadOp), "verified"
        _copy(program, copy, slot)


def _copy(program: Program, op: circular_buffer.BulkLoadOp, slot: int) -> None:
    box = op.form
    offsets, inside = box.elements([program.scalar(value) for value in op.coordinates])
    found = program.read(op, program.views[op.view], offsets, inside)
    circular = op.buffer.owner
    assert isinstance(circular, circular_buffer.CircularOp), "verified"
    size = element_bytes(op.buffer)
    start = slot * circular.slot_elements(op.buffer) + op.place.value.data
    into = swizzled((start + np.arange(offsets.size)) * size, box.swizzle) // size
    program.write(op, program.views[op.buffer], into, np.ones(into.shape, np.bool_), found)


def _wait(program: Program, op: circular_buffer.ConsumerWaitOp) -> None:
    state, _, slot, number = _slot(program, op, op.state)
    if state[slot] != number + 1:
        program.fail(op, f"waits for use {number}, which nothing has filled")


def _release(program: Program, op: circular_buffer.ConsumerReleaseOp) -> None:
    state, slots, slot, number = _slot(program, op, op.state)
    if state[slot] != number + 1:
        program.fail(op, f"releases use {number}, while use {state[slot] - 1} has the slot")
    state[slots + slot] = number + 1


def _dot(program: Program, op: circular_buffer.StagedDotOp) -> None:
    m, n, k = op.extents
    c = program.values[op.c]
    factors = [program.values[op.a]] if op.holds_a else []
    extents = [(k, n)] if op.holds_a else [(m, k), (k, n)]
    factors += [_tile(program, op, *each, sides) for each, sides in zip(op.staged, extents, strict=True)]
    a, b = (cast(factor, c.dtype, False) for factor in factors)
    with np.errstate(all="ignore"):
        program.values[op.result] = np.asarray(c + a @ b)


def _tile(
    program: Program, op: Operation, view: SSAValue, memory: str, number_of: SSAValue, extents: Sequence[int]
) -> Array:
    state, slots, slot, number = _slot(program, op, view, number_of)
    if state[slot] != number + 1 or state[slots + slot] == number + 1:
        program.fail(op, f"reads use {number} of a circular buffer, which is not there")
    form = parse(memory)
    assert isinstance(form, InShared), memory
    places = slot * int(np.prod(extents)) + form.offsets(extents)
    return program.read(op, program.views[view], places, np.ones(tuple(extents), np.bool_))


def _finish(program: Program, op: circular_buffer.FinishOp) -> None:
    program.values[op.result] = program.values[op.value]


HANDLERS: dict[type[Operation], Callable[[Any, Any], None]] = {
    circular_buffer.CircularOp: _circular,
    circular_buffer.ProduceOp: _produce,
    circular_buffer.ConsumerWaitOp: _wait,
    circular_buffer.ConsumerReleaseOp: _release,
    circular_buffer.StagedDotOp: _dot,
    circular_buffer.FinishOp: _finish,
}
