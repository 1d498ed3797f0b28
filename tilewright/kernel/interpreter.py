"""The reference interpreter of tile programs, in NumPy: what a program means, checked at every access.

An access outside its view, a read of memory that nothing has written, and (with `races`) two programs of one launch
that meet in memory are InvalidProgram, with the kernel, the program and the operation. Speed is no aim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, FloatAttr, IntegerAttr, MemRefType, ModuleOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tilewright.errors import InvalidProgram
from tilewright.kernel.dialect import (
    AllocOp,
    BroadcastOp,
    BufferOp,
    DotOp,
    FuncOp,
    GatherOp,
    IotaOp,
    LaunchOp,
    LoadOp,
    MainOp,
    PrefetchOp,
    ProgramIdOp,
    ReduceOp,
    ReshapeOp,
    ReturnOp,
    StoreOp,
    operations,
    shape,
    strides_of,
)
from tilewright.kernel.elements import ELEMENT, Array, cast, dtype_of, evaluate, unsigned


def run_kernel(
    module: ModuleOp, name: str, buffers: Sequence[Array], *, seed: int | None = None, races: bool = False
) -> None:
    """Run every program of kernel `name` on flat arrays, one per argument, which are read and written in place.

    With a seed the programs run in a random order. With `races`, an element that two programs write, or that one
    writes and another reads, is an error.
    """
    kernel = _kernel(module, name)
    views = [
        _View(_flat(buffer, type_, f"argument {number} of @{name}"), None)
        for number, (buffer, type_) in enumerate(zip(buffers, _types(kernel, buffers), strict=True))
    ]
    _launch(kernel, views, seed, races)


def run_main(
    module: ModuleOp,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    constants: bytes | Array = b"",
    *,
    seed: int | None = None,
    races: bool = False,
) -> None:
    """Run the host sequence: flat arrays of the inputs, of the outputs (written), and the bytes of the constants.

    Arena and outputs hold nothing at first; every element of an output that has a buffer must be written.
    """
    main = next((op for op in module.body.ops if isinstance(op, MainOp)), None)
    if main is None:
        raise InvalidProgram("the program has no tile.main", help="run a single kernel with run_kernel")
    memory = _Memory(main, inputs, outputs, constants)
    views: dict[SSAValue, _View] = {}
    for op in main.body.block.ops:
        if isinstance(op, BufferOp):
            views[op.result] = memory.view(op)
        elif isinstance(op, LaunchOp):
            kernel = _kernel(module, op.kernel.root_reference.data)
            given = [views[argument] for argument in op.arguments]
            _refuse_overlap(kernel, given)
            _launch(kernel, given, seed, races)
    memory.check_outputs()


@dataclass
class _View:
    """A flat array; `written` says per byte whether it holds anything (None: all of it does).

    `writer` and `reader` hold, per element, which program of this launch did so: 0 none, program + 1, or -1 several.
    """

    array: Array
    written: Array | None
    writer: Array | None = None
    reader: Array | None = None


class _Memory:
    """Inputs, outputs, constants and arena of one run of the host sequence."""

    def __init__(
        self, main: MainOp, inputs: Sequence[Array], outputs: Sequence[Array], constants: bytes | Array
    ) -> None:
        self.inputs, self.outputs = list(inputs), list(outputs)
        self.constants = np.frombuffer(bytes(constants), np.uint8)
        if len(self.constants) != main.constants_bytes.value.data:
            raise InvalidProgram(
                f"{len(self.constants)} bytes of constants; the program wants {main.constants_bytes.value.data}"
            )
        self.arena = np.zeros(main.arena_bytes.value.data, np.uint8)
        self.arena_written = np.zeros(len(self.arena), np.bool_)
        self.output_written: dict[int, Array] = {}

    def view(self, op: BufferOp) -> _View:
        type_, index = op.result.type, op.index.value.data
        match op.space.data:
            case "input":
                array = _flat(_nth(self.inputs, index, op), type_, f"input {index}").view()
                array.flags.writeable = False
                return _View(array, None)
            case "output":
                array = _flat(_nth(self.outputs, index, op), type_, f"output {index}")
                written = self.output_written.setdefault(index, np.zeros((len(array), array.itemsize), np.bool_))
                return _View(array, written)
            case "constant":
                return _View(_bytes_view(self.constants, op), None)
            case _:
                array = _bytes_view(self.arena, op)
                written = self.arena_written[index : index + array.nbytes].reshape(len(array), array.itemsize)
                return _View(array, written)

    def check_outputs(self) -> None:
        for index, written in self.output_written.items():
            missing = np.flatnonzero(~written.all(axis=1))
            if missing.size:
                raise InvalidProgram(
                    f"output {index}: {missing.size} of {len(written)} elements are never written, "
                    f"the first is {missing[0]}"
                )


class _Program:
    """One program of a launch: the values of its operations."""

    def __init__(self, kernel: FuncOp, coordinates: Sequence[int], number: int, races: bool) -> None:
        self.kernel, self.coordinates, self.number, self.races = kernel, coordinates, number, races
        self.values: dict[SSAValue, Array] = {}
        self.views: dict[SSAValue, _View] = {}

    def run(self, block: Block) -> list[Array]:
        """Run a block; the values that its terminator gives."""
        for op in block.ops:
            kind = type(op)
            if kind in ELEMENT:
                self.values[op.results[0]] = evaluate(op, *(self.values[operand] for operand in op.operands))
            elif kind in _HANDLERS:
                _HANDLERS[kind](self, op)
            elif isinstance(op, scf.YieldOp | ReturnOp):
                return [self.values[operand] for operand in op.operands]
            else:
                self.fail(op, f"{op.name} is not an operation of tile programs")
        raise AssertionError("verified blocks end with a terminator")

    def scalar(self, value: SSAValue) -> int:
        return int(self.values[value])

    def fail(self, op: Operation, message: str) -> None:
        place = f"@{self.kernel.sym_name.data}, program {list(self.coordinates)}"
        raise InvalidProgram(f"{message}\n    {_line(op)}", where=place)

    # Memory -----------------------------------------------------------------------------------------------------

    def touched(self, op: LoadOp | StoreOp, extents: tuple[int, ...]) -> tuple[Array, Array]:
        """Element number of every element of the access, and which of them are touched."""
        places = np.full(extents, self.scalar(op.offset), np.int64)
        active = np.ones(extents, np.bool_)
        for axis, (extent, stride) in enumerate(zip(extents, strides_of(op), strict=True)):
            along = [1] * len(extents)
            along[axis] = extent
            count = np.arange(extent).reshape(along)
            places = places + count * stride
            if op.bounds:
                active = active & (count < self.scalar(op.bounds[axis]))
        if op.mask is not None:
            active = active & self.values[op.mask]
        return places, active

    def read(self, op: Operation, view: _View, places: Array, active: Array) -> Array:
        """The elements at `places` where active, else 0."""
        chosen = places[active]
        self.check_bounds(op, view, chosen)
        if view.written is not None:
            empty = ~view.written[chosen].all(axis=1)
            if empty.any():
                self.fail(op, f"reads element {chosen[empty][0]}, which nothing has written")
        if self.races and view.reader is not None and view.writer is not None:
            me = self.number + 1
            other = (view.writer[chosen] != 0) & (view.writer[chosen] != me)
            if other.any():
                self.fail(op, f"race: reads element {chosen[other][0]}, which another program of this launch writes")
            seen = view.reader[chosen]
            view.reader[chosen] = np.where((seen == 0) | (seen == me), me, -1)
        result = np.zeros(np.shape(places), view.array.dtype)
        result[active] = view.array[chosen]
        return result

    def write(self, op: Operation, view: _View, places: Array, active: Array, value: Array) -> None:
        chosen = places[active]
        self.check_bounds(op, view, chosen)
        if not view.array.flags.writeable:
            self.fail(op, "writes to an input or a constant")
        if np.unique(chosen).size != chosen.size:
            self.fail(op, "two elements of one store have the same place")
        if self.races and view.reader is not None and view.writer is not None:
            me = self.number + 1
            for earlier, what in ((view.writer[chosen], "writes"), (view.reader[chosen], "reads")):
                other = (earlier != 0) & (earlier != me)
                if other.any():
                    message = f"race: writes element {chosen[other][0]}, which another program of this launch {what}"
                    self.fail(op, message)
            view.writer[chosen] = me
        if view.written is not None:
            view.written[chosen] = True
        view.array[chosen] = value[active]

    def check_bounds(self, op: Operation, view: _View, chosen: Array) -> None:
        outside = (chosen < 0) | (chosen >= len(view.array))
        if outside.any():
            self.fail(op, f"touches element {chosen[outside][0]} of a view of {len(view.array)} elements")


# Operations -----------------------------------------------------------------------------------------------------------


def _run_constant(program: _Program, op: arith.ConstantOp) -> None:
    program.values[op.result] = constant_value(op)


def constant_value(op: arith.ConstantOp) -> Array:
    """The array of an `arith.constant`."""
    attribute, dtype = op.value, dtype_of(op.result.type)
    if isinstance(attribute, IntegerAttr | FloatAttr):
        return np.asarray(attribute.value.data).astype(dtype)
    if not isinstance(attribute, DenseIntOrFPElementsAttr):
        raise InvalidProgram(f"constant {attribute} is neither a number nor dense")
    if dtype == np.bool_:  # xDSL stores true as 0xFF, which is no bool of NumPy
        return np.frombuffer(attribute.data.data, np.int8).astype(np.bool_).reshape(shape(op.result))
    return np.frombuffer(attribute.data.data, dtype).reshape(shape(op.result))


def _run_program_id(program: _Program, op: ProgramIdOp) -> None:
    program.values[op.result] = np.asarray(program.coordinates[op.axis.value.data], np.int64)


def _run_alloc(program: _Program, op: AllocOp) -> None:
    array = np.zeros(op.result.type.get_shape(), dtype_of(op.result.type))
    program.views[op.result] = _View(array, np.zeros((len(array), array.itemsize), np.bool_))


def _run_load(program: _Program, op: LoadOp) -> None:
    places, active = program.touched(op, shape(op.result))
    program.values[op.result] = program.read(op, program.views[op.view], places, active)


def _run_store(program: _Program, op: StoreOp) -> None:
    places, active = program.touched(op, shape(op.value))
    program.write(op, program.views[op.view], places, active, program.values[op.value])


def _run_gather(program: _Program, op: GatherOp) -> None:
    places = program.values[op.offsets]
    active = program.values[op.mask] if op.mask is not None else np.ones(places.shape, np.bool_)
    program.values[op.result] = program.read(op, program.views[op.view], places, active)


def _run_iota(program: _Program, op: IotaOp) -> None:
    extents, axis = shape(op.result), op.axis.value.data
    along = [1] * len(extents)
    along[axis] = extents[axis]
    program.values[op.result] = np.broadcast_to(np.arange(extents[axis]).reshape(along), extents)


def _run_broadcast(program: _Program, op: BroadcastOp) -> None:
    program.values[op.result] = np.broadcast_to(program.values[op.value], shape(op.result))


def _run_reshape(program: _Program, op: ReshapeOp) -> None:
    program.values[op.result] = program.values[op.value].reshape(shape(op.result))


_REDUCERS: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def _run_reduce(program: _Program, op: ReduceOp) -> None:
    value = program.values[op.value]
    function = _REDUCERS[op.kind.data]
    work = unsigned(value) if op.unsigned else value
    if value.dtype == np.bool_:  # counts as 0 and 1 and wraps to one bit
        work = value.astype(np.uint8)
    with np.errstate(all="ignore"):
        result = function.reduce(work, axis=op.axis.value.data, keepdims=True, dtype=work.dtype)
    program.values[op.result] = (result & 1).astype(np.bool_) if value.dtype == np.bool_ else result.view(value.dtype)


def _run_dot(program: _Program, op: DotOp) -> None:
    a, b, c = (program.values[operand] for operand in op.operands)
    wide_a, wide_b = (cast(x, c.dtype, name in op.unsigned.data) for x, name in ((a, "a"), (b, "b")))
    if b.ndim == 3:  # b[k // g, n, k % g]
        wide_b = wide_b.transpose(0, 2, 1).reshape(a.shape[1], b.shape[1])
    with np.errstate(all="ignore"):
        if c.dtype in (np.float32, np.float64) or c.dtype.kind == "i":
            program.values[op.result] = c + wide_a @ wide_b
            return
        total = c
        for k in range(a.shape[1]):
            total = total + wide_a[:, k : k + 1] * wide_b[k : k + 1, :]
        program.values[op.result] = total


def _run_for(program: _Program, op: scf.ForOp) -> None:
    low, high, step = (program.scalar(bound) for bound in (op.lb, op.ub, op.step))
    if step <= 0:
        program.fail(op, f"steps by {step}; a step is positive")
    carried = [program.values[value] for value in op.iter_args]
    block = op.body.block
    for index in range(low, high, step):
        program.values[block.args[0]] = np.asarray(index, dtype_of(block.args[0].type))
        program.values.update(zip(block.args[1:], carried, strict=True))
        carried = program.run(block)
    program.values.update(zip(op.results, carried, strict=True))


def _run_if(program: _Program, op: scf.IfOp) -> None:
    region = op.true_region if program.values[op.cond] else op.false_region
    results = program.run(region.block) if region.blocks else []
    program.values.update(zip(op.results, results, strict=True))


_HANDLERS: dict[type[Operation], Callable[[_Program, Any], None]] = {
    arith.ConstantOp: _run_constant,
    ProgramIdOp: _run_program_id,
    AllocOp: _run_alloc,
    LoadOp: _run_load,
    StoreOp: _run_store,
    GatherOp: _run_gather,
    PrefetchOp: lambda program, op: None,  # a hint
    IotaOp: _run_iota,
    BroadcastOp: _run_broadcast,
    ReshapeOp: _run_reshape,
    ReduceOp: _run_reduce,
    DotOp: _run_dot,
    scf.ForOp: _run_for,
    scf.IfOp: _run_if,
}


# Launches -------------------------------------------------------------------------------------------------------------


def _launch(kernel: FuncOp, views: Sequence[_View], seed: int | None, races: bool) -> None:
    for view in views:
        view.writer = np.zeros(len(view.array), np.int64) if races else None
        view.reader = np.zeros(len(view.array), np.int64) if races else None
    order = range(kernel.programs) if seed is None else np.random.default_rng(seed).permutation(kernel.programs)
    block = kernel.body.block
    for number in order:
        coordinates = [int(x) for x in np.unravel_index(int(number), kernel.extents)] if kernel.extents else []
        program = _Program(kernel, coordinates, int(number), races)
        program.views.update(zip(block.args, views, strict=True))
        program.run(block)


def _kernel(module: ModuleOp, name: str) -> FuncOp:
    kernels = {op.sym_name.data: op for op in module.body.ops if isinstance(op, FuncOp)}
    if name not in kernels:
        raise InvalidProgram(f"no kernel @{name}", help=f"one of {', '.join(kernels) or 'none'}")
    return kernels[name]


def _types(kernel: FuncOp, buffers: Sequence[Array]) -> tuple[Attribute, ...]:
    types = kernel.function_type.inputs.data
    if len(types) != len(buffers):
        raise InvalidProgram(f"@{kernel.sym_name.data} takes {len(types)} views, not {len(buffers)}")
    return types


def _flat(array: Array, type_: Attribute, what: str) -> Array:
    """The array as the view type wants it: signless integers, bool as i8, one dimension."""
    assert isinstance(type_, MemRefType)
    wanted = dtype_of(type_)
    same = array.dtype == wanted or (array.dtype.kind in "uib" and wanted.kind == "i")
    if not same or array.dtype.itemsize != wanted.itemsize or array.shape != tuple(type_.get_shape()):
        extents = "x".join(map(str, array.shape))
        raise InvalidProgram(f"{what} is {extents} {array.dtype}; the program has {type_}")
    return array.view(wanted)


def _nth(arrays: list[Array], index: int, op: BufferOp) -> Array:
    if index >= len(arrays):
        raise InvalidProgram(f"{op.space.data} {index} of {len(arrays)}\n    {_line(op)}")
    return arrays[index]


def _bytes_view(memory: Array, op: BufferOp) -> Array:
    dtype, index = dtype_of(op.result.type), op.index.value.data
    end = index + prod(op.result.type.get_shape()) * dtype.itemsize
    if end > len(memory):
        raise InvalidProgram(f"{op.space.data} bytes {index} to {end} of {len(memory)}\n    {_line(op)}")
    if index % dtype.itemsize:
        raise InvalidProgram(f"byte {index} is no multiple of the {dtype.itemsize} of an element\n    {_line(op)}")
    return memory[index:end].view(dtype)


def _refuse_overlap(kernel: FuncOp, views: Sequence[_View]) -> None:
    """Views of one launch that share memory may only be read: kernels rely on it."""
    stored = {op.view for op in operations(kernel.body) if isinstance(op, StoreOp)}
    for number, view in enumerate(views):
        if kernel.body.block.args[number] not in stored:
            continue
        for other, candidate in enumerate(views):
            if other != number and np.may_share_memory(view.array, candidate.array):
                raise InvalidProgram(
                    "arguments {} and {} share memory, which is written".format(*sorted((number, other))),
                    where=f"@{kernel.sym_name.data}",
                )


def _line(op: Operation) -> str:
    return str(op).splitlines()[0]
