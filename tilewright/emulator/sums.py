"""Which registers may hold sums of floats: lanes that add in another order get other last bits of the same number.

A sum is what floating-point additions and products of matrices give, and what is computed from one by floating-point
arithmetic, conversions between floats, moves and shuffles. Loads, integers and packed bits are what they are.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.emulator.link import Linked, Register, Scope
from tilewright.emulator.scalars import WIDTHS
from tilewright.emulator.syntax import Name, Operand, Pair, Vector

_ELEMENTS = {
    "f16": "f16", "f16x2": "f16", "bf16": "bf16", "bf16x2": "bf16", "f32": "f32", "f32x2": "f32", "tf32": "f32",
    "f64": "f64",
}  # fmt: skip
_ADDS = ("add", "sub", "fma", "mad", "mma", "wmma", "wgmma")
_MOVES = ("mov", "selp", "slct", "shfl", "prmt")
_COMPUTES = (
    "mul", "div", "rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh", "neg", "abs", "min", "max", "cvt",
    "copysign",
)  # fmt: skip
_NAMES = frozenset((*_ADDS, *_MOVES, *_COMPUTES))


def float_sums(linked: Linked) -> dict[int, str]:
    """The element type of the sums that a register may hold; registers that hold no sums, or of several types, lack."""
    found: dict[int, set[str]] = {}
    passes: dict[int, list[tuple[int, str]]] = {}  # source -> result and the type it has there, "" for the source's
    work = []
    for node, scope in linked.instructions:
        name = node.parts[0]
        if name not in _NAMES or node.parts[:2] == ("wmma", "load"):
            continue
        kind = next((part for part in node.parts[1:] if part in WIDTHS), "")
        element = _ELEMENTS.get(kind, "")
        targets = list(registers(node.operands[0], scope)) if node.operands else []
        if name in _ADDS and element:
            for slot in targets:
                found.setdefault(slot, set()).add(element)
                work.append(slot)
        elif name in _MOVES or element:
            for operand in node.operands[1:]:
                for source in registers(operand, scope):
                    passes.setdefault(source, []).extend((slot, "" if name in _MOVES else element) for slot in targets)
    while work:
        source = work.pop()
        for slot, element in passes.get(source, ()):
            kinds = {element} if element else found[source]
            if not kinds <= found.setdefault(slot, set()):
                found[slot] |= kinds
                work.append(slot)
    return {slot: next(iter(kinds)) for slot, kinds in found.items() if len(kinds) == 1}


def registers(operand: Operand, scope: Scope) -> Iterator[int]:
    """Registers of an operand; predicates are none."""
    if isinstance(operand, Name):
        symbol = scope.find(operand.text)
        if isinstance(symbol, Register) and symbol.width > 1:
            yield symbol.slot
    elif isinstance(operand, Vector):
        for item in operand.items:
            yield from registers(item, scope)
    elif isinstance(operand, Pair):
        yield from registers(operand.first, scope)
        yield from registers(operand.second, scope)
