"""Tile programs as text, from which `kernel.text` reads the same program back."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, ModuleOp
from xdsl.ir import Attribute, SSAValue
from xdsl.printer import Printer


def print_module(module: ModuleOp, locations: bool = False) -> str:
    """The text of a program, ending in a newline; with `locations`, each operation names its source line."""
    stream = StringIO()
    _Printer(stream=stream, print_debuginfo=locations).print_op(module)
    return stream.getvalue() + "\n"


class _Printer(Printer):
    """Prints so that the text parses back to the same program: unambiguous value names, exact constants."""

    def print_attribute(self, attribute: Attribute) -> None:
        if isinstance(attribute, DenseIntOrFPElementsAttr) and _mixes_zeros(attribute):
            self.print_string(f'dense<"0x{attribute.data.data.hex().upper()}"> : ')
            super().print_attribute(attribute.type)
        else:
            super().print_attribute(attribute)

    def print_ssa_value(self, value: SSAValue) -> str:
        if value not in self._ssa_values and value.name_hint:
            value.name_hint = re.sub(r"(_\d+)+$", "", value.name_hint) or None
        return super().print_ssa_value(value)


def _mixes_zeros(attribute: DenseIntOrFPElementsAttr[Any]) -> bool:
    """Whether all elements are equal as numbers but not as bits: 0.0 and -0.0, which the short form would merge."""
    content = attribute.data.data
    first = content[: attribute.get_element_type().compile_time_size]
    return attribute.is_splat() and content != first * (len(content) // len(first))
