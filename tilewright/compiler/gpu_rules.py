"""The rules of GPUs, as `target.Rules` asks for them."""

from __future__ import annotations

from typing import NoReturn

from tilewright.compiler.gpu_products import plan_product
from tilewright.compiler.planning import Planning
from tilewright.errors import InvalidArgument
from tilewright.expr.graph import Graph
from tilewright.graph.groups import Group
from tilewright.machine.description import Gpu
from tilewright.options import Options

__all__ = ["ORDERED", "plan_ordered", "plan_product", "search_products"]

ORDERED = False


def plan_ordered(planning: Planning, group: Group, machine: Gpu) -> NoReturn:
    """Never called: a pass of the graph makes reductions of ordered accumulations."""
    raise AssertionError(f"{group.name} is an ordered accumulation, which {machine.name} has no kernel for")


def search_products(graph: Graph, machine: Gpu, threads: int, options: Options) -> NoReturn:
    """Raise InvalidArgument: measurements take this process."""
    raise InvalidArgument(f"products of {machine.name} are not searched", where="search", help='a CPU, or "rules"')
