"""What the emitters of operations share: registers of every value, places in memory, words.

A thread holds one scalar register per element of a tile, in row-major order. bf16 is the i16 of its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, ClassVar

from llvmlite import ir
from xdsl.dialects.builtin import BFloat16Type, IndexType
from xdsl.ir import Attribute, Operation, SSAValue

from tilewright.codegen.gpu.target import GpuTarget
from tilewright.codegen.values import F16, F32, I32, I64, bits_of, llvm_type, mangle
from tilewright.dataclass import dataclass
from tilewright.kernel import dialect as tile

GLOBAL, SHARED, LOCAL = "global", "shared", "local"
SPACES = {LOCAL: 0, GLOBAL: 1, SHARED: 3}
_EXTREMES = {"arith.maximumf": "maximum", "arith.minimumf": "minimum"}


class BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite lacks: only conversions use it."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


BF16 = BFloat()


@dataclass(frozen=True)
class Tile:
    """What a thread holds of a tile: one register per element; one for a scalar, whose shape is ()."""

    shape: tuple[int, ...]
    elements: tuple[ir.Value, ...]

    @property
    def scalar(self) -> ir.Value:
        return self.elements[0]


@dataclass(frozen=True)
class Place:
    """Where a view begins: a pointer that is a multiple of `align` bytes, to `count` elements.

    `constant` says that nothing writes the view while the kernel runs.
    """

    pointer: ir.Value
    element: ir.Type
    space: str
    align: int
    count: int
    constant: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of an element."""
        return max(1, bits_of(self.element) // 8)

    @property
    def word(self) -> ir.IntType:
        """The integer type in which addresses of this space are computed."""
        return I32 if self.space == SHARED else I64


@dataclass
class Emission:
    """The state of one kernel's emission: `index` is the machine type of `index` values, `handlers` are the target's.

    `spaces` are the numbers of LLVM's address spaces.
    """

    spaces: ClassVar[dict[str, int]] = SPACES

    builder: ir.IRBuilder
    target: GpuTarget
    func: tile.FuncOp
    index: ir.IntType
    handlers: Mapping[type[Operation], Callable[[Any, Any], None]]
    values: dict[SSAValue, Tile] = field(default_factory=dict)
    places: dict[SSAValue, Place] = field(default_factory=dict)
    coordinates: list[ir.Value] = field(default_factory=list)

    @property
    def module(self) -> ir.Module:
        return self.builder.module

    @property
    def name(self) -> str:
        return str(self.func.sym_name.data)

    def scalar(self, value: SSAValue) -> ir.Value:
        return self.values[value].scalar

    def elements(self, value: SSAValue) -> tuple[ir.Value, ...]:
        return self.values[value].elements

    def set(self, value: SSAValue, elements: Sequence[ir.Value]) -> None:
        self.values[value] = Tile(tile.shape(value), tuple(elements))

    def type_of(self, element: Attribute) -> ir.Type:
        """The machine type of an element type."""
        return self.index if isinstance(element, IndexType) else llvm_type(element)

    def call(self, name: str, result: ir.Type, args: Sequence[ir.Value], convergent: bool = False) -> ir.Value:
        """Call the LLVM intrinsic of this full name, declaring it on first use."""
        function = self.module.globals.get(name)
        if function is None:
            function = ir.Function(self.module, ir.FunctionType(result, [arg.type for arg in args]), name)
        return self.builder.call(function, list(args), attrs=("convergent",) if convergent else ())

    # What a target has instructions for; None where element arithmetic is as good.

    @property
    def has_extremes(self) -> bool:
        """Whether one instruction gives the larger or smaller of two floats, NaN where one is."""
        return False

    def extreme(self, operation: str, args: Sequence[ir.Value]) -> ir.Value | None:
        """The larger or smaller of two floats; None for another kind of operation too."""
        name = _EXTREMES.get(operation)
        if name is None or not self.has_extremes or args[0].type not in (F16, F32):
            return None
        return self.call(f"llvm.{name}.{mangle(args[0].type)}", args[0].type, args)

    def narrowed(self, values: Sequence[ir.Value], wanted: Attribute) -> list[ir.Value] | None:
        """f32 rounded to f16 or bf16."""
        return None

    def dot_bytes(self, unsigned: tuple[bool, bool], a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value | None:
        """``c`` plus the products of the four bytes of two words; `unsigned` says how a and b are read."""
        return None

    def to_index(self, value: ir.Value) -> ir.Value:
        return resized(self.builder, value, self.index)

    def address(self, place: Place, offset: ir.Value) -> ir.Value:
        """The address of an element."""
        steps = resized(self.builder, offset, place.word)
        return self.builder.gep(place.pointer, [steps], source_etype=place.element)

    def begin(self, view: SSAValue, offset: SSAValue, touched: bool) -> ir.Value:
        """The address at which an access begins; with `touched`, it lies in the view wherever anything is accessed."""
        return self.address(self.places[view], self.scalar(offset))

    @contextmanager
    def branch(self, condition: ir.Value) -> Iterator[tuple[ir.Block, ir.Block]]:
        """Emit what is inside only where the condition holds; gives the block before and the one after."""
        before = self.builder.block
        inside, after = (self.builder.function.append_basic_block(name) for name in ("if", "after"))
        self.builder.cbranch(condition, inside, after)
        self.builder.position_at_end(inside)
        yield before, after
        self.builder.branch(after)
        self.builder.position_at_end(after)


def resized(builder: ir.IRBuilder, value: ir.Value, type_: ir.IntType) -> ir.Value:
    """A signed integer in another width."""
    if value.type == type_:
        return value
    if isinstance(value, ir.Constant):
        return ir.Constant(type_, value.constant)
    return builder.sext(value, type_) if value.type.width < type_.width else builder.trunc(value, type_)


def vector(builder: ir.IRBuilder, scalars: Sequence[ir.Value]) -> ir.Value:
    """A vector of scalars; the scalar itself where there is one."""
    if len(scalars) == 1:
        return scalars[0]
    result: ir.Value = ir.Constant(ir.VectorType(scalars[0].type, len(scalars)), ir.Undefined)
    for lane, scalar in enumerate(scalars):
        result = builder.insert_element(result, scalar, I32(lane))
    return result


def scalars_of(builder: ir.IRBuilder, value: ir.Value) -> list[ir.Value]:
    if not isinstance(value.type, ir.VectorType):
        return [value]
    return [builder.extract_element(value, I32(lane)) for lane in range(value.type.count)]


def to_words(builder: ir.IRBuilder, scalars: Sequence[ir.Value], word: ir.IntType = I32) -> list[ir.Value]:
    """Neighbouring elements as words of 32 bits (or 16, where all fit), the first lowest; the last one filled up."""
    type_ = scalars[0].type
    width = bits_of(type_)
    if width == 1:
        return [builder.zext(scalar, word) for scalar in scalars]
    if width > word.width:
        halves = [builder.bitcast(scalar, ir.VectorType(word, width // word.width)) for scalar in scalars]
        return [piece for half in halves for piece in scalars_of(builder, half)]
    per = word.width // width
    words = []
    for start in range(0, len(scalars), per):
        group = list(scalars[start : start + per])
        group += [ir.Constant(type_, 0)] * (per - len(group))  # defined, for what moves whole words
        packed = vector(builder, group)
        words.append(packed if packed.type == word else builder.bitcast(packed, word))
    return words


def from_words(builder: ir.IRBuilder, words: Sequence[ir.Value], type_: ir.Type, count: int) -> list[ir.Value]:
    """The inverse of `to_words`."""
    width, word = bits_of(type_), words[0].type
    if width == 1:
        return [builder.trunc(each, type_) for each in words]
    if width > word.width:
        per = width // word.width
        groups = [vector(builder, words[start : start + per]) for start in range(0, len(words), per)]
        return [builder.bitcast(group, type_) for group in groups]
    per = word.width // width
    target = ir.VectorType(type_, per) if per > 1 else type_
    pieces = []
    for each in words:
        pieces += scalars_of(builder, each if each.type == target else builder.bitcast(each, target))
    return pieces[:count]


def is_bfloat(element: Attribute) -> bool:
    return isinstance(element, BFloat16Type)
