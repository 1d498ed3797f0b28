"""Tile programs as text, from which `kernel.text` reads the same program back."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, ModuleOp, UnregisteredOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove

from tilewright.kernel.directives import direct_format


def print_module(module: ModuleOp, locations: bool = False) -> str:
    """The text of a program, ending in a newline; with `locations`, each operation names its source line."""
    printer = _Printer(print_debuginfo=locations)
    printer.print_op(module)
    return "".join(printer.parts) + "\n"


class _Printer(Printer):
    """Prints so that the text parses back to the same program: unambiguous value names, exact constants.

    The text is collected in `parts`. Types and other attributes of one line are printed once: most of those in a
    program are the same object.
    """

    def __init__(self, print_debuginfo: bool) -> None:
        super().__init__(print_debuginfo=print_debuginfo)
        self.parts: list[str] = []
        self.known: dict[int, tuple[Attribute, str]] = {}  # by the `id` of an attribute, which is kept with its text

    def print_string(self, text: str, *, indent: int | None = None) -> None:
        if "\n" in text:
            spaces = self.indent_num_spaces * (self._indent if indent is None else indent)
            text = text.replace("\n", "\n" + " " * spaces)
        self.parts.append(text)

    def _print_new_line(self, indent: int | None = None, print_message: bool = True) -> None:
        self.print_string("\n", indent=indent)

    def print_attribute(self, attribute: Attribute) -> None:
        known = self.known.get(id(attribute))
        if known is not None:
            self.parts.append(known[1])
            return
        start = len(self.parts)
        self._print_exactly(attribute)
        text = "".join(self.parts[start:])
        if "\n" not in text:  # else it is indented, as deeply as it is here
            self.known[id(attribute)] = attribute, text

    def _print_exactly(self, attribute: Attribute) -> None:
        if isinstance(attribute, DenseIntOrFPElementsAttr) and _mixes_zeros(attribute):
            self.print_string(f'dense<"0x{attribute.data.data.hex().upper()}"> : ')
            super().print_attribute(attribute.type)
        else:
            super().print_attribute(attribute)

    def print_op(self, op: Operation) -> None:
        """As that of xDSL, which asks each operation again what all of its kind have in common."""
        if not _has_own_form(type(op)):
            super().print_op(op)
            return
        self._print_results(op)
        self.parts.append(op.name)
        program = direct_format(type(op))
        if program is not None and isinstance(op, IRDLOperation):
            program.print(self, op)
        else:
            op.print(self)
        if self.print_debuginfo:
            self.parts.append(" ")
            self.print_attribute(op.location)

    def print_ssa_value(self, value: SSAValue) -> str:
        name = self._ssa_values.get(value)
        if name is not None:
            self.parts.append(f"%{name}")
            return name
        if value.name_hint:
            value.name_hint = re.sub(r"(_\d+)+$", "", value.name_hint) or None
        return super().print_ssa_value(value)


@cache
def _has_own_form(kind: type[Operation]) -> bool:
    """Whether operations of this kind print themselves, with names that are those of the region around them."""
    if kind.print is Operation.print or issubclass(kind, UnregisteredOp):
        return False
    return not any(isinstance(trait, IsolatedFromAbove) for trait in kind.traits)


def _mixes_zeros(attribute: DenseIntOrFPElementsAttr[Any]) -> bool:
    """Whether all elements are equal as numbers but not as bits: 0.0 and -0.0, which the short form would merge."""
    content = attribute.data.data
    first = content[: attribute.get_element_type().compile_time_size]
    return attribute.is_splat() and content != first * (len(content) // len(first))
