"""The tile program of a graph for a machine, as code generation sees it."""

from __future__ import annotations

from xdsl.dialects.builtin import DictionaryAttr

from tilewright.compiler import gpu
from tilewright.compiler.compile import plan_graph, resolve_target
from tilewright.compiler.cpu import tile_program
from tilewright.compiler.program import Placement, sizes, steps
from tilewright.errors import CompileError
from tilewright.expr.graph import Graph
from tilewright.kernel.text import print_module
from tilewright.lower.module import build_module
from tilewright.lower.numbers import numbers_as_arguments
from tilewright.machine.description import Cpu
from tilewright.options import Options
from tilewright.tiles.machines import program_resources

MACHINES = ("host", "x86-64-v3", "sm_80", "sm_90a", "gfx1201")
REFUSED = "refused: "


def program(graph: Graph, machine: str, threads: int, lowered: bool = False) -> str:
    """The text of the program after all passes, or the error of a graph that is not compiled for the machine.

    With `lowered` it is the text before all passes, which takes a tenth of the time for GPUs.
    """
    target, options = resolve_target(machine), Options(cache=False)
    count = threads if isinstance(target, Cpu) else 1
    try:
        plan = plan_graph(graph, target, count, options)
        placement = Placement(plan)
        if lowered:
            launches = numbers_as_arguments(steps(plan)) if isinstance(target, Cpu) else steps(plan)
            places, sections = placement.places, placement.sections
            module, _ = build_module(
                launches, sizes(plan), places, sections, DictionaryAttr({}), program_resources(target)
            )
            return print_module(module)
        if isinstance(target, Cpu):
            return print_module(tile_program(plan, placement, target, options))
        return str(gpu.form(gpu.tile_program(plan, placement, target), "distributed", options))
    except CompileError as error:
        return f"{REFUSED}{error}\n"


def kernels(text: str) -> int:
    """How many kernels a program has."""
    return text.count("tile.func ")
