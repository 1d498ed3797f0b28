"""What a caller needs to launch generated kernels: the host sequence of a module, as data."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Block, SSAValue

from tilewright.codegen.gpu.control import block_of, entry_name, grid_of
from tilewright.errors import InvalidProgram
from tilewright.kernel import dialect as tile
from tilewright.kernel.simt import element_bytes

MOST_LAUNCHES = 1 << 16  # of a module, each trip of its loops counted
BUFFER_ALIGN = 256  # of inputs, outputs, and the starts of arena and constants
ARGUMENT_ALIGN = 16  # of an argument of a kernel that no launch of the module names


@dataclass(frozen=True)
class Buffer:
    """Memory of a launch: input or output number `index` from byte `offset`; or `index` bytes into other memory."""

    space: str
    index: int
    bytes: int
    offset: int = 0

    @property
    def align(self) -> int:
        start = self.offset if self.space in ("input", "output") else self.index
        return min(BUFFER_ALIGN, start & -start) if start else BUFFER_ALIGN

    def part(self, start: int, size: int) -> Buffer:
        """`size` bytes of it from byte `start`."""
        if self.space in ("input", "output"):
            return Buffer(self.space, self.index, size, self.offset + start)
        return Buffer(self.space, self.index + start, size)


@dataclass(frozen=True)
class TensorMap:
    """A tensor in buffer number `argument`, and the box of it that a copy moves: 128 bytes behind the arguments.

    `extents` and `box` are elements and `strides` bytes, outermost first; the last stride is that of an element. Rows
    of the box are swizzled by `swizzle` bytes in shared memory; what lies outside of the tensor is filled with zeros.
    """

    argument: int
    element: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


@dataclass(frozen=True)
class Kernel:
    """A kernel: its name in the tile program and in machine code, how it is launched, and bytes of each argument.

    Its parameters are the arguments, then the tensor maps.
    """

    name: str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[int, ...]
    tensor_maps: tuple[TensorMap, ...] = ()


@dataclass(frozen=True)
class Launch:
    """One launch of the host sequence; `flops` and `bytes` are for reports."""

    kernel: str
    arguments: tuple[Buffer, ...]
    flops: int
    bytes: int


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
                    found.append(Launch(name, given, numbers.get("flops", 0), numbers.get("bytes", 0)))

    for main in program.body.block.ops:
        if isinstance(main, tile.MainOp):
            run(main.body.block)
    return tuple(found)


def kernel_of(func: tile.FuncOp, lanes: int, shared_bytes: int, tensor_maps: tuple[TensorMap, ...] = ()) -> Kernel:
    sizes = tuple(_bytes(argument) for argument in func.body.block.args)
    name, block = func.sym_name.data, block_of(func, lanes)
    return Kernel(name, entry_name(func), grid_of(func), block, shared_bytes, sizes, tensor_maps)


def alignments(func: tile.FuncOp, launches: tuple[Launch, ...]) -> list[int]:
    """Bytes that every argument of a kernel is a multiple of, in all of its launches."""
    mine = [launch for launch in launches if launch.kernel == func.sym_name.data]
    count = len(func.body.block.args)
    if not mine:
        return [ARGUMENT_ALIGN] * count
    return [min(launch.arguments[number].align for launch in mine) for number in range(count)]


def _bytes(view: SSAValue) -> int:
    assert isinstance(view.type, MemRefType), "buffers are views"
    return int(view.type.get_shape()[0]) * element_bytes(view)
