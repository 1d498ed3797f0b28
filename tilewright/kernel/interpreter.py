"""The reference interpreter of tile programs, in NumPy: what a program means, checked at every access.

An access outside its view (of an active element, or of any where a mask or bounds leave none), a read of memory that
nothing has written, and (with `races`) two programs of one launch that meet in memory are InvalidProgram, with the
kernel, the program and the operation. Speed is no aim. Kernels in distributed form are run by `simt_interpreter`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Protocol

import numpy as np
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram
from tilewright.kernel.arrays import WHOLE, scanned
from tilewright.kernel.bulk_stores import HANDLERS as BULK_STORES
from tilewright.kernel.circular_buffer_interpreter import HANDLERS as CIRCULAR_BUFFERS
from tilewright.kernel.dialect import (
    AllocOp,
    AwaitOp,
    BarrierOp,
    BlockRankOp,
    BufferOp,
    CommitOp,
    EmptyRegistersOp,
    FirstOp,
    FuncOp,
    GatherOp,
    LaunchOp,
    LoadBoxOp,
    LoadOp,
    LoopOp,
    MainOp,
    PrefetchOp,
    ProgramIdOp,
    ReturnOp,
    ScanOp,
    SliceOp,
    StageOp,
    StagingOp,
    StoreOp,
    UnstageOp,
    operations,
    shape,
    strides_of,
    written_view,
)
from tilewright.kernel.elements import ELEMENT, Array, dtype_of
from tilewright.kernel.simt_interpreter import Order, run_blocks
from tilewright.kernel.tensor_map_box import TensorMapBox
from tilewright.kernel.views import READ, WRITE, Touches, View, has_repeats, line
from tilewright.layouts.shared import Padded
from tilewright.layouts.text import parse


@dataclass(frozen=True)
class Access:
    """One run of an operation that reads or writes memory, in program `program` of a launch.

    `elements` are the numbers of those that it touches in its view; `value` gives the number that a value is now.
    """

    op: Operation
    view: SSAValue
    kind: str  # `views.READ` or `WRITE`
    program: int
    elements: Array
    value: Callable[[SSAValue], int]


class Observer(Protocol):
    """What gets the accesses of kernels in tile form, as they run."""

    def launch(self, kernel: FuncOp) -> None:
        """The programs of a kernel run now."""

    def access(self, access: Access) -> None:
        """A program touches memory."""


def run_kernel(
    module: ModuleOp,
    name: str,
    buffers: Sequence[Array],
    *,
    seed: int | None = None,
    races: bool = False,
    order: Order = "together",
) -> None:
    """Run every program of kernel `name` on flat arrays, one per view, which are read and written in place.

    An argument that is a number takes an array without dimensions.

    With a seed the programs run in a random order. With `races`, an element that two programs write, or that one
    writes and another reads, is an error. `order` is that of the threads of a block, in distributed form.
    """
    kernel = _kernel(module, name)
    given = [
        _argument(buffer, type_, f"argument {number} of @{name}")
        for number, (buffer, type_) in enumerate(zip(buffers, _types(kernel, buffers), strict=True))
    ]
    _launch(kernel, given, seed, races, order)


def run_main(
    module: ModuleOp,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    constants: bytes | Array = b"",
    *,
    seed: int | None = None,
    races: bool = False,
    order: Order = "together",
    observer: Observer | None = None,
) -> None:
    """Run the host sequence: flat arrays of the inputs, of the outputs (written), and the bytes of the constants.

    Arena and outputs hold nothing at first; every element of an output that has a buffer must be written. An
    `observer` gets the accesses of kernels in tile form.
    """
    main = next((op for op in module.body.ops if isinstance(op, MainOp)), None)
    if main is None:
        raise InvalidProgram("the program has no tile.main", help="run a single kernel with run_kernel")
    memory = _Memory(main, inputs, outputs, constants)
    views: dict[SSAValue, View] = {}
    numbers: dict[SSAValue, Array] = {}
    trips: dict[SSAValue, int] = {}

    def run(block: Block) -> None:
        for op in block.ops:
            if isinstance(op, BufferOp):
                views[op.result] = memory.view(op)
            elif isinstance(op, arith.ConstantOp):
                numbers[op.result] = WHOLE[arith.ConstantOp](op)
            elif isinstance(op, SliceOp):
                views[op.result] = _slice(views[op.whole], op.element(trips[op.trip]), op.elements)
            elif isinstance(op, FirstOp):
                views[op.result] = views[op.later if trips[op.trip] else op.first]
            elif isinstance(op, LoopOp):
                for trip in range(op.count):
                    trips[op.body.block.args[0]] = trip
                    run(op.body.block)
            elif isinstance(op, LaunchOp):
                kernel = _kernel(module, op.kernel.root_reference.data)
                given = [views[each] if each in views else numbers[each] for each in op.arguments]
                _refuse_overlap(kernel, given)
                _launch(kernel, given, seed, races, order, observer)

    run(main.body.block)
    memory.check_outputs()


def _slice(view: View, begin: int, count: int) -> View:
    """A part of a view; empty where a trip has none, which nothing then reads."""
    part = slice(begin, begin + count) if begin >= 0 else slice(0, 0)
    written = None if view.written is None else view.written[part]
    return View(view.array[part], written, view.start + begin * view.element_bytes)


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
        self.arena_written[: main.zeroed_bytes.value.data] = True
        self.output_written: dict[int, Array] = {}

    def view(self, op: BufferOp) -> View:
        type_, index = op.result.type, op.index.value.data
        match op.space.data:
            case "input":
                array = _flat(_nth(self.inputs, index, op), type_, f"input {index}").view()
                array.flags.writeable = False
                return View(array, None)
            case "output":
                array = _flat(_nth(self.outputs, index, op), type_, f"output {index}")
                written = self.output_written.setdefault(index, np.zeros((len(array), array.itemsize), np.bool_))
                return View(array, written)
            case "constant":
                return View(_bytes_view(self.constants, op), None, index)
            case _:
                array = _bytes_view(self.arena, op)
                written = self.arena_written[index : index + array.nbytes].reshape(len(array), array.itemsize)
                return View(array, written, index)

    def check_outputs(self) -> None:
        for index, written in self.output_written.items():
            missing = np.flatnonzero(~written.all(axis=1))
            if missing.size:
                raise InvalidProgram(
                    f"output {index}: {missing.size} of {len(written)} elements are never written, "
                    f"the first is {missing[0]}"
                )


class _Access:
    """The part of a load or store that is the same each time it runs: how elements lie to the first one.

    `relative` has the place of each element of the tile minus that of the first; `bounds` has, per bounded axis, the
    coordinates along it (shaped to broadcast over the tile) and the value that they stay below.
    """

    def __init__(self, op: LoadOp | StoreOp, extents: tuple[int, ...]) -> None:
        along = [
            np.arange(extent).reshape([-1, *[1] * (len(extents) - axis - 1)]) for axis, extent in enumerate(extents)
        ]
        self.relative = np.zeros(extents, np.int64)
        for count, stride in zip(along, strides_of(op), strict=True):
            self.relative += count * stride
        self.offset, self.view, self.mask = op.offset, op.view, op.mask
        self.bounds = list(zip(along, op.bounds, strict=True)) if op.bounds else []
        self.distinct = not has_repeats(self.relative)  # so are the places of any of the elements


#: An operation of a block: what runs it, and of those that only compute, what they take and where the result goes.
_Step = tuple[Callable[..., Any], Operation, tuple[SSAValue, ...], SSAValue | None]


class _Steps:
    """The operations of a block in order, looked up once for all times that the block runs, and its terminator.

    Its `constants` are the same each time.
    """

    def __init__(self, block: Block) -> None:
        self.constants: list[tuple[SSAValue, Array]] = []
        self.steps: list[_Step] = []
        self.terminator: Operation | None = None
        for op in block.ops:
            if isinstance(op, scf.YieldOp | ReturnOp):
                self.terminator = op
                return
            if type(op) is arith.ConstantOp:
                number = np.asarray(WHOLE[arith.ConstantOp](op))
                number.flags.writeable = False
                self.constants.append((op.results[0], number))
            else:
                self.steps.append(_step(op))


def _step(op: Operation) -> _Step:
    function = ELEMENT.get(op.name) or WHOLE.get(type(op))
    if function is not None:
        return function, op, op._operands, op.results[0]
    return _HANDLERS.get(type(op), _refuse), op, (), None


class _Known:
    """What all programs of a launch share: how accesses lie, and the steps of blocks."""

    def __init__(self) -> None:
        self.accesses: dict[Operation, _Access] = {}
        self.steps: dict[Block, _Steps] = {}

    def access(self, op: LoadOp | StoreOp, tile: SSAValue) -> _Access:
        access = self.accesses.get(op)
        if access is None:
            access = self.accesses[op] = _Access(op, shape(tile))
        return access

    def steps_of(self, block: Block) -> _Steps:
        steps = self.steps.get(block)
        if steps is None:
            steps = self.steps[block] = _Steps(block)
        return steps


class _Program:
    """One program of a launch, or one of its blocks: the values of its operations. `known` is shared by a launch."""

    def __init__(
        self,
        kernel: FuncOp,
        coordinates: Sequence[int],
        number: int,
        rank: int,
        known: _Known,
        observer: Observer | None = None,
    ) -> None:
        self.kernel, self.coordinates, self.number, self.rank = kernel, coordinates, number, rank
        self.known, self.observer = known, observer
        self.values: dict[SSAValue, Array] = {}
        self.views: dict[SSAValue, View] = {}

    def run(self, block: Block) -> list[Array]:
        """Run a block; the values that its terminator gives."""
        values, inside = self.values, self.known.steps_of(block)
        values.update(inside.constants)
        for function, op, operands, result in inside.steps:
            if result is None:
                function(self, op)
            else:
                values[result] = np.asarray(function(op, *[values[operand] for operand in operands]))
        assert inside.terminator is not None, "verified blocks end with a terminator"
        return [values[operand] for operand in inside.terminator._operands]

    def scalar(self, value: SSAValue) -> int:
        return int(self.values[value])

    def fail(self, op: Operation, message: str) -> None:
        place = f"@{self.kernel.sym_name.data}, program {list(self.coordinates)}"
        raise InvalidProgram(f"{message}\n    {line(op)}", where=place)

    # Memory -----------------------------------------------------------------------------------------------------

    def touched(self, op: LoadOp | StoreOp, tile: SSAValue) -> tuple[View, Array, Array | None]:
        """The view of an access, the element number of every element of its tile, and which of them are touched.

        None: all of them.
        """
        access = self.known.access(op, tile)
        places = np.asarray(access.relative + self.scalar(access.offset))
        if not access.bounds and access.mask is None:
            return self.views[access.view], places, None
        active = np.ones(access.relative.shape, np.bool_)
        for count, bound in access.bounds:
            active &= count < self.scalar(bound)
        if access.mask is not None:
            active &= self.values[access.mask]
        return self.views[access.view], places, active

    def read(self, op: Operation, view: View, places: Array, active: Array | None) -> Array:
        """The elements at `places` where active, else 0."""
        chosen = places.reshape(-1) if active is None else places[active]
        self.check_bounds(op, view, places, chosen)
        if view.written is not None:
            self.check_written(op, view.written[chosen], chosen)
        self.check_race(op, view, READ, chosen)
        self.observe(op, READ, chosen)
        if active is None:
            return np.asarray(view.array[places])
        result = np.zeros(np.shape(places), view.array.dtype)
        result[active] = view.array[chosen]
        return result

    def write(
        self, op: Operation, view: View, places: Array, active: Array | None, value: Array, distinct: bool = False
    ) -> None:
        """Store elements of a tile at `places` where active; `distinct`: they are known to be different places."""
        chosen = places.reshape(-1) if active is None else places[active]
        self.check_bounds(op, view, places, chosen)
        if not view.array.flags.writeable:
            self.fail(op, "writes to an input or a constant")
        if not distinct and has_repeats(chosen):
            self.fail(op, "two elements of one store have the same place")
        self.check_race(op, view, WRITE, chosen)
        self.observe(op, WRITE, chosen)
        if view.written is not None:
            view.written[chosen] = True
        view.array[chosen] = value.reshape(-1) if active is None else value[active]

    def observe(self, op: Operation, kind: str, chosen: Array) -> None:
        if self.observer is not None and isinstance(op, LoadOp | StoreOp | GatherOp):
            self.observer.access(Access(op, op.view, kind, self.number, chosen, self.scalar))

    def check_race(self, op: Operation, view: View, kind: str, chosen: Array) -> None:
        clash = view.touches.clash(kind, chosen, self.number + 2, 1) if view.touches is not None else None
        if clash is not None:
            earlier, position, _ = clash
            self.fail(op, f"race: {kind} element {chosen[position]}, which another program of this launch {earlier}")

    def check_written(self, op: Operation, written: Array, chosen: Array) -> None:
        """Refuse to read an element of which a byte holds nothing; `written` has a row for each one."""
        if not np.logical_and.reduce(written, axis=None):  # not `all`, a function of Python around this one
            self.fail(op, f"reads element {chosen[~written.all(axis=1)][0]}, which nothing has written")

    def check_bounds(self, op: Operation, view: View, places: Array, chosen: Array) -> None:
        """Refuse places outside the view: of the `chosen` elements, or of all where a load has none (see `LoadOp`)."""
        if not chosen.size:
            if not isinstance(op, LoadOp) or not places.size:
                return
            chosen = places.reshape(-1)
        if np.minimum.reduce(chosen) < 0 or np.maximum.reduce(chosen) >= len(view.array):
            outside = (chosen < 0) | (chosen >= len(view.array))
            self.fail(op, f"touches element {chosen[outside][0]} of a view of {len(view.array)} elements")


# Operations -----------------------------------------------------------------------------------------------------------


def _refuse(program: _Program, op: Operation) -> None:
    program.fail(op, f"{op.name} is not an operation of tile programs")


def _run_program_id(program: _Program, op: ProgramIdOp) -> None:
    program.values[op.result] = np.asarray(program.coordinates[op.axis.value.data], np.int64)


def _run_block_rank(program: _Program, op: BlockRankOp) -> None:
    program.values[op.result] = np.asarray(program.rank, np.int64)


def _run_alloc(program: _Program, op: AllocOp | StagingOp) -> None:
    array = np.zeros(op.result.type.get_shape(), dtype_of(op.result.type))
    program.views[op.result] = View(array, np.zeros((len(array), array.itemsize), np.bool_))


def _run_load(program: _Program, op: LoadOp) -> None:
    result = op.results[0]
    program.values[result] = program.read(op, *program.touched(op, result))


def _run_load_box(program: _Program, op: LoadBoxOp) -> None:
    sides = shape(op.result)
    start = [program.scalar(each) for each in op.coordinates]
    places, active = TensorMapBox(*op.tensor, sides, 0).elements(start)
    value = program.read(op, program.views[op.view], places, active)
    program.values[op.result] = value.reshape(sides)


def _run_store(program: _Program, op: StoreOp) -> None:
    value = op.operands[0]  # `op.value`, which xDSL finds by counting all segments
    distinct = program.known.access(op, value).distinct
    program.write(op, *program.touched(op, value), program.values[value], distinct)


def _run_stage(program: _Program, op: StageOp) -> None:
    """Copied at once: nobody may look before the wait, which the distributed form checks."""
    if not program.values[op.when]:
        return
    extents = shape(op.type)
    places = program.scalar(op.offset) + sum(
        np.arange(extent).reshape([-1, *[1] * (len(extents) - axis - 1)]) * int(stride)
        for axis, (extent, stride) in enumerate(zip(extents, op.strides.get_values(), strict=True))
    )
    everywhere, inside = np.ones(extents, np.bool_), np.ones(extents, np.bool_)
    for axis, bound in enumerate(op.bounds):
        inside &= np.arange(extents[axis]).reshape([-1, *[1] * (len(extents) - axis - 1)]) < program.scalar(bound)
    value = program.read(op, program.views[op.view], np.broadcast_to(places, extents), inside)
    program.write(op, program.views[op.buffer], _staged(program, op, extents), everywhere, value)


def _run_unstage(program: _Program, op: UnstageOp) -> None:
    extents = shape(op.result)
    places, everywhere = _staged(program, op, extents), np.ones(extents, np.bool_)
    program.values[op.result] = program.read(op, program.views[op.buffer], places, everywhere)


def _staged(program: _Program, op: StageOp | UnstageOp, extents: tuple[int, ...]) -> Array:
    """Where in shared memory the elements of a tile lie."""
    count = np.arange(int(np.prod(extents)))
    if op.memory.data:
        layout = parse(op.memory.data)
        if isinstance(layout, Padded):
            return layout.offsets(extents) + program.scalar(op.place)
        count = np.argsort(layout.to_linear(extents).table())
    return count.reshape(extents) + program.scalar(op.place)


def _run_gather(program: _Program, op: GatherOp) -> None:
    places = program.values[op.offsets]
    active = program.values[op.mask] if op.mask is not None else np.ones(places.shape, np.bool_)
    program.values[op.result] = program.read(op, program.views[op.view], places, active)


def _run_for(program: _Program, op: scf.ForOp) -> None:
    bounds, initial = op._operands[:3], op._operands[3:]
    low, high, step = map(program.scalar, bounds)
    if step <= 0:
        program.fail(op, f"steps by {step}; a step is positive")
    carried = [program.values[value] for value in initial]
    block = op.body.block
    counter, states = block.args[0], block.args[1:]
    dtype = dtype_of(counter.type)
    for index in range(low, high, step):
        program.values[counter] = np.asarray(index, dtype)
        program.values.update(zip(states, carried, strict=True))
        carried = program.run(block)
    program.values.update(zip(op.results, carried, strict=True))


def _run_if(program: _Program, op: scf.IfOp) -> None:
    region = op.regions[0 if program.values[op._operands[0]] else 1]
    results = program.run(region.block) if region.blocks else []
    program.values.update(zip(op.results, results, strict=True))


def _run_scan(program: _Program, op: ScanOp) -> None:
    program.values[op.prefix], program.values[op.total] = scanned(op, program.values[op.value])


_HANDLERS: dict[type[Operation], Callable[[_Program, Any], None]] = {
    ProgramIdOp: _run_program_id,
    BlockRankOp: _run_block_rank,
    AllocOp: _run_alloc,
    StagingOp: _run_alloc,
    **CIRCULAR_BUFFERS,
    **BULK_STORES,
    StageOp: _run_stage,
    CommitOp: lambda program, op: None,
    AwaitOp: lambda program, op: None,
    BarrierOp: lambda program, op: None,
    UnstageOp: _run_unstage,
    LoadOp: _run_load,
    LoadBoxOp: _run_load_box,
    StoreOp: _run_store,
    GatherOp: _run_gather,
    PrefetchOp: lambda program, op: None,  # a hint
    EmptyRegistersOp: lambda program, op: None,  # of where values are, not of which
    ScanOp: _run_scan,
    scf.ForOp: _run_for,
    scf.IfOp: _run_if,
}


# Launches -------------------------------------------------------------------------------------------------------------


def _launch(
    kernel: FuncOp,
    given: Sequence[View | Array],
    seed: int | None,
    races: bool,
    order: Order,
    observer: Observer | None = None,
) -> None:
    views = [each for each in given if isinstance(each, View)]
    for view in views:
        view.touches = Touches(len(view.array)) if races and view.array.flags.writeable else None
    numbers = range(kernel.programs) if seed is None else np.random.default_rng(seed).permutation(kernel.programs)
    if kernel.block:
        run_blocks(kernel, views, [int(number) for number in numbers], order, seed or 0)
        return
    if observer is not None:
        observer.launch(kernel)
    block = kernel.body.block
    known = _Known()
    for number in numbers:
        coordinates = [int(x) for x in np.unravel_index(int(number), kernel.extents)] if kernel.extents else []
        for rank in range(kernel.blocks):
            program = _Program(kernel, coordinates, int(number) * kernel.blocks + rank, rank, known, observer)
            for argument, each in zip(block.args, given, strict=True):
                if isinstance(each, View):
                    program.views[argument] = each
                else:
                    program.values[argument] = each
            with np.errstate(all="ignore"):
                program.run(block)


def _kernel(module: ModuleOp, name: str) -> FuncOp:
    kernels = {op.sym_name.data: op for op in module.body.ops if isinstance(op, FuncOp)}
    if name not in kernels:
        raise InvalidProgram(f"no kernel @{name}", help=f"one of {', '.join(kernels) or 'none'}")
    return kernels[name]


def _types(kernel: FuncOp, buffers: Sequence[Array]) -> tuple[Attribute, ...]:
    types = kernel.function_type.inputs.data
    if len(types) != len(buffers):
        raise InvalidProgram(f"@{kernel.sym_name.data} takes {len(types)} arguments, not {len(buffers)}")
    return types


def _argument(given: Array, type_: Attribute, what: str) -> View | Array:
    """A view of an array, or the number that a kernel asks for instead."""
    return View(_flat(given, type_, what), None) if isinstance(type_, MemRefType) else given.astype(dtype_of(type_))


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
        raise InvalidProgram(f"{op.space.data} {index} of {len(arrays)}\n    {line(op)}")
    return arrays[index]


def _bytes_view(memory: Array, op: BufferOp) -> Array:
    dtype, index = dtype_of(op.result.type), op.index.value.data
    end = index + prod(op.result.type.get_shape()) * dtype.itemsize
    if end > len(memory):
        raise InvalidProgram(f"{op.space.data} bytes {index} to {end} of {len(memory)}\n    {line(op)}")
    if index % dtype.itemsize:
        raise InvalidProgram(f"byte {index} is no multiple of the {dtype.itemsize} of an element\n    {line(op)}")
    return memory[index:end].view(dtype)


def _refuse_overlap(kernel: FuncOp, given: Sequence[View | Array]) -> None:
    """Views of one launch that share memory may only be read: kernels rely on it."""
    stored = {written_view(op) for op in operations(kernel.body)}
    views = {number: each for number, each in enumerate(given) if isinstance(each, View)}
    for number, view in views.items():
        if kernel.body.block.args[number] not in stored:
            continue
        for other, candidate in views.items():
            if other != number and np.may_share_memory(view.array, candidate.array):
                raise InvalidProgram(
                    "arguments {} and {} share memory, which is written".format(*sorted((number, other))),
                    where=f"@{kernel.sym_name.data}",
                )
