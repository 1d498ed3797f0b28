"""What a PTX module says, as values: functions, variables, registers, instructions and their operands."""

from __future__ import annotations

from dataclasses import field

from tilewright.dataclass import dataclass
from tilewright.emulator.errors import Place


@dataclass(frozen=True, slots=True)
class Name:
    """A register, special register, variable, parameter, label or function; `_` is the sink."""

    text: str
    place: Place


@dataclass(frozen=True, slots=True)
class Number:
    """A constant; `kind` is `int`, or `f32`/`f64` for a floating constant, whose `value` is then its bits."""

    value: int
    kind: str
    place: Place


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b}``."""

    items: tuple[Operand, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]``, or ``[base, {coordinates}]`` of a tensor copy."""

    base: Name | Number
    offset: int
    coordinates: Vector | None
    place: Place


@dataclass(frozen=True, slots=True)
class Pair:
    """``d|p``: two destinations."""

    first: Operand
    second: Operand
    place: Place


@dataclass(frozen=True, slots=True)
class Negated:
    """``!p`` as an operand."""

    operand: Name
    place: Place


@dataclass(frozen=True, slots=True)
class Group:
    """``(a, b)``: parameters of a call."""

    items: tuple[Operand, ...]
    place: Place


Operand = Name | Number | Vector | Address | Pair | Negated | Group


@dataclass(frozen=True, slots=True)
class Instruction:
    """``@guard opcode operands;`` with the opcode split at its dots."""

    opcode: str
    operands: tuple[Operand, ...]
    place: Place
    guard: Name | None = None
    negated: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.opcode.split("."))


@dataclass(frozen=True, slots=True)
class Label:
    """``name:``."""

    name: str
    place: Place


@dataclass(frozen=True, slots=True)
class Targets:
    """``name: .branchtargets a, b;``: the labels an indexed branch may go to."""

    name: str
    labels: tuple[Name, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Registers:
    """``.reg .type %r<count>``: registers `%r0` to `%r(count-1)`; a count of None is the one register `%r`."""

    type: str
    name: str
    count: int | None
    place: Place
    vector: int = 1


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of `count` elements in memory; an `extern` array without extent has a count of None.

    `values` initialises it: numbers, or (name, offset, generic) for the address of another variable.
    """

    space: str
    type: str
    name: str
    count: int | None
    align: int
    values: tuple[int | tuple[str, int, bool], ...]
    place: Place
    extern: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """``{ … }``: a scope of its own for names."""

    body: tuple[Statement, ...]
    place: Place


Statement = Instruction | Label | Targets | Registers | Variable | Block


@dataclass(frozen=True)
class Function:
    """An `.entry` or `.func`; `body` is None for a declaration. `limits` holds `.reqntid`, `.maxntid` and the like."""

    name: str
    entry: bool
    results: tuple[Variable | Registers, ...]
    parameters: tuple[Variable | Registers, ...]
    body: Block | None
    place: Place
    limits: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Module:
    """A parsed module: its functions and variables by name, its files by the number that `.loc` uses."""

    version: str
    target: str
    functions: dict[str, Function]
    variables: dict[str, Variable]
    files: dict[int, str]
    lines: tuple[str, ...]

    @property
    def entries(self) -> tuple[str, ...]:
        return tuple(name for name, function in self.functions.items() if function.entry)
