"""What decisions say of themselves: their numbers, and which kernel they are about."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilewright
from tests.covering import tries
from tests.random_graphs import graphs
from tilewright.compiler.compile import resolve_target
from tilewright.compiler.interface import planned_manifest
from tilewright.compiler.make_plan import make_plan
from tilewright.decision import ASKED, Cost, Decision, Refusal, keep
from tilewright.expr import GraphBuilder
from tilewright.expr.graph import Graph
from tilewright.expr.ops import conv, elementwise, linalg, norm, reduce
from tilewright.intrinsics.registry import catalogue
from tilewright.machine import Cpu
from tilewright.options import Options
from tilewright.runtime.explanation import Explanation

MACHINES = ("znver5", "x86-64-v2", "x86-64-v3", "aarch64", "sm_80", "sm_90a", "gfx1100")


def attention(rows: int, width: int, dtype: str = "f16") -> Graph:
    b = GraphBuilder()
    q, k, v = (b.input(name, (rows, width), dtype) for name in "qkv")
    scores = norm.softmax(linalg.linear(q, k, name="scores"), name="weights")
    return b.finish([linalg.matmul(scores, v, name="y")])


def lost(decisions: list[Decision]) -> list[str]:
    """Decisions whose winner costs more than what came second."""
    compared = [each for each in decisions if each.cost and each.runner_up_cost and each.reason != ASKED]
    return [each.explain() for each in compared if each.cost.exceeds(each.runner_up_cost)]


@pytest.mark.parametrize(("cycles", "second"), [(90.0, False), (99.0, False), (100.0, True), (120.0, True)])
def test_what_gains_too_little_is_refused_and_is_no_second(cycles: float, second: bool) -> None:
    """It was said to be second, with fewer cycles than the winner."""
    kept = keep("fusion", "apart", 100.0, "one", cycles, 1.02)
    assert not lost([kept])
    assert (kept.runner_up == "one") is second
    assert [(each.candidate, each.cost) for each in kept.refused] == ([] if second else [("one", Cost(cycles=cycles))])
    assert f"{cycles:.0f} cycles" in kept.explain()


@pytest.mark.parametrize("machine", MACHINES)
def test_no_winner_costs_more_than_what_came_second(machine: str) -> None:
    dtype = "f16" if machine.startswith(("sm_", "gfx")) else "f32"
    for threads in (1, 2):
        plan = make_plan(attention(96, 200, dtype), resolve_target(machine), threads)
        assert any(each.cost and each.runner_up_cost for each in plan.decisions)
        assert not lost(plan.decisions)


@given(graphs(nodes=4, points=1 << 10), st.sampled_from(MACHINES))
@settings(max_examples=tries(4, full=25), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_winner_of_a_random_graph_costs_more(graph: Graph, machine: str) -> None:
    assert not lost(make_plan(graph, resolve_target(machine), 2).decisions)


def test_decisions_say_the_numbers_of_their_text() -> None:
    plan = make_plan(attention(96, 200, "f32"), resolve_target("znver5"), 1)
    (tile,) = [each for each in plan.decisions if each.subject == "register tile of scores"]
    assert tile.cost is not None
    assert f"{tile.cost.cycles:.0f} predicted cycles" in tile.reason
    assert tile.kernel == "scores"


@pytest.mark.parametrize("machine", ["znver1", "znver4", "x86-64-v2", "x86-64-v3", "znver5"])
@pytest.mark.parametrize("dtypes", [("f32", "f32", "f32"), ("u8", "i8", "i32"), ("bf16", "bf16", "f32")])
def test_no_product_is_predicted_faster_than_the_machine_multiplies(machine: str, dtypes: tuple[str, str, str]) -> None:
    """Mappings had the rate of their record, two instructions a cycle, on machines with one; tiles that of the machine,
    also for instructions that take longer, as those on words of a Zen 1.
    """
    b, target = GraphBuilder(), resolve_target(machine)
    assert isinstance(target, Cpu)
    factors = b.input("a", (96, 64), dtypes[0]), b.input("b", (64, 80), dtypes[1])
    a, c = (elementwise.cast(each, dtypes[2]) for each in factors)
    plan = make_plan(b.finish([linalg.matmul(a, c, name="y")]), target, 1)
    (mapping,) = [each for each in plan.decisions if each.subject == "instruction of y"]
    (tile,) = [each for each in plan.decisions if each.subject == "register tile of y"]
    (kernel,) = [each for each in plan.kernels if each.instruction]
    record = catalogue(target.architecture).find(kernel.instruction)
    least = 96 * 64 * 80 / record.macs / target.fma_units
    if kernel.instruction.startswith("vpmaddwd") and machine == "znver1":
        least *= 2
    for each in (mapping, tile):
        assert each.cost is not None
        assert each.cost.cycles is not None
        assert each.cost.cycles >= least, each.explain()


def test_sorts_and_copies_have_their_cycles_as_fields() -> None:
    b = GraphBuilder()
    values, _ = reduce.top_k(b.input("x", (4, 300), "f32"), 5, axis=1)
    plan = make_plan(b.finish([values]), resolve_target("znver5"), 1)
    for subject in ("order of ", "tile tree of "):
        found = [each for each in plan.decisions if each.subject.startswith(subject) and "cycles a row" in each.reason]
        assert found
        assert all(each.cost and each.runner_up_cost for each in found)
        assert not lost(found)
    b = GraphBuilder()
    plan = make_plan(
        b.finish([linalg.matmul(b.input("a", (1024, 1024), "f32"), b.input("b", (1024, 1024), "f32"))]),
        resolve_target("znver5"), 1,
    )  # fmt: skip
    (copied,) = [each for each in plan.decisions if each.subject == "layout of a"]
    assert copied.runner_up == "a as it is"
    assert copied.cost is not None
    assert copied.runner_up_cost is not None
    assert copied.runner_up_cost.exceeds(copied.cost)


def test_a_tile_of_a_gpu_claims_no_more_than_was_compared() -> None:
    """A tile of 64 blocks was "the fewest of all", beside a second one of 32."""
    b = GraphBuilder()
    graph = b.finish([linalg.matmul(b.input("a", (128, 64), "f16"), b.input("b", (64, 128), "f16"), name="c")])
    decisions = make_plan(graph, resolve_target("sm_90a"), 1).decisions
    (tile,) = [each for each in decisions if each.subject == "tile of c"]
    assert "fewest" not in tile.reason


def convolutions() -> Graph:
    """Four convolutions with an addition and a relu, as a residual network has them, with the names of its weights."""
    b = GraphBuilder("network")
    x = b.input("image", (1, 64, 28, 28), "f32")
    for number, filters in enumerate((64, 256, 64, 128)):
        shape, name = (filters, x.shape[1], 3, 3), f"{number}.body.2.0.convolution.weight"
        w = b.constant(np.ones(shape, np.float32), name)
        x = elementwise.relu(conv.conv(x, w, pads=(1, 1, 1, 1), name=f"conv2d_{number}"), name=f"relu_{number}")
    return b.finish([x])


@pytest.mark.parametrize("threads", [1, 2])
def test_three_kernels_are_explained_in_40_lines_of_80_columns(threads: int) -> None:
    """Item 1 of the first hours: the most expensive kernels, why they are as they are, and what bounds them."""
    target = resolve_target("znver5")
    assert isinstance(target, Cpu)
    rates = replace(target, issue_cycles={"fma_16_f32_f32": 0.5}, latency_cycles={"fma_16_f32_f32": 4.0})
    plan = make_plan(convolutions(), target, threads)
    lines = Explanation(planned_manifest(plan, target), plan.decisions, threads, rates).text().splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    first, second, third = (
        next(n for n, line in enumerate(lines) if line.startswith(f"{k}. conv2d_")) for k in (1, 2, 3)
    )
    for begin, end in ((first, second), (second, third), (third, len(lines))):
        said = {line[3:12].strip() for line in lines[begin + 1 : end]}
        assert {"bound by", "fused", "mapping", "tile", "layout"} <= said


def test_every_decision_about_one_kernel_names_it() -> None:
    plan = make_plan(attention(96, 200, "f32"), resolve_target("znver5"), 1)
    names = {kernel.name for kernel in plan.kernels}
    parts = {name.partition(".part")[0] for name in names}
    assert parts <= {each.kernel for each in plan.decisions} <= names | parts
    assert all(" s of " not in each.explain() for each in plan.decisions), "seconds of no measured machine"


def test_decisions_survive_json() -> None:
    made = Decision("tile of y", "a", "it is fast", "b", "slow", (Refusal("c", "fits", "9 > 8", Cost(seconds=1.0)),),
                    Cost(cycles=2.0, bytes=3), Cost(cycles=4.0), "y")  # fmt: skip
    assert Decision.from_json(made.to_json()) == made


def test_kernels_of_gpus_have_the_cycles_of_their_rule() -> None:
    """A sum in parts has those of both kernels at the first; a kernel with another tree than the rule's has none."""
    b = GraphBuilder("wide")
    x, w = b.input("x", (64, 8192), "f16"), b.input("w", (64, 8192), "f16")
    graph = b.finish([norm.softmax(linalg.matmul(x, w, transpose_b=True), name="y")])
    options = Options(cache=False)
    module = tilewright.compile(graph, machine="sm_90a", device="emulator", options=options)
    launches = {each.name: each.cycles for each in module.manifest.launches}
    plan = json.loads(module.artifact.plan)
    decisions = [Decision.from_json(each) for each in plan["decisions"]]
    decided = {each.subject: each.cost.cycles or 0 for each in decisions if each.cost is not None}
    assert launches == {
        "matmul.acc.parts": round(decided["block of matmul.acc"]), "matmul.acc": 0, "y": round(decided["tile of y"])
    }  # fmt: skip
    assert f"{launches['y']:,} cycles predicted" in module.explain()
    trees = {"y": plan["trees"]["y"]}
    again = tilewright.compile(graph, machine="sm_90a", device="emulator", options=replace(options, trees=trees))
    assert [each.cycles for each in again.manifest.launches if each.name == "y"] == [0], "no rule priced a given tree"
