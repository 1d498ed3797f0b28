"""Tile program: kernels, and the host sequence of buffers and launches. Part of `dialect`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import (
    AnyFloat,
    DenseArrayBase,
    DictionaryAttr,
    FunctionType,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import irdl_op_definition, opt_prop_def, prop_def, region_def, result_def, traits_def, var_operand_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import (
    IsolatedFromAbove,
    IsTerminator,
    NoTerminator,
    Pure,
    SymbolOpInterface,
    SymbolTable,
    SymbolUserOpInterface,
)
from xdsl.utils.exceptions import VerifyException

from tilewright.kernel.attributes import wrong
from tilewright.kernel.operation import NUMBER, KernelOp, verify_word
from tilewright.kernel.tile_types import INDEX, verify_view


class Isolated(IsolatedFromAbove):
    """Operations inside use values from inside, which `kernel.verify` finds while it looks at every operand anyway."""

    def verify(self, op: Operation) -> None:
        """Hold: xDSL's rule would go through all operations once more."""


@irdl_op_definition
class FuncOp(KernelOp):
    """A kernel: its body is run once for every point of `grid`, in any order, perhaps concurrently.

    Arguments are views and, in tile form, numbers. Views of one launch share no memory, except where all of them are
    only read. `cost` may hold `flops` and `bytes` of one launch, for reports. With `threads` (along x, y, z) and the
    threads of a `warp`, the body is what each thread of a block does: the distributed form, whose operations are in
    `simt`. With a `cluster`, so many blocks run a program together: each runs the body, and `tile.block_rank` tells
    them apart. What a kernel asks of passes and of code generation are its attributes: those of `kernel.attributes`,
    no others.
    """

    name = "tile.func"

    sym_name = prop_def(SymbolNameConstraint())
    function_type = prop_def(FunctionType)
    grid = prop_def(DenseArrayBase)
    cluster = opt_prop_def(IntegerAttr)
    threads = opt_prop_def(DenseArrayBase)
    warp = opt_prop_def(IntegerAttr)
    cost = opt_prop_def(DictionaryAttr)
    body = region_def("single_block")

    traits = traits_def(Isolated(), SymbolOpInterface())

    def __init__(
        self,
        name: str,
        arguments: Sequence[Attribute],
        grid: Sequence[int],
        body: Region | None = None,
        cost: DictionaryAttr | None = None,
        threads: Sequence[int] = (),
        warp: int = 0,
        blocks: int = 1,
    ) -> None:
        function_type = FunctionType.from_lists(list(arguments), [])
        region = Region(Block(arg_types=list(arguments))) if body is None else body
        super().__init__(
            regions=[region],
            sym_name=name,
            function_type=function_type,
            grid=grid,
            cluster=IntegerAttr(blocks, 64) if blocks != 1 else None,
            threads=threads or None,
            warp=warp or None,
            cost=cost,
        )

    @property
    def extents(self) -> tuple[int, ...]:
        """The grid: programs along each axis."""
        return tuple(int(extent) for extent in self.grid.get_values())

    @property
    def programs(self) -> int:
        return prod(self.extents)

    @property
    def blocks(self) -> int:
        """Blocks that run a program together."""
        return int(self.cluster.value.data) if self.cluster is not None else 1

    @property
    def block(self) -> tuple[int, ...]:
        """Threads along x, y and z; () in tile form."""
        return tuple(int(extent) for extent in self.threads.get_values()) if self.threads is not None else ()

    @property
    def lanes(self) -> int:
        """Threads of a warp; 0 in tile form."""
        return int(self.warp.value.data) if self.warp is not None else 0

    def verify_(self) -> None:
        if tuple(self.body.block.arg_types) != self.function_type.inputs.data:
            raise VerifyException(f"kernel {self.sym_name.data}: argument types differ from the function type")
        if self.function_type.outputs.data:
            raise VerifyException(f"kernel {self.sym_name.data}: returns values; kernels write to views instead")
        for type_ in self.function_type.inputs.data:
            if isinstance(type_, MemRefType):
                verify_view(type_)
            elif self.block or not isinstance(type_, AnyFloat | IntegerType):
                wanted = "a view (memref)" if self.block else "a view (memref) or a number"
                raise VerifyException(f"kernel {self.sym_name.data}: argument {type_} is not {wanted}")
        if (problem := wrong(self.attributes)) is not None:
            raise VerifyException(f"kernel {self.sym_name.data}: {problem[0]} ({problem[1]})")
        if any(extent < 0 for extent in self.extents):
            raise VerifyException(f"kernel {self.sym_name.data}: grid {self.extents} has a negative extent")
        if self.cluster is not None and self.blocks < 2:
            raise VerifyException(f"kernel {self.sym_name.data}: a cluster of {self.blocks} blocks; 2 or more")
        if bool(self.block) != bool(self.lanes) or (self.block and (len(self.block) != 3 or min(self.block) < 1)):
            raise VerifyException(f"kernel {self.sym_name.data}: threads {list(self.block)} in warps of {self.lanes}")
        if self.lanes < 0 or (self.block and prod(self.block) % self.lanes):
            raise VerifyException(f"kernel {self.sym_name.data}: {prod(self.block)} threads in warps of {self.lanes}")
        if not isinstance(self.body.block.last_op, ReturnOp):
            raise VerifyException(f"kernel {self.sym_name.data}: its body does not end with tile.return")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        with printer.in_parens():
            printer.print_list(self.body.block.args, printer.print_block_argument)
        printer.print_string(f" grid {list(self.extents)}")
        if self.cluster is not None:
            printer.print_string(f" cluster {self.blocks}")
        if self.block:
            printer.print_string(f" threads {list(self.block)} warp {self.lanes}")
        if self.cost is not None:
            printer.print_string(" cost ")
            printer.print_attribute(self.cost)
        if self.attributes:
            printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False, print_empty_block=False)

    @classmethod
    def parse(cls, parser: Parser) -> FuncOp:
        name = parser.parse_symbol_name().data
        arguments = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument)
        parser.parse_keyword("grid")
        grid = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
        blocks = parser.parse_integer() if parser.parse_optional_keyword("cluster") else 1
        threads: Sequence[int] = ()
        warp = 0
        if parser.parse_optional_keyword("threads"):
            threads = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
            parser.parse_keyword("warp")
            warp = parser.parse_integer()
        cost: DictionaryAttr | None = None
        if parser.parse_optional_keyword("cost"):
            start = parser.pos
            attribute = parser.parse_attribute()
            if not isinstance(attribute, DictionaryAttr):
                parser.raise_error("cost is a dictionary such as {flops = 2 : i64}", start, parser.pos)
            cost = attribute
        attributes = parser.parse_optional_attr_dict_with_keyword()
        body = parser.parse_region(arguments)
        kernel = cls(name, [argument.type for argument in arguments], grid, body, cost, threads, warp, blocks)
        kernel.attributes |= attributes.data if attributes else {}
        return kernel


def kernel_of(op: Operation) -> FuncOp:
    """The kernel around an operation; VerifyException where there is none."""
    kernel = op.parent_op()
    while kernel is not None and not isinstance(kernel, FuncOp):
        kernel = kernel.parent_op()
    if kernel is None:
        raise VerifyException(f"{op.name} outside of a kernel")
    return kernel


@irdl_op_definition
class ReturnOp(KernelOp):
    """End of a kernel or of the main sequence."""

    name = "tile.return"
    traits = traits_def(IsTerminator())
    assembly_format = "attr-dict"


@irdl_op_definition
class ProgramIdOp(KernelOp):
    """The coordinate of this program along one axis of the grid."""

    name = "tile.program_id"
    axis = prop_def(NUMBER)
    result = result_def(IndexType)
    traits = traits_def(Pure())
    assembly_format = "$axis attr-dict"

    def __init__(self, axis: int) -> None:
        super().__init__(results=[INDEX], axis=axis)

    def verify_(self) -> None:
        kernel, axis = kernel_of(self), self.axis.value.data
        if not 0 <= axis < len(kernel.extents):
            raise VerifyException(f"axis {axis} of the grid {list(kernel.extents)}")


@irdl_op_definition
class BlockRankOp(KernelOp):
    """Which of the blocks that run this program together this is, counted from 0."""

    name = "tile.block_rank"
    result = result_def(IndexType)
    traits = traits_def(Pure())
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__(results=[INDEX])

    def verify_(self) -> None:
        kernel_of(self)


@irdl_op_definition
class MainOp(KernelOp):
    """The host sequence of a module: buffers, numbers, launches and loops of launches, in order.

    `arena_bytes` and `constants_bytes` are the sizes of the two memories that `tile.buffer` gives views of. The first
    `zeroed_bytes` of the arena are zeros before the first run; later ones find there what the run before left.
    """

    name = "tile.main"
    arena_bytes = prop_def(IntegerAttr)
    zeroed_bytes = prop_def(IntegerAttr)
    constants_bytes = prop_def(IntegerAttr)
    body = region_def("single_block")
    traits = traits_def(Isolated(), NoTerminator())

    def __init__(
        self, arena_bytes: int, constants_bytes: int, zeroed_bytes: int = 0, body: Region | None = None
    ) -> None:  # fmt: skip
        super().__init__(
            regions=[Region(Block()) if body is None else body],
            arena_bytes=arena_bytes,
            zeroed_bytes=zeroed_bytes,
            constants_bytes=constants_bytes,
        )

    def verify_(self) -> None:
        if self.arena_bytes.value.data < 0 or self.constants_bytes.value.data < 0:
            raise VerifyException(
                f"arena of {self.arena_bytes.value.data} bytes, constants of {self.constants_bytes.value.data} bytes"
            )
        if not 0 <= self.zeroed_bytes.value.data <= self.arena_bytes.value.data:
            raise VerifyException(
                f"zeros in the first {self.zeroed_bytes.value.data} bytes of an arena of {self.arena_bytes.value.data}"
            )
        if self.body.block.args:
            raise VerifyException("tile.main takes no arguments: buffers are tile.buffer")
        for op in self.body.block.ops:
            if not isinstance(op, BufferOp | ConstantOp | LaunchOp | ReturnOp) and op.name != "tile.loop":
                raise VerifyException(f"tile.main holds buffers, numbers, launches and loops only, not {op.name}")
            if isinstance(op, ConstantOp) and not isinstance(op.result.type, AnyFloat | IntegerType):
                raise VerifyException(f"tile.main holds numbers that launches give kernels, not {op.result.type}")

    def print(self, printer: Printer) -> None:
        printer.print_string(f" arena {self.arena_bytes.value.data}")
        if self.zeroed_bytes.value.data:
            printer.print_string(f" zeroed {self.zeroed_bytes.value.data}")
        printer.print_string(f" constants {self.constants_bytes.value.data}")
        if self.attributes:
            printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_empty_block=False)

    @classmethod
    def parse(cls, parser: Parser) -> MainOp:
        parser.parse_keyword("arena")
        arena_bytes = parser.parse_integer()
        zeroed_bytes = parser.parse_integer() if parser.parse_optional_keyword("zeroed") else 0
        parser.parse_keyword("constants")
        constants_bytes = parser.parse_integer()
        attributes = parser.parse_optional_attr_dict_with_keyword()
        body = parser.parse_region()
        if not body.blocks:
            body.add_block(Block())
        main = cls(arena_bytes, constants_bytes, zeroed_bytes, body)
        main.attributes |= attributes.data if attributes else {}
        return main


@irdl_op_definition
class BufferOp(KernelOp):
    """A view of host-planned memory: input or output number `index`, or `index` bytes into the constants or arena."""

    name = "tile.buffer"
    space = prop_def(StringAttr)
    index = prop_def(NUMBER)
    result = result_def(MemRefType)
    traits = traits_def(Pure())
    assembly_format = "$space $index attr-dict `:` type($result)"

    SPACES: ClassVar = ("input", "output", "constant", "arena")

    def __init__(self, space: str, index: int, type_: MemRefType[Attribute]) -> None:
        super().__init__(results=[type_], space=space, index=index)

    def verify_(self) -> None:
        verify_word(self.space, self.SPACES, "buffer space")
        if self.index.value.data < 0:
            raise VerifyException(f"buffer at {self.index.value.data}")
        if not isinstance(self.parent_op(), MainOp):
            raise VerifyException("tile.buffer outside of tile.main")
        verify_view(self.result.type)


class _KernelExists(SymbolUserOpInterface):
    """A launch names a kernel of its module and gives it views and numbers of the types it wants."""

    def verify(self, op: Operation) -> None:
        assert isinstance(op, LaunchOp)
        module = op.parent_op()
        while module is not None and not module.has_trait(SymbolTable):
            module = module.parent_op()
        if module is None:
            return  # a launch that is being built
        kernel = SymbolTable.lookup_symbol(module, op.kernel)
        if not isinstance(kernel, FuncOp):
            raise VerifyException(f"launches @{op.kernel.root_reference.data}, which is not a kernel of this module")
        given, wanted = tuple(op.arguments.types), kernel.function_type.inputs.data
        if given != wanted:
            names = [", ".join(map(str, types)) for types in (given, wanted)]
            raise VerifyException(f"launches @{op.kernel.root_reference.data} on ({names[0]}); it takes ({names[1]})")


@irdl_op_definition
class LaunchOp(KernelOp):
    """Run every program of a kernel on these views and numbers; the next launch starts when all have finished."""

    name = "tile.launch"
    kernel = prop_def(SymbolRefAttr)
    arguments = var_operand_def()
    traits = traits_def(_KernelExists())
    assembly_format = "$kernel `(` $arguments `)` attr-dict `:` type($arguments)"

    def __init__(self, kernel: str, arguments: Sequence[SSAValue]) -> None:
        super().__init__(arguments, kernel=SymbolRefAttr(kernel))
