"""The tile program of a graph for a machine, as code generation sees it."""

from __future__ import annotations

from tilewright.compiler import gpu
from tilewright.compiler.compile import plan_graph, resolve_target
from tilewright.compiler.cpu import tile_program
from tilewright.compiler.program import Placement
from tilewright.errors import CompileError
from tilewright.expr.graph import Graph
from tilewright.kernel.text import print_module
from tilewright.machine.description import Cpu
from tilewright.options import Options

MACHINES = ("host", "x86-64-v3", "sm_80", "sm_90a", "gfx1201")
REFUSED = "refused: "


def program(graph: Graph, machine: str, threads: int) -> str:
    """The text of the program after all passes, or the error of a graph that is not compiled for the machine."""
    target, options = resolve_target(machine), Options(cache=False)
    count = threads if isinstance(target, Cpu) else 1
    try:
        plan = plan_graph(graph, target, count, options)
        placement = Placement(plan)
        if isinstance(target, Cpu):
            return print_module(tile_program(plan, placement, target, options))
        return str(gpu.form(gpu.gpu_program(plan, placement, target), "distributed", options))
    except CompileError as error:
        return f"{REFUSED}{error}\n"


def kernels(text: str) -> int:
    """How many kernels a program has."""
    return text.count("tile.func ")
