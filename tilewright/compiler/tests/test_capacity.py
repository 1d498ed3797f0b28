"""Rule L8 on kernels that are compiled: what a tree places must fit; refusals name the nearest legal change."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import Plan
from tilewright.expr.text import parse_graph
from tilewright.machine.description import Cpu, Gpu
from tilewright.machine.registry import resolve
from tilewright.operator.cycles import epilogue_cycles, product_cycles
from tilewright.operator.product_point import ProductPoint
from tilewright.operator.products_tree import products_tree
from tilewright.options import Options
from tilewright.tiles.legality import TooLarge
from tilewright.tiles.machines import program_resources
from tilewright.tiles.placement import stages
from tilewright.tiles.problem import problem_of
from tilewright.tiles.shared_memory import block_bytes
from tilewright.tiles.tree import InvalidTree, Stage, kernels, walk

Json = Any
GRAPHS = {
    "half": """
        input X: f16[256, 512]
        input W: f16[512, 256]
        Y: f16[i:256, j:256] += X[i, k] * W[k, j] over k:512
        output Y""",
    "gemm": """
        input X: f32[130, 96]
        input W: f32[96, 70]
        Y: f32[i:130, j:70] += X[i, k] * W[k, j] over k:96
        output Y""",
    "softmax": """
        input S: f32[7, 600]
        M: f32[i:7] max= S[i, l] over l:600
        E: f32[i:7, l:600] = exp(S[i, l] - M[i])
        T: f32[i:7] += E[i, l] over l:600
        P: f32[i:7, l:600] = E[i, l] / T[i]
        output P""",
    "columns": """
        input A: f32[30, 512]
        Y: f32[j:512] += A[i, j] over i:30
        output Y""",
}


def machine_of(name: str, l1_bytes: int = 0) -> Cpu | Gpu:
    found = resolve(name)
    assert isinstance(found, Cpu | Gpu)
    if l1_bytes:
        assert isinstance(found, Cpu)
        first, *others = found.caches
        found = replace(found, caches=(replace(first, bytes=l1_bytes), *others))
    return found


def plan(graph: str, machine: Cpu | Gpu, trees: dict[str, Json] | None = None) -> Plan:
    return make_plan(parse_graph(GRAPHS[graph]), machine, 1, Options(cache=False, trees=trees or {}))


@cache
def tree_of(graph: str, machine: str) -> tuple[str, str]:
    """The kernel of a graph, its last one, and its tree as text of JSON."""
    made = plan(graph, machine_of(machine))
    name = made.kernels[-1].name
    return name, json.dumps(made.trees()[name])


def nodes(tree: Json) -> Iterator[Json]:
    """Every node of a tree, parents first."""
    yield tree
    below = tree.get("child", next((tree[word] for word in ("seq", "pipe") if word in tree), []))
    for child in below if isinstance(below, list) else [below]:
        yield from nodes(child)


def refusal(graph: str, machine: str, edit: Callable[[Json], None]) -> TooLarge:
    name, text = tree_of(graph, machine)
    tree = json.loads(text)
    edit(tree)
    with pytest.raises(TooLarge) as caught:
        plan(graph, machine_of(machine), {name: tree})
    assert caught.value.where == f"tile tree of {name}"
    return caught.value


def with_slots(count: int) -> Callable[[Json], None]:
    def edit(tree: Json) -> None:
        for node in nodes(tree):
            if "stage" in node:
                node["slots"] = count

    return edit


def with_warps(rows: int, columns: int) -> Callable[[Json], None]:
    def edit(tree: Json) -> None:
        tree["hints"] = [["warps", rows, columns]]

    return edit


def with_points(loop: str, points: int, extent: int) -> Callable[[Json], None]:
    """So many points of a loop in a tile, and as many tiles as cover its extent."""

    def edit(tree: Json) -> None:
        for node in nodes(tree):
            inside = node.get("level") == "REG"
            for each in [*node.get("kernel", {}).get("quantum", []), *(node.get("par", []) if inside else [])]:
                each[1] = points if each[0] == loop else each[1]
            for each in [] if inside else [*node.get("par", []), *node.get("for", [])]:
                each[1] = -(-extent // points) if each[0] == loop else each[1]

    return edit


@pytest.mark.parametrize("machine", ["sm_80", "sm_90a"])
def test_slots_that_shared_memory_does_not_hold_are_refused_with_those_it_holds(machine: str) -> None:
    name, text = tree_of("half", machine)
    refused = refusal("half", machine, with_slots(64))
    gpu = machine_of(machine)
    assert isinstance(gpu, Gpu)
    assert "(64 slots of" in refused.message
    assert f"in SHARED, which holds {gpu.shared_bytes_per_block}" in refused.message
    found = re.fullmatch(r"slots (\d+) instead of 64", refused.help or "")
    assert found is not None
    fitting = json.loads(text)
    with_slots(int(found[1]))(fitting)
    plan("half", gpu, {name: fitting})
    refusal("half", machine, with_slots(int(found[1]) + 1))


def test_a_tile_that_shared_memory_does_not_hold_is_refused_with_a_smaller_one() -> None:
    refused = refusal("half", "gfx1201", with_points("k", 512, 512))
    assert "in SHARED, which holds 65536" in refused.message
    assert re.match(r"k:\d+ instead of k:512, tiles \d+ times smaller", refused.help or "")


def test_sums_that_the_registers_of_a_block_do_not_hold_are_refused() -> None:
    def edit(tree: Json) -> None:
        with_points("i", 256, 256)(tree)
        with_points("k", 16, 512)(tree)
        with_warps(1, 2)(tree)

    refused = refusal("half", "sm_80", edit)
    assert re.search(r"a program keeps \d+ bytes of Y in REG, which holds \d+", refused.message)
    assert "i:128 instead of i:256" in (refused.help or "")


def test_results_on_their_way_out_count() -> None:
    """The sums of 128 x 256 fit the registers of 8 warps; as results of f32 they pass through shared memory."""

    def edit(tree: Json) -> None:
        with_points("i", 128, 130)(tree)
        with_points("j", 256, 70)(tree)
        with_warps(4, 2)(tree)

    refused = refusal("gemm", "sm_75", edit)
    assert "for results and for what passes align" in refused.message


def test_more_threads_than_a_block_has_are_refused() -> None:
    refused = refusal("half", "sm_80", with_warps(8, 8))
    assert "a block has 2048 threads, the machine has 1024 at most" in refused.message
    assert refused.help == "32 warps of 32 threads"


def test_warps_that_no_layout_distributes_are_refused() -> None:
    name, text = tree_of("half", "sm_80")
    tree = json.loads(text)
    with_warps(3, 2)(tree)
    with pytest.raises(InvalidTree, match="3 warps along m") as caught:
        plan("half", machine_of("sm_80"), {name: tree})
    assert "powers of two" in (caught.value.help or "")


def test_what_blocks_hold_is_what_the_rule_counted() -> None:
    """The formula that ranks tiles, and L8, on the tree that was made of the tile."""
    gpu = machine_of("sm_90a")
    made = plan("half", gpu).kernels[-1].scheduled
    problem, room = problem_of(made), program_resources(gpu)
    staged = stages(made.tree, problem, room)
    slots = next(node.slots for _, node in walk(made.tree) if isinstance(node, Stage))
    assert len(staged) == 2
    assert all(each.level == "SHARED" and each.slots == slots and each.bytes % slots == 0 for each in staged)
    held = block_bytes(made.tree, problem, room, staged)
    assert sum(each.bytes for each in staged) < held <= gpu.shared_bytes_per_block  # type: ignore[union-attr]


# CPUs -----------------------------------------------------------------------------------------------------------------


def test_row_buffers_lie_in_the_first_cache_that_holds_them() -> None:
    for l1_bytes, level in ((32768, "L1"), (2408, "L1"), (2407, "L2")):
        made = plan("softmax", machine_of("x86-64-v3", l1_bytes)).kernels[-1].scheduled
        (stage,) = (node for _, node in walk(made.tree) if isinstance(node, Stage))
        assert (stage.level, stage.slots) == (level, 1)


def test_a_row_buffer_that_its_cache_does_not_hold_is_refused() -> None:
    small = machine_of("x86-64-v3", 2407)
    made = plan("softmax", small)
    name = made.kernels[-1].name
    tree = made.trees()[name]
    next(node for node in nodes(tree) if "stage" in node)["level"] = "L1"
    with pytest.raises(TooLarge) as caught:
        plan("softmax", small, {name: tree})
    assert caught.value.message == "L8 resources: a program keeps 2408 bytes of E, M, T in L1, which holds 2407"
    assert "instead of" in (caught.value.help or "")


def test_what_no_stage_keeps_may_exceed_caches() -> None:
    """Operands of a product come through caches of any size: what does not fit is slow, and no error."""
    plan("gemm", machine_of("x86-64-v3", 64))


def test_sums_of_rows_that_registers_do_not_hold_are_refused() -> None:
    def edit(tree: Json) -> None:
        for node in nodes(tree):
            for loop in node.get("unroll", []):
                if loop[0] == "j":
                    tree["for"], loop[1] = [["j", 1]], 64

    refused = refusal("columns", "x86-64-v3", edit)
    assert refused.message == "L8 resources: a program keeps 2048 bytes of Y in REG, which holds 512"
    assert "j:16 instead of j:64" in (refused.help or "")


# Predicted cycles -----------------------------------------------------------------------------------------------------


def test_predicted_cycles_of_a_product_are_those_of_its_tree() -> None:
    machine = machine_of("x86-64-v3")
    assert isinstance(machine, Cpu)
    made = plan("gemm", machine)
    (kernel,) = (each for each in made.kernels if kernels(each.scheduled.tree))
    ((work, tile),) = ((each.work, each.tile) for each in products_tree(kernel.scheduled).products)
    point = ProductPoint((tile["i"],), tile["j"] // work.lanes, ("j", "i"))
    assert kernel.cycles == product_cycles(work, point, machine) + epilogue_cycles(work, machine)
    tree = made.trees()[kernel.name]
    with_points("i", 1, 130)(tree)
    (edited,) = (each for each in plan("gemm", machine, {kernel.name: tree}).kernels if each.name == kernel.name)
    low = ProductPoint((1,), tile["j"] // work.lanes, ("j", "i"))
    assert edited.cycles == product_cycles(work, low, machine) + epilogue_cycles(work, machine)
    assert edited.cycles > 2 * kernel.cycles
