"""Printing by the declarative format of an operation, without what xDSL finds out again for each operation.

Of an array of numbers xDSL asks what it is an array of, which takes longer than to print it. It makes a dictionary of
the other attributes of an operation, of which tile programs have few.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache

from xdsl.dialects.builtin import DenseArrayBase, IntegerType
from xdsl.ir import Attribute, Operation
from xdsl.irdl import IRDLOperation
from xdsl.irdl.declarative_assembly_format import (
    AttrDictDirective,
    DenseArrayAttributeVariable,
    FormatDirective,
    FormatProgram,
    OptionalGroupDirective,
    PrintingState,
)
from xdsl.printer import Printer


@cache
def direct_format(definition: type[Operation]) -> FormatProgram | None:
    """What prints operations of a definition with a declarative format: the same text in less time. None for others."""
    format_ = inspect.getclosurevars(definition.print).nonlocals.get("assembly_program")
    if not isinstance(format_, FormatProgram):
        return None
    return replace(format_, stmts=_direct(format_.stmts))


def _direct(directives: Sequence[FormatDirective]) -> tuple[FormatDirective, ...]:
    return tuple(map(_direct_one, directives))


def _direct_one(directive: FormatDirective) -> FormatDirective:
    if isinstance(directive, OptionalGroupDirective):
        return replace(
            directive,
            then_first=_direct_one(directive.then_first),
            then_elements=_direct(directive.then_elements),
            else_elements=_direct(directive.else_elements),
        )
    for plain, direct in ((DenseArrayAttributeVariable, _Numbers), (AttrDictDirective, _OtherAttributes)):
        if type(directive) is plain:
            return direct(**{field.name: getattr(directive, field.name) for field in fields(directive)})
    return directive


class _Numbers(DenseArrayAttributeVariable):
    def print_attr(self, printer: Printer, attr: Attribute) -> None:
        if isinstance(attr, DenseArrayBase) and isinstance(attr.elt_type, IntegerType):
            printer.print_string(f"[{', '.join(map(str, attr.get_values()))}]")
        else:
            super().print_attr(printer, attr)


class _OtherAttributes(AttrDictDirective):
    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        if op.attributes or not self.expected_properties.isdisjoint(op.properties):
            super().print(printer, state, op)
