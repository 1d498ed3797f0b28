"""Trees of a plan that are edited: other code with the right result, or an error of the rule that they break."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from tilewright.compiler.compile import build, plan_graph, resolve_target, thread_count
from tilewright.decision import ASKED
from tilewright.errors import CompileError
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph
from tilewright.expr.text import parse_graph
from tilewright.options import Options
from tilewright.runtime.container import opened
from tilewright.tiles.notation import parse_tree, print_tree
from tilewright.tiles.tree import to_json

Array = np.ndarray[Any, Any]
Tree = dict[str, Any]
Edit = Callable[[Tree], None]

GEMM = """
    input X: f32[50, 100]
    input W: f32[100, 70]
    input b: f32[70]
    Y: f32[i:50, j:70] += X[i, k] * W[k, j] over k:100
    Z: f32[i:50, j:70] = max(Y[i, j] + b[j], 0.0)
    output Z"""
DEEP = """
    input X: f32[61, 5003]
    input W: f32[5003, 40]
    Y: f32[i:61, j:40] += X[i, k] * W[k, j] over k:5003
    output Y"""
SOFTMAX = """
    input S: f32[37, 130]
    M: f32[i:37] max= S[i, l] over l:130
    E: f32[i:37, l:130] = exp(S[i, l] - M[i])
    T: f32[i:37] += E[i, l] over l:130
    P: f32[i:37, l:130] = E[i, l] / T[i]
    output P"""
CONVOLUTION = """
    input X: f32[1, 5, 12, 13]
    input W: f32[20, 5, 3, 3]
    Y: f32[n:1, f:20, h:10, w:11] += X[n, c, h + r, w + s] * W[f, c, r, s] over c:5, r:3, s:3
    Z: f32[n:1, f:20, h:10, w:11] = max(Y[n, f, h, w], 0.0)
    output Z"""


def compiled(graph: Graph, machine: str, trees: dict[str, Any]) -> tuple[dict[str, Any], str, Array]:
    """The trees of the plan, the program, and what it computes from numbers that add up exactly."""
    options = Options(cache=False, device="emulator", trees=trees)
    artifact = build(graph, resolve_target(machine), 1, options)
    module = opened(artifact, thread_count(1), options, None if machine == "host" else "emulator")
    found = module(*numbers(graph))
    return artifact.stored_plan().trees, artifact.program, np.asarray(found)


@cache
def as_planned(text: str, machine: str) -> tuple[dict[str, Any], str, Array]:
    """What is `compiled` of a graph whose trees are all planned."""
    return compiled(parse_graph(text), machine, {})


def numbers(graph: Graph) -> list[Array]:
    generator = np.random.default_rng(0)
    return [generator.integers(-4, 5, tensor.shape).astype(np.float32) for tensor in graph.inputs]


def nodes(tree: Any) -> list[Tree]:
    """Every node of a tree as data, parents first."""
    found = [tree]
    for key in ("child", "seq", "shar", "para", "pipe"):
        below = tree.get(key, [])
        for each in below if isinstance(below, list) else [below]:
            found += nodes(each)
    return found


def set_factor(tree: Tree, level: str, name: str, factor: int, binding: str = "") -> None:
    """Another factor for a loop at every tile of a level."""
    for node in nodes(tree):
        for word in ("for", "par", "unroll"):
            if node.get("level") == level and word in node and binding in ("", word):
                node[word] = [[loop, factor if loop == name else old] for loop, old in node[word]]


def set_points(tree: Tree, name: str, points: int) -> None:
    """Other points of a loop in one call of the micro-kernel."""
    for node in nodes(tree):
        if "kernel" in node:
            node["kernel"]["quantum"] = [
                [loop, points if loop == name else old] for loop, old in node["kernel"]["quantum"]
            ]


def rows(name: str, extent: int, points: int) -> Edit:
    """Register tiles with other rows."""

    def edit(tree: Tree) -> None:
        set_points(tree, name, points)
        set_factor(tree, "L2", name, -(-extent // points))
        set_factor(tree, "REG", name, points, "unroll")

    return edit


def one_vector(name: str, extent: int) -> Edit:
    """Register tiles of one vector of columns: operands are packed for it."""

    def edit(tree: Tree) -> None:
        lanes = next(dict(node["par"])[name] for node in nodes(tree) if node.get("level") == "REG" and "par" in node)
        set_points(tree, name, lanes)
        set_factor(tree, "L2", name, -(-extent // lanes))
        set_factor(tree, "REG", name, 1, "unroll")

    return edit


def swapped(tree: Tree) -> None:
    """The loops over tiles of a program in the other order."""
    for node in nodes(tree):
        if node.get("level") == "L2":
            node["for"] = node["for"][::-1]


def without_blocks(tree: Tree) -> None:
    """Sums in one go, which are not staged."""
    outer = next(node for node in nodes(tree) if node.get("level") == "L2")
    block = outer["child"]["child"]
    steps = block["child"]
    (k, count), *inside = block["for"]
    assert k == "k"
    ((_, each),) = steps["for"]
    points = dict(steps["child"]["kernel"]["quantum"])["k"]
    steps["for"] = [["k", -(-5003 // points)]]
    assert count * each * points >= 5003
    outer["for"] += inside
    outer["child"] = steps


def vectors(name: str, extent: int, count: int) -> Edit:
    """Passes of so many vectors in each step."""

    def edit(tree: Tree) -> None:
        lanes = next(dict(node["par"])[name] for node in nodes(tree) if node.get("level") == "REG" and "par" in node)
        set_factor(tree, "REG", name, count, "unroll")
        set_factor(tree, "L1", name, -(-extent // (lanes * count)))

    return edit


def one_more_slot(tree: Tree) -> None:
    """Each operand in one more buffer."""
    for node in nodes(tree):
        if "stage" in node:
            node["slots"] = node.get("slots", 1) + 1


def deeper(name: str, extent: int, points: int) -> Edit:
    """Slices of the sum with so many points."""

    def edit(tree: Tree) -> None:
        set_points(tree, name, points)
        set_factor(tree, "L1", name, -(-extent // points))

    return edit


def in_one_pass(tree: Tree) -> None:
    """The sum of a softmax in the pass of the largest value, which needs no row buffer."""
    row = next(node for node in nodes(tree) if "stage" in node)
    largest, total, last = row["child"]["seq"]
    largest["child"] = {"seq": [largest["child"], total["child"]["seq"][-1]]}
    outside = next(node for node in nodes(tree) if node.get("child") is row)
    outside["child"] = {"seq": [largest, last]}


def in_two_passes(tree: Tree) -> None:
    """The largest value and the sum of a softmax, which are one pass, each in a pass of its own."""
    passes = next(node["seq"] for node in nodes(tree) if "seq" in node)
    together = passes.pop(0)
    passes[:0] = [{**together, "child": part} for part in together["child"]["seq"]]


def without_descriptions(tree: Tree) -> Tree:
    """The tree without names and statements of micro-kernels, which follow from their tiles."""
    tree = json.loads(json.dumps(tree))
    for node in nodes(tree):
        if "kernel" in node:
            node["kernel"] = {key: node["kernel"][key] for key in ("quantum", "mapping")}
    return tree


CASES = {
    "product, rows": (GEMM, "host", rows("i", 50, 2)),
    "product, columns": (GEMM, "host", one_vector("j", 70)),
    "product, order": (GEMM, "host", swapped),
    "product, staging": (DEEP, "host", without_blocks),
    "softmax, vectors": (SOFTMAX, "host", vectors("l", 130, 2)),
    "convolution, rows": (CONVOLUTION, "host", rows("w", 11, 2)),
    "convolution, order": (CONVOLUTION, "host", swapped),
    "product, GPU, staging": (GEMM, "sm_80", one_more_slot),
    "product, GPU, slices": (GEMM, "sm_80", deeper("k", 100, 32)),
    "softmax, passes": (SOFTMAX, "host", in_one_pass),
    "softmax, GPU, passes": (SOFTMAX.replace("37", "2").replace("130", "40000"), "sm_80", in_two_passes),
    "convolution, GPU, staging": (CONVOLUTION, "sm_80", one_more_slot),
}


@pytest.mark.parametrize("name", CASES)
def test_an_edited_tree_is_what_runs(name: str) -> None:
    text, machine, edit = CASES[name]
    graph = parse_graph(text)
    trees, program, found = as_planned(text, machine)
    kernel = max(trees, key=lambda each: len(json.dumps(trees[each])))  # not a copy beside it
    edited = json.loads(json.dumps(trees))
    edit(edited[kernel])
    assert edited != trees
    again, other, result = compiled(graph, machine, {kernel: edited[kernel]})
    assert without_descriptions(again[kernel]) == without_descriptions(edited[kernel])
    assert other != program
    (expected,) = evaluate(graph, numbers(graph), precise=True, wide=True)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("machine", ["host", "sm_80"])
@pytest.mark.parametrize("text", [GEMM, SOFTMAX, CONVOLUTION])
def test_a_plan_that_is_given_back_changes_nothing(text: str, machine: str) -> None:
    trees, program, _ = as_planned(text, machine)
    again, same, _ = compiled(parse_graph(text), machine, trees)
    assert (again, same) == (trees, program)


REFUSED = {
    "too few tiles": (GEMM, "host", lambda tree: set_factor(tree, "L2", "i", 1), "i"),
    "too few steps": (GEMM, "host", lambda tree: set_factor(tree, "L1", "k", 1), "k"),
    "tiles unlike the product's": (GEMM, "host", lambda tree: set_factor(tree, "REG", "i", 1, "unroll"), "i"),
    "a loop of another kernel": (GEMM, "host", lambda tree: tree["for"].append(["q", 2]), "q is no loop"),
    "another mapping": (
        GEMM, "host",
        lambda tree: [n["kernel"]["mapping"].update(intrinsic="x") for n in nodes(tree) if "kernel" in n], "mapping",
    ),
    "a value missing": (
        SOFTMAX, "host", lambda tree: [n["seq"].pop() for n in nodes(tree) if len(n.get("seq", [])) == 3], "P",
    ),
    "more rows than registers": (GEMM, "host", rows("i", 50, 40), "40 rows by"),
    "too few blocks": (GEMM, "sm_80", lambda tree: set_factor(tree, "DRAM", "j", 1), "j"),
    "too few slices": (GEMM, "sm_80", lambda tree: set_factor(tree, "L1", "k", 1), "k"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_illegal_tree_is_refused(name: str) -> None:
    text, machine, edit, message = REFUSED[name]
    graph = parse_graph(text)
    trees = plan_graph(graph, resolve_target(machine), 1, Options(cache=False)).trees()
    kernel = max(trees, key=lambda each: len(json.dumps(trees[each])))
    edit(trees[kernel])
    with pytest.raises(CompileError, match=re.escape(message)) as caught:
        compiled(graph, machine, {kernel: trees[kernel]})
    assert caught.value.help


def test_a_tree_for_no_kernel_is_refused() -> None:
    graph = parse_graph(GEMM)
    trees = plan_graph(graph, resolve_target("host"), 1, Options(cache=False)).trees()
    (name,) = trees
    with pytest.raises(CompileError, match="no kernel 'Y\\+Q'") as caught:
        compiled(graph, "host", {"Y+Q": trees[name]})
    assert name in caught.value.help


def test_cycles_of_an_edited_tree_are_its_own() -> None:
    graph = parse_graph(SOFTMAX)
    plan = plan_graph(graph, resolve_target("host"), 1, Options(cache=False))
    (kernel,) = plan.kernels
    text = print_tree(kernel.scheduled.tree)
    last = r"@L1 for l:\d+ \{ @REG unroll l:\d+ \{ par l:\d+ \{ op P \} \} \}"
    tree = to_json(parse_tree(re.sub(last, "@L1 for l:130 { @REG for once:1 { op P } }", text)))
    slower = plan_graph(graph, resolve_target("host"), 1, Options(cache=False, trees={kernel.name: tree}))
    assert slower.kernels[0].cycles > 1.5 * kernel.cycles
    (decision,) = [each for each in slower.decisions if each.subject == f"tile tree of {kernel.name}"]
    assert decision.reason == ASKED
