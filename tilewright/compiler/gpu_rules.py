"""The rules of GPUs, as `target.Rules` asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from tilewright.compiler import gpu_fused, gpu_products
from tilewright.compiler.gpu_borders import leave_border
from tilewright.compiler.gpu_prices import combined_cycles
from tilewright.compiler.gpu_rows import add_rows, row_cycles, schedule_rows
from tilewright.compiler.planning import Planning
from tilewright.expr.graph import Loop
from tilewright.graph.groups import Group
from tilewright.instruction.gpu_products import GpuProducts
from tilewright.intrinsics.registry import Registry, standard
from tilewright.machine.description import Gpu

__all__ = [
    "ORDERED", "TRANSPOSED_COPIES", "ZERO_BORDER_BYTES", "add_rows", "combined_cycles", "join_products", "leave_border",
    "mappings", "plan_ordered", "plan_product", "records", "row_cycles", "schedule_rows",
]  # fmt: skip

ORDERED = False
TRANSPOSED_COPIES = False
ZERO_BORDER_BYTES = 1 << 28


def records(machine: Gpu) -> Registry:
    """The records of intrinsics of all machines."""
    return standard()


def mappings(planning: Planning, machine: Gpu) -> GpuProducts:
    """How products are mapped to the machine's intrinsics."""
    return GpuProducts(machine, planning.options.intrinsics, planning.options.mma)


def join_products(planning: Planning, steps: Sequence[Group | Loop], machine: Gpu) -> Sequence[Group | Loop]:
    """The steps of a plan, in which products that are one kernel are one group."""
    return gpu_fused.join_products(planning, steps, machine)


def plan_product(planning: Planning, group: Group, machine: Gpu) -> None:
    """Place the result of a product with its epilogue, or of products in one kernel, and add the kernel."""
    plan = gpu_fused.plan_fused if group.parts else gpu_products.plan_product
    plan(planning, group, machine)


def plan_ordered(planning: Planning, group: Group, machine: Gpu) -> NoReturn:
    """Never called: a pass of the graph makes reductions of ordered accumulations."""
    raise AssertionError(f"{group.name} is an ordered accumulation, which {machine.name} has no kernel for")
