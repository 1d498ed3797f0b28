"""The plan: every decision about a graph, in the order in which they depend on each other.

graph passes → groups → mappings → layouts → schedules. The result lists kernels to lower, with the tensors they touch;
`lower` needs nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.compiler.loops import plan_loop
from tilewright.compiler.plan import ChooseProduct, Plan
from tilewright.compiler.planning import Planning
from tilewright.compiler.rows import plan_rows
from tilewright.compiler.targets import target_of
from tilewright.errors import InvalidArgument
from tilewright.expr.core import Compute, static_shape
from tilewright.expr.graph import Graph, Loop
from tilewright.graph.groups import Group, form_groups
from tilewright.graph.passes import table
from tilewright.graph.passes.offset_factors import Price
from tilewright.graph.passes.rewritten import Rewritten
from tilewright.graph.passes.table import fitting, run_passes, simplifying, storing
from tilewright.instruction.products import product_factors
from tilewright.layouts import row_major
from tilewright.machine.description import Cpu, Gpu
from tilewright.options import Options


def make_plan(
    graph: Graph,
    machine: Cpu | Gpu,
    threads: int,
    options: Options | None = None,
    choose: ChooseProduct | None = None,
) -> Plan:
    """Decide everything.

    Of the passes that `options` leave out, those of the tile program come after the plan. `choose` is asked how each
    product runs.
    """
    options = options or Options()
    _check_disabled(options.disable, machine)
    prepared, rules = prepare(graph, options.disable), target_of(machine).rules
    pricing = Planning(prepared.graph, prepared, machine, rules, threads, options)
    pricing.constants = prepared.graph.all_constants()
    fitted = run_passes(
        prepared, fitting(_price(pricing), lambda node: rules.combined_cycles(pricing, node, machine), rules.ORDERED),
        options.disable,
    )  # fmt: skip
    rewritten = run_passes(fitted, storing(), options.disable)
    planning = Planning(prepared.graph, rewritten, machine, rules, threads, options, choose)
    for tensor in planning.closed.inputs:
        planning.place(tensor, row_major(static_shape(tensor.shape)), "input")
    _plan_nodes(planning)
    for tensor in planning.closed.outputs:
        assert planning.plan.stored[tensor.name].space == "output"
    planning.trees.require_used(planning.kernel_names)
    planning.keep_constants()
    return planning.plan


def _plan_nodes(planning: Planning) -> None:
    """Plan the kernels of a graph, or of the body of a loop."""
    steps = form_groups(planning.closed, lambda node: planning.product_of(node) is not None)
    planning.find_views([step for step in steps if isinstance(step, Group)])
    for group in planning.rules.join_products(planning, steps, planning.machine):
        if isinstance(group, Loop):
            plan_loop(planning, group, _plan_nodes)
            continue
        with planning.about(group.kernel):
            _plan_group(planning, group)


def _plan_group(planning: Planning, group: Group) -> None:
    if group.decision is not None:
        planning.plan.decisions.append(group.decision)
    apart = planning.apart(group)
    planning.unfused.update(dict.fromkeys(group.stored, apart))
    if group.kind == "product":
        planning.rules.plan_product(planning, group, planning.machine)
    elif group.kind == "ordered":
        planning.rules.plan_ordered(planning, group, planning.machine)
    elif not apart:
        planning.fused[group.name] = group
    else:
        plan_rows(planning, group)


def prepare(graph: Graph, disable: Sequence[str] = ()) -> Rewritten:
    """The clean graph that is stored with a module: what no machine has a say in."""
    return run_passes(graph, simplifying(_is_product), disable)


def _check_disabled(names: Sequence[str], machine: Cpu | Gpu) -> None:
    """Raise InvalidArgument for a name of no pass for this kind of machine that can be switched off."""
    if not names:
        return
    from tilewright.kernel.passes import table as tiles  # brings xDSL, which a cached module does without

    off = tuple(dict.fromkeys(each.name for each in target_of(machine).passes if each.name not in tiles.REQUIRED))
    for name in names:
        if name in tiles.RENAMED:
            fact = f"pass {name!r} has another name now"
            raise InvalidArgument(fact, where="disable", help=f"write {tiles.RENAMED[name]}")
        if name not in table.NAMES and name not in off:
            required = name in (*table.REQUIRED, *tiles.REQUIRED)
            fact = f"pass {name!r} cannot be switched off" if required else f"no pass {name!r} for a {machine.kind}"
            known = f"of the graph: {', '.join(table.NAMES)}; of the tile program: {', '.join(off)}"
            raise InvalidArgument(fact, where="disable", help=known)


def _price(planning: Planning) -> Price:
    """What a product would cost on the record that it would run on; products that differ in names cost the same."""
    known: dict[Any, tuple[float, int] | None] = {}

    def price(node: Compute) -> tuple[float, int] | None:
        factors = product_factors(node)
        if factors is None:
            return None
        operands = [(r.tensor.shape, r.dtype, r.indices, r.tensor.name in planning.constants) for r in factors]
        key = (node.axes, node.reduce, node.output.dtype, *operands, factors[0].tensor == factors[1].tensor)
        if key not in known:
            known[key] = cost(node)
        return known[key]

    def cost(node: Compute) -> tuple[float, int] | None:
        product = planning.product_of(node)
        return None if product is None else planning.target.price(product)

    return price


def _is_product(node: Compute) -> bool:
    return product_factors(node) is not None
