"""The launches of a module for a GPU: `tile.main` with its loops unrolled, and how each kernel is launched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Block, SSAValue

from tilewright.codegen.gpu.control import block_of, entry_name, grid_of
from tilewright.codegen.host_program import Buffer, HostProgram, Kernel, Launch, TensorMap
from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram
from tilewright.kernel import dialect as tile
from tilewright.kernel.attributes import most_resident_of
from tilewright.kernel.facts import facts_of
from tilewright.kernel.hopper.simt_launches import waits
from tilewright.kernel.simt import element_bytes
from tilewright.machine.description import SYSTEM_SHARED_BYTES

MOST_LAUNCHES = 1 << 16  # of a module, each trip of its loops counted
ARGUMENT_ALIGN = 16  # of an argument of a kernel that no launch of the module names


@dataclass(frozen=True)
class ArgumentFacts:
    """What all launches of a kernel have in common for one of its arguments.

    Its address is a multiple of `align` bytes. `constant`: it is memory of the module's constants, which no kernel
    writes.
    """

    align: int
    constant: bool = False


def launches_of(program: ModuleOp) -> tuple[Launch, ...]:
    """The launches of `tile.main` in order, every trip of its loops; those of an empty grid are left out."""
    kernels = {op.sym_name.data: op for op in program.body.block.ops if isinstance(op, tile.FuncOp)}
    buffers: dict[SSAValue, Buffer] = {}
    trips: dict[SSAValue, int] = {}
    found: list[Launch] = []

    def run(block: Block) -> None:
        for op in block.ops:
            if isinstance(op, tile.BufferOp):
                buffers[op.result] = Buffer(op.space.data, op.index.value.data, _bytes(op.result))
            elif isinstance(op, tile.SliceOp):
                start = op.element(trips[op.trip]) * element_bytes(op.result)
                buffers[op.result] = buffers[op.whole].part(start, _bytes(op.result))
            elif isinstance(op, tile.FirstOp):
                buffers[op.result] = buffers[op.later if trips[op.trip] else op.first]
            elif isinstance(op, tile.LoopOp):
                for trip in range(op.count):
                    trips[op.body.block.args[0]] = trip
                    run(op.body.block)
            elif isinstance(op, tile.LaunchOp):
                name = op.kernel.root_reference.data
                cost = kernels[name].cost
                numbers = {key: int(value.value.data) for key, value in cost.data.items()} if cost else {}  # type: ignore[attr-defined]
                if len(found) == MOST_LAUNCHES:
                    fact = f"the loops of the module make more than {MOST_LAUNCHES} launches"
                    raise InvalidProgram(fact, help="compile for a CPU, whose code has loops, or for fewer trips")
                if kernels[name].programs:
                    given = tuple(buffers[argument] for argument in op.arguments)
                    programs = prod(grid_of(kernels[name]))
                    flops, moved = numbers.get("flops", 0), numbers.get("bytes", 0)
                    found.append(Launch(name, name, programs, flops, moved, given))

    for main in program.body.block.ops:
        if isinstance(main, tile.MainOp):
            run(main.body.block)
    return tuple(found)


def host_program(
    program: ModuleOp,
    lanes: int,
    emit: Callable[[tile.FuncOp, Sequence[ArgumentFacts]], int],
    maps: Callable[[tile.FuncOp], tuple[TensorMap, ...]] = lambda func: (),
) -> HostProgram:
    """Emit every kernel of a module, and give how they are launched.

    `emit` takes a kernel and what its launches give for its arguments, and returns its bytes of shared memory; `maps`
    gives the tensor maps that a kernel takes. Raises InvalidProgram where two kernels have one name in the code.
    """
    launches, kernels, facts = launches_of(program), [], facts_of(program)
    functions = [op for op in program.body.block.ops if isinstance(op, tile.FuncOp)]
    entries = [entry_name(func) for func in functions]
    if len(set(entries)) < len(entries):
        raise InvalidProgram(f"kernels share a name in machine code: {', '.join(sorted(entries))}")
    for func in functions:
        shared_bytes, block = emit(func, argument_facts(func, launches)), block_of(func, lanes)
        name = func.sym_name.data
        spare = max(0, _least_of_few(most_resident_of(func), facts.shared_bytes) - shared_bytes)
        kernels.append(
            Kernel(name, entry_name(func), grid_of(func), block, shared_bytes, maps(func), waits(func), spare)
        )
    main = next((op for op in program.body.block.ops if isinstance(op, tile.MainOp)), None)
    return HostProgram(
        constants_bytes=0 if main is None else int(main.constants_bytes.value.data),
        arena_bytes=0 if main is None else int(main.arena_bytes.value.data),
        zeroed_bytes=0 if main is None else int(main.zeroed_bytes.value.data),
        launches=launches,
        kernels=tuple(kernels),
    )


def _least_of_few(most: int | None, capacity: int) -> int:
    """The least shared memory of a block, in bytes, of which a multiprocessor holds no more than `most` blocks.

    `capacity` is what a block may have, 0 where that is not known. Every block takes `SYSTEM_SHARED_BYTES` besides.
    """
    if not most or not capacity:
        return 0
    return (capacity + SYSTEM_SHARED_BYTES) // (most + 1) - SYSTEM_SHARED_BYTES + 1


def argument_facts(func: tile.FuncOp, launches: tuple[Launch, ...]) -> list[ArgumentFacts]:
    """What all launches of a kernel give, by argument."""
    mine = [launch for launch in launches if launch.kernel == func.sym_name.data]
    if not mine:
        return [ArgumentFacts(ARGUMENT_ALIGN)] * len(func.body.block.args)
    return [
        ArgumentFacts(min(each.align for each in buffers), all(each.space == "constant" for each in buffers))
        for buffers in zip(*(launch.operands for launch in mine), strict=True)
    ]


def _bytes(view: SSAValue) -> int:
    assert isinstance(view.type, MemRefType), "buffers are views"
    return int(view.type.get_shape()[0]) * element_bytes(view)
