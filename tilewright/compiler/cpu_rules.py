"""The rules of CPUs, as `target.Rules` asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.compiler import cpu_products, fused
from tilewright.compiler.cpu_rows import add_rows, row_cycles
from tilewright.compiler.ordered import plan_ordered
from tilewright.compiler.planning import Planning
from tilewright.expr.core import Compute, Tensor
from tilewright.expr.graph import Loop
from tilewright.graph.groups import Group
from tilewright.instruction.cpu_products import CpuProducts
from tilewright.intrinsics.registry import Registry, catalogue
from tilewright.machine.description import Cpu
from tilewright.operator.rules.cpu_rows import schedule_rows

if TYPE_CHECKING:
    pass

__all__ = [
    "ORDERED", "TRANSPOSED_COPIES", "ZERO_BORDER_BYTES", "add_rows", "combined_cycles", "join_products", "leave_border",
    "mappings", "plan_ordered", "plan_product", "records", "row_cycles", "schedule_rows",
]  # fmt: skip

ORDERED = True
TRANSPOSED_COPIES = True
ZERO_BORDER_BYTES = 1 << 20


def leave_border(planning: Planning, tensor: Tensor, order: Sequence[int], machine: Cpu) -> bool:
    """Never: code for CPUs loads whole vectors, and so needs the zeros of a border in memory."""
    return False


def combined_cycles(planning: Planning, node: Compute, machine: Cpu) -> float | None:
    """None: each result is stored as its reader takes it, which parts of one result could not be."""
    return None


def records(machine: Cpu) -> Registry:
    """The records of intrinsics of the machine's architecture."""
    return catalogue(machine.architecture)


def mappings(planning: Planning, machine: Cpu) -> CpuProducts:
    """How products are mapped to the machine's intrinsics."""
    given = {tensor.name for tensor in planning.graph.inputs} | planning.constants.keys()
    return CpuProducts(planning.intrinsics, machine, planning.constants, given, planning.row_major_results)


def join_products(planning: Planning, steps: Sequence[Group | Loop], machine: Cpu) -> list[Group | Loop]:
    """Products in one kernel where that is predicted to be faster."""
    return fused.join_products(planning, steps, machine)


def plan_product(planning: Planning, group: Group, machine: Cpu) -> None:
    """One product, or several in one kernel."""
    (fused.plan_fused if group.parts else cpu_products.plan_product)(planning, group, machine)
