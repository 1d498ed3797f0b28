"""The rules of CPUs, as `target.Rules` asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.compiler.ordered import plan_ordered
from tilewright.compiler.products import plan_product
from tilewright.expr.graph import Graph
from tilewright.machine.description import Cpu
from tilewright.options import Options

if TYPE_CHECKING:
    from tilewright.compiler.search import Searched

__all__ = ["ORDERED", "plan_ordered", "plan_product", "search_products"]

ORDERED = True


def search_products(graph: Graph, machine: Cpu, threads: int, options: Options) -> Searched:
    """Choose mapping and schedule of every product by measurements."""
    from tilewright.compiler import search  # what the rules alone do without

    return search.search_products(graph, machine, threads, options)
