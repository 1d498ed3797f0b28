"""From the text of an instruction to functions that fetch its operands and store its results."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.emulator.errors import InvalidPtx, refuse
from tilewright.emulator.lanes import Lanes
from tilewright.emulator.link import Code, Linked, Mark, Register, Scope, Storage, Symbol
from tilewright.emulator.memory import GLOBAL_BASE
from tilewright.emulator.scalars import CONTAINERS, SIGNED, WIDTHS, Array, numpy_type
from tilewright.emulator.special import SPECIAL
from tilewright.emulator.syntax import Address, Instruction, Name, Negated, Number, Operand, Pair, Vector

Get = Callable[[Lanes], Any]
Put = Callable[[Lanes, Any], None]


#: Instructions whose registers may be wider than their types.
_WIDENING = ("ld", "ldu", "st", "cvt")


class Decoder:
    """One instruction: its modifiers, taken one by one, and its operands.

    What `get` and `put` hand out is noted in `reads` and `writes`; `end` refuses modifiers and operands that are left.
    """

    def __init__(self, linked: Linked, node: Instruction, scope: Scope, context: dict[str, int]) -> None:
        self.linked = linked
        self.node = node
        self.scope = scope
        self.context = context  # addresses of module variables and parameters
        self.name = node.parts[0]
        self.modifiers = list(node.parts[1:])
        self.operands = node.operands
        self.reads: list[int] = []
        self.writes: list[int] = []

    # Modifiers

    def flag(self, *names: str) -> bool:
        """Whether any of these modifiers is there; takes them."""
        before = len(self.modifiers)
        self.modifiers = [name for name in self.modifiers if name not in names]
        return len(self.modifiers) < before

    def one_of(self, *names: str, default: str | None = None) -> str:
        """The one modifier of these that is there."""
        for name in self.modifiers:
            if name in names:
                self.modifiers.remove(name)
                return name
        if default is None:
            raise self.error(f"needs one of .{', .'.join(names)}")
        return default

    def types(self, count: int) -> tuple[str, ...]:
        """The type modifiers, of which there must be `count`."""
        found = [name for name in self.modifiers if name in WIDTHS]
        if len(found) != count:
            raise self.error(f"has {len(found)} types, needs {count}")
        for name in found:
            self.modifiers.remove(name)
        return tuple(found)

    def type(self) -> str:
        return self.types(1)[0]

    def starting(self, *prefixes: str) -> list[str]:
        """Takes every modifier that starts so: cache hints and the like."""
        found = [name for name in self.modifiers if name.startswith(prefixes)]
        self.modifiers = [name for name in self.modifiers if name not in found]
        return found

    def end(self) -> None:
        if self.modifiers:
            raise self.error(f"modifier .{self.modifiers[0]} is not known here")

    def error(self, message: str) -> InvalidPtx:
        return refuse(self.node.place, f"{self.node.opcode}: {message}")

    def count(self, fewest: int, most: int | None = None) -> int:
        """The number of operands, checked."""
        found, most = len(self.operands), fewest if most is None else most
        if not fewest <= found <= most:
            wanted = str(fewest) if most == fewest else f"{fewest} to {most}"
            raise self.error(f"has {found} operands, needs {wanted}")
        return found

    # Operands

    @property
    def target_name(self) -> str:
        """The architecture that the module is for."""
        return self.linked.target

    def is_address(self, number: int) -> bool:
        return isinstance(self.operand(number), Address)

    def is_predicate(self, number: int) -> bool:
        """Whether an operand is a predicate register."""
        operand = self.operand(number)
        symbol = self.scope.find(operand.text) if isinstance(operand, Name) else None
        return isinstance(operand, Negated) or (isinstance(symbol, Register) and symbol.width == 1)

    def operand(self, number: int) -> Operand:
        if number >= len(self.operands):
            raise self.error(f"has {len(self.operands)} operands, needs more")
        return self.operands[number]

    def get(self, number: int, kind: str) -> Get:
        """A function that fetches an operand as NumPy sees its type: an array over the lanes, or one scalar."""
        return self.value(self.operand(number), kind)

    def value(self, operand: Operand, kind: str) -> Get:
        dtype, width = numpy_type(kind), WIDTHS[kind]
        if isinstance(operand, Negated):
            inner = self.value(operand.operand, kind)
            return lambda lanes: ~inner(lanes)
        if isinstance(operand, Number):
            scalar = self._constant(operand, kind)
            return lambda lanes: scalar
        if isinstance(operand, Name):
            special = SPECIAL.get(operand.text)
            if special is not None:
                function = special
                return lambda lanes: _cast(function(lanes), dtype)
            symbol = self._symbol(operand)
            if isinstance(symbol, Register):
                return self._register(symbol, dtype, width, operand)
            if isinstance(symbol, Code):
                code = dtype.type(symbol.address)
                return lambda lanes: code
            if isinstance(symbol, Storage):
                address = dtype.type(self.address_of(symbol) & ((1 << width) - 1))
                return lambda lanes: address
        raise refuse(operand.place, f"{self.node.opcode}: not an operand that can be read")

    def _register(self, symbol: Register, dtype: Any, width: int, operand: Name) -> Get:
        slot = symbol.slot
        self.reads.append(slot)
        container = CONTAINERS[width]
        if symbol.width == width:
            if dtype == container:
                return lambda lanes: lanes.state.registers[slot][lanes.index]
            return lambda lanes: lanes.state.registers[slot][lanes.index].view(dtype)
        if symbol.width > width > 1 and self.name in _WIDENING:
            return lambda lanes: lanes.state.registers[slot][lanes.index].astype(container).view(dtype)
        raise refuse(operand.place, f"{self.node.opcode}: {operand.text} has {symbol.width} bits, {width} are needed")

    def _constant(self, number: Number, kind: str) -> Any:
        dtype, width = numpy_type(kind), WIDTHS[kind]
        if kind == "pred":
            return np.bool_(number.value != 0)
        if number.kind == "int":
            if kind in ("f16", "f32", "f64", "tf32"):
                return dtype.type(number.value)
            return np.array(number.value & ((1 << width) - 1), CONTAINERS[width]).view(dtype)[()]
        as_float = kind in ("f16", "f32", "f64", "tf32")
        if (number.kind, width) in (("f32", 32), ("f64", 64)):
            return np.array(number.value, CONTAINERS[width]).view(dtype)[()]
        value = struct.unpack("<f", struct.pack("<I", number.value))[0] if number.kind == "f32" else struct.unpack(
            "<d", struct.pack("<Q", number.value))[0]  # fmt: skip
        with np.errstate(over="ignore"):
            if as_float:
                return dtype.type(value)
            if width == 32:
                return np.array(np.float32(value)).view(dtype)[()]
        raise refuse(number.place, f"{self.node.opcode}: a floating constant where .{kind} is needed")

    def slot(self, operand: Operand, width: int) -> int:
        """The register that an operand is; raises InvalidPtx if it is none or has another width."""
        symbol = self._symbol(operand) if isinstance(operand, Name) else None
        if not isinstance(symbol, Register) or symbol.width != width:
            raise refuse(operand.place, f"{self.node.opcode}: a register of {width} bits is needed here")
        return symbol.slot

    def put(self, number: int, kind: str) -> Put:
        """A function that stores a result; a wider register is extended by the type's sign."""
        return self.target(self.operand(number), kind)

    def target(self, operand: Operand, kind: str) -> Put:
        if isinstance(operand, Pair):
            raise refuse(operand.place, f"{self.node.opcode}: one destination is needed")
        if not isinstance(operand, Name):
            raise refuse(operand.place, f"{self.node.opcode}: not a register that can be written")
        if operand.text == "_":
            return lambda lanes, value: None
        symbol = self._symbol(operand)
        if not isinstance(symbol, Register):
            raise refuse(operand.place, f"{operand.text!r} is no register")
        slot, width = symbol.slot, WIDTHS[kind]
        wider = symbol.width > width > 1 and self.name in _WIDENING
        if symbol.width != width and not wider:
            raise refuse(
                operand.place, f"{self.node.opcode}: {operand.text} has {symbol.width} bits, {width} are needed"
            )
        self.writes.append(slot)
        container = CONTAINERS[symbol.width]
        same, signed = symbol.width == width, kind in SIGNED
        own = numpy_type(kind)

        def put(lanes: Lanes, value: Any) -> None:
            array = np.asarray(value)
            if array.dtype != container:
                if same and array.dtype.itemsize == container.itemsize:
                    array = array.view(container)
                else:
                    array = (
                        array.view(own).astype(container) if signed else array.view(CONTAINERS[width]).astype(container)
                    )
            lanes.state.registers[slot][lanes.index] = array

        return put

    def pair(self, number: int) -> tuple[Operand, Operand | None]:
        """The two destinations ``d|p``, or one."""
        operand = self.operand(number)
        return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, None)

    def items(self, number: int) -> tuple[Operand, ...]:
        """The elements of a vector operand; anything else is a vector of one."""
        operand = self.operand(number)
        return operand.items if isinstance(operand, Vector) else (operand,)

    def sums(self, slots: Sequence[int]) -> str:
        """The type of floats whose sums all of these registers may hold, or ""."""
        kinds = {self.linked.sums.get(slot, "") for slot in slots}
        return kinds.pop() if len(kinds) == 1 else ""

    def integer(self, number: int) -> int:
        operand = self.operand(number)
        if not isinstance(operand, Number) or operand.kind != "int":
            raise refuse(operand.place, f"{self.node.opcode}: an integer constant is needed")
        return operand.value

    def label(self, operand: Operand) -> int:
        """The instruction that a label stands before."""
        symbol = self.scope.find(operand.text) if isinstance(operand, Name) else None
        if not isinstance(symbol, Mark) or symbol.number not in self.linked.labels:
            raise refuse(operand.place, f"{self.node.opcode}: a label is needed")
        return self.linked.labels[symbol.number]

    def labels(self, operand: Operand) -> list[int]:
        """The instructions of a list of branch targets."""
        symbol = self.scope.find(operand.text) if isinstance(operand, Name) else None
        if not isinstance(symbol, Mark) or not symbol.targets:
            raise refuse(operand.place, f"{self.node.opcode}: the name of .branchtargets is needed")
        return [self.label(target) for target in symbol.targets]

    def address(self, number: int) -> tuple[Get, int | None, str]:
        """An address operand: a function that gives the addresses as i64, the constant if it is one, and the space.

        The space is that of the variable it names, or "".
        """
        operand = self.operand(number)
        if not isinstance(operand, Address):
            raise refuse(operand.place, f"{self.node.opcode}: an address in [] is needed")
        return self.location(operand)

    def location(self, operand: Address) -> tuple[Get, int | None, str]:
        offset = operand.offset
        if isinstance(operand.base, Number):
            constant = operand.base.value + offset
            return (lambda lanes: np.full(lanes.count, constant, np.int64)), constant, ""
        symbol = self._symbol(operand.base)
        if isinstance(symbol, Storage):
            constant = self.address_of(symbol) + offset
            return (lambda lanes: np.full(lanes.count, constant, np.int64)), constant, symbol.space
        if not isinstance(symbol, Register) or symbol.width not in (32, 64):
            raise refuse(operand.place, f"{self.node.opcode}: not an address")
        # A sum of 32 bits wraps: compilers let a register lie below an address that the constant brings it back to.
        slot, narrow = symbol.slot, symbol.width == 32
        self.reads.append(slot)

        def get(lanes: Lanes) -> Array:
            lanes.require((slot,), "an address")
            found: Array = lanes.state.registers[slot][lanes.index].astype(np.int64)
            if not offset:
                return found
            return (found + offset) & 0xFFFF_FFFF if narrow else found + offset

        return get, None, ""

    def address_of(self, storage: Storage) -> int:
        """The address of a variable within its space; of module variables the generic one."""
        if storage.space in ("global", "const"):
            return self.context.get(storage.variable.name, GLOBAL_BASE)
        return storage.offset

    def _symbol(self, operand: Name) -> Symbol:
        found = self.scope.find(operand.text)
        if found is None:
            raise refuse(operand.place, f"{operand.text!r} is not declared")
        return found


def _cast(value: Any, dtype: Any) -> Any:
    array = np.asarray(value)
    return array.astype(dtype) if array.dtype != dtype else array
