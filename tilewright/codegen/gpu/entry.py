"""The function of a kernel in LLVM IR: what its attributes and its arguments are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from llvmlite import ir
from xdsl.ir import SSAValue

from tilewright.codegen.gpu.control import coordinates, elements_of, entry_name, place_shared, shared_places, walk
from tilewright.codegen.gpu.emission import GLOBAL, Emission, Place
from tilewright.codegen.gpu.launches import ArgumentFacts
from tilewright.codegen.values import I32, llvm_type
from tilewright.kernel import dialect as tile
from tilewright.kernel.hopper.simt_launches import waits


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


def emit_body(
    at: Emission,
    function: ir.Function,
    given: Sequence[ArgumentFacts],
    block_id: str,
    shared_array: Callable[[int], ir.Value],
) -> int:
    """Emit the body of a kernel whose function is declared; returns its bytes of shared memory.

    `given` is what launches give for its arguments; the intrinsic `block_id` with the name of an axis gives the
    number of a block; `shared_array` gives shared memory of so many bytes.
    """
    _place_arguments(at, function, given)
    at.coordinates = coordinates(at, lambda axis: at.call(f"{block_id}.{axis}", I32, []))
    places, shared_bytes = shared_places(at.func, at.target.facts)
    if places:
        place_shared(at, places, shared_array(shared_bytes))
    walk(at, at.func.body.block)
    at.builder.ret_void()
    return shared_bytes


def _place_arguments(at: Emission, function: ir.Function, given: Sequence[ArgumentFacts]) -> None:
    """Place the views of a kernel: its first parameters, aligned as all of its launches align them.

    A view is constant where nothing writes it while the kernel runs: loads of it may be ``ld.global.nc``. An assembler
    moves such loads across the wait for other kernels, which may write views until then. So in a kernel that waits,
    only constants of the module are constant. Other views that such a kernel only reads are not `noalias` either: from
    that attribute LLVM itself infers that they are constant.
    """
    written, waiting = written_views(at.func), waits(at.func)
    arguments = at.func.body.block.args
    for argument, parameter, each in zip(arguments, function.args[: len(arguments)], given, strict=True):
        constant = argument not in written and (each.constant or not waiting)
        if constant or argument in written:
            parameter.add_attribute("noalias")
        parameter.attributes.align = each.align
        if constant:
            set.add(parameter.attributes, "readonly")
        element = llvm_type(tile.element(argument))
        at.places[argument] = Place(parameter, element, GLOBAL, each.align, elements_of(argument), constant)
