"""The function of a kernel in LLVM IR: what its attributes and its arguments are."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from llvmlite import ir
from xdsl.ir import SSAValue

from tilewright.codegen.gpu.control import elements_of, entry_name
from tilewright.codegen.gpu.emission import GLOBAL, Emission, Place
from tilewright.codegen.values import llvm_type
from tilewright.kernel import dialect as tile


def declared(
    module: ir.Module, func: tile.FuncOp, parameters: Sequence[ir.Type], convention: str, limits: Mapping[str, str]
) -> ir.Function:
    """The function of a kernel, without a body; `limits` are attributes of its target."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), parameters), entry_name(func))
    function.calling_convention = convention
    for name, text in limits.items():  # llvmlite's own `add` knows no quoted attributes
        set.add(function.attributes, f'"{name}"="{text}"')
    function.attributes.add("nounwind")
    return function


def written_views(func: tile.FuncOp) -> set[SSAValue]:
    """The views that a kernel writes."""
    return {view for op in tile.operations(func.body) if (view := tile.written_view(op)) is not None}


def place_arguments(at: Emission, function: ir.Function, aligns: Sequence[int], written: Container[SSAValue]) -> None:
    """Say where the views of a kernel lie: its first parameters, multiples of `aligns` bytes, none of them aliased.

    Those that are not among the `written` say so, which lets loads go around coherent caches.
    """
    arguments = at.func.body.block.args
    for argument, parameter, align in zip(arguments, function.args[: len(arguments)], aligns, strict=True):
        parameter.add_attribute("noalias")
        parameter.attributes.align = align
        constant = argument not in written
        if constant:
            set.add(parameter.attributes, "readonly")
        element = llvm_type(tile.element(argument))
        at.places[argument] = Place(parameter, element, GLOBAL, align, elements_of(argument), constant)
