"""Tile trees of every kind of kernel, edited by chance: a `CompileError`, or a program that computes the right result.

    python -m tests.fuzz_trees --edits 2000 --seed 0 [--only NAME] [--machine NAME]

The plan is made with the edited tree, and what `lower` makes of it runs in the interpreter under its checks (races,
memory that nobody wrote, addresses outside of a tensor) and is compared with the evaluator. Some of the programs also
go through the passes. A tree that exceeds a block's threads or shared memory is to be refused by rule L8: that a pass
refuses it, or that blocks come out with more, is a failure.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from tests.graph_texts import CHAIN, MAP, NORM, SOFTMAX, WINDOW
from tilewright.codegen.cpu.target import described
from tilewright.codegen.gpu.control import shared_places
from tilewright.compiler import cpu, gpu
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import Plan
from tilewright.compiler.program import Placement, sizes, steps
from tilewright.errors import CompileError
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import indexing, order_statistics, reduce
from tilewright.expr.text import parse_graph
from tilewright.kernel.dialect import FuncOp
from tilewright.kernel.facts import Facts
from tilewright.kernel.interpreter import run_main
from tilewright.lower.module import build_module
from tilewright.machine.description import Cpu, Gpu
from tilewright.machine.registry import resolve
from tilewright.options import Options
from tilewright.tiles.legality import TooLarge
from tilewright.tiles.machines import program_resources
from tilewright.tiles.tree import HINTS

Array = np.ndarray[Any, Any]
Json = Any

GEMM = """
    input X: f32[14, 20]
    input W: f32[20, 35]
    input b: f32[35]
    Y: f32[i:14, j:35] += X[i, k] * W[k, j] over k:20
    Z: f32[i:14, j:35] = max(Y[i, j] + b[j], 0.0)
    output Z"""
BATCH = """
    input X: f32[3, 9, 8]
    input W: f32[3, 8, 17]
    Y: f32[b:3, i:9, j:17] += X[b, i, k] * W[b, k, j] over k:8
    output Y"""
DEEP = """
    input X: f32[13, 2100]
    input W: f32[2100, 20]
    Y: f32[i:13, j:20] += X[i, k] * W[k, j] over k:2100
    Z: f32[i:13, j:20] = max(Y[i, j], 1.0)
    output Z"""
BYTES = """
    input X: i8[7, 30]
    input W: i8[30, 19]
    Y: i32[i:7, j:19] += i32(X[i, k]) * i32(W[k, j]) over k:30
    output Y"""
HALF = """
    input X: f16[40, 48]
    input W: f16[48, 40]
    Y: f16[i:40, j:40] += X[i, k] * W[k, j] over k:48
    output Y"""
CONVOLUTION = """
    input X: f32[1, 3, 7, 8]
    input W: f32[10, 3, 3, 3]
    Y: f32[n:1, f:10, h:5, w:6] += X[n, c, h + r, w + s] * W[f, c, r, s] over c:3, r:3, s:3
    Z: f32[n:1, f:10, h:5, w:6] = max(Y[n, f, h, w], 0.0)
    output Z"""
TRANSPOSED = """
    input A: f32[20, 23]
    Y: f32[i:23, j:20] = A[j, i] * 2.0
    output Y"""
COLUMNS = """
    input A: f32[30, 17]
    Y: f32[j:17] += A[i, j] over i:30
    output Y"""


def _softmax(rows: int, columns: int, scores: str, weights: str) -> str:
    """P: rows of `scores` as weights that add up to 1, in the type `weights`."""
    quotient = "X[b, m, l] / T[b, m]"
    return f"""
    M: f32[b:2, m:{rows}] max= {scores}[b, m, l] over l:{columns}
    X: f32[b:2, m:{rows}, l:{columns}] = exp({scores}[b, m, l] - M[b, m])
    T: f32[b:2, m:{rows}] += X[b, m, l] over l:{columns}
    P: {weights}[b:2, m:{rows}, l:{columns}] = {f"f16({quotient})" if weights == "f16" else quotient}"""


ATTENTION = f"""
    input Q: f32[2, 13, 6]
    input K: f32[2, 6, 19]
    input V: f32[2, 19, 7]
    S: f32[b:2, m:13, l:19] += Q[b, m, k] * K[b, k, l] over k:6
{_softmax(13, 19, "S", "f32")}
    E: f32[b:2, m:13, n:7] += P[b, m, l] * V[b, l, n] over l:19
    output E"""
CONVOLUTIONS = """
    input X: f32[2, 3, 8, 9]
    input U: f32[19, 3, 3, 3]
    input W: f32[7, 19]
    T: f32[n:2, c:19, h:6, w:7] += X[n, k, h + r, w + s] * U[c, k, r, s] over k:3, r:3, s:3
    F: f32[n:2, c:19, h:6, w:7] = max(T[n, c, h, w], 0.0)
    Y: f32[n:2, f:7, h:6, w:7] += F[n, c, h, w] * W[f, c] over c:19
    output Y"""
SEPARABLE = """
    input X: f32[2, 8, 9, 19]
    input U: f32[19, 3, 3]
    input W: f32[19, 7]
    T: f32[n:2, h:6, w:7, c:19] += X[n, h + r, w + s, c] * U[c, r, s] over r:3, s:3
    F: f32[n:2, h:6, w:7, c:19] = max(T[n, h, w, c], 0.0)
    Y: f32[n:2, h:6, w:7, f:7] += F[n, h, w, c] * W[c, f] over c:19
    output Y"""
HALF_CHAIN = """
    input A: f16[2, 21, 10]
    input B: f16[2, 10, 37]
    input D: f16[2, 37, 18]
    C: f32[b:2, m:21, l:37] += f32(A[b, m, k]) * f32(B[b, k, l]) over k:10
    F: f16[b:2, m:21, l:37] = f16(max(C[b, m, l] * 0.25, 0.0))
    G: f32[b:2, m:21, n:18] += f32(F[b, m, l]) * f32(D[b, l, n]) over l:37
    E: f16[b:2, m:21, n:18] = f16(G[b, m, n])
    output E"""
HALF_ATTENTION = f"""
    input Q: f16[2, 21, 10]
    input K: f16[2, 10, 37]
    input V: f16[2, 37, 18]
    S: f32[b:2, m:21, l:37] += f32(Q[b, m, k]) * f32(K[b, k, l]) over k:10
    F: f32[b:2, m:21, l:37] = l <= m + 9 ? S[b, m, l] * 0.125 : -inf
{_softmax(21, 37, "F", "f16")}
    G: f32[b:2, m:21, n:18] += f32(P[b, m, l]) * f32(V[b, l, n]) over l:37
    E: f16[b:2, m:21, n:18] = f16(G[b, m, n])
    output E"""


def _ordered(name: str) -> Graph:
    b = GraphBuilder(name)
    x = b.input("x", (5, 20), "f32")
    if name == "scan":
        return b.finish([reduce.cum_sum(x, axis=1)])
    if name == "scan of columns":
        return b.finish([reduce.cum_sum(x, axis=0)])
    if name == "sort":
        return b.finish([order_statistics.top_k(x, 3, axis=1)[0]])
    if name == "sort of columns":
        return b.finish([order_statistics.top_k(x, 2, axis=0)[0]])
    places = b.input("places", (4,), "i64")
    updates = b.input("updates", (4, 20), "f32")
    return b.finish([indexing.scatter_nd(x, b_places(places), updates, reduction="add")])


def b_places(places: Any) -> Any:
    from tilewright.expr.ops import shape

    return shape.unsqueeze(places, [1])


CPU_GRAPHS = {
    "gemm": GEMM, "batch": BATCH, "deep": DEEP, "bytes": BYTES, "convolution": CONVOLUTION, "softmax": SOFTMAX,
    "norm": NORM, "map": MAP, "transposed": TRANSPOSED, "window": WINDOW, "columns": COLUMNS,
    "chain": CHAIN, "attention": ATTENTION, "convolutions": CONVOLUTIONS, "separable": SEPARABLE,
    "scan": "", "scan of columns": "", "sort": "", "sort of columns": "", "scatter": "",
}  # fmt: skip
GPU_GRAPHS = {
    "gemm": GEMM, "batch": BATCH, "half": HALF, "convolution": CONVOLUTION, "softmax": SOFTMAX, "norm": NORM,
    "map": MAP, "transposed": TRANSPOSED, "window": WINDOW, "columns": COLUMNS,
    "half chain": HALF_CHAIN, "half attention": HALF_ATTENTION,
}  # fmt: skip
CPUS = ("x86-64-v3", "znver5", "small", "host")
GPUS = ("sm_80", "sm_90a", "gfx1201")
CASES = [(name, machine) for machine in CPUS for name in CPU_GRAPHS]
CASES += [(name, machine) for machine in GPUS for name in GPU_GRAPHS]


@cache
def machine_of(name: str) -> Cpu | Gpu:
    """A machine; "small" has caches that hold nothing: its rows are streamed, asked for, and run in pipelines."""
    if name != "small":
        return resolve(name)
    found = resolve("x86-64-v3")
    assert isinstance(found, Cpu)
    bytes_of = (1 << 11, 1 << 12, 1 << 10)
    caches = (replace(each, bytes=size) for each, size in zip(found.caches, bytes_of, strict=False))
    return replace(found, caches=tuple(caches))


@cache
def graph_of(name: str) -> Graph:
    text = {**CPU_GRAPHS, **GPU_GRAPHS}[name]
    return parse_graph(text) if text else _ordered(name)


@cache
def numbers(name: str) -> list[Array]:
    generator = np.random.default_rng(0)
    return [
        generator.integers(0 if tensor.dtype == "i64" else -3, 4, tensor.shape).astype(_numpy_type(tensor.dtype))
        for tensor in graph_of(name).inputs
    ]


def _numpy_type(dtype: str) -> str:
    return dtype.replace("f", "float").replace("i", "int")


@cache
def expected(name: str) -> list[Array]:
    return [np.asarray(each) for each in evaluate(graph_of(name), numbers(name), precise=True, wide=True)]


@cache
def trees_of(name: str, machine: str, threads: int) -> str:
    return json.dumps(
        make_plan(graph_of(name), machine_of(machine), threads, Options(cache=False, fuse="always")).trees()
    )


# What is made of a tree -----------------------------------------------------------------------------------------------


def verdict(name: str, machine: str, threads: int, trees: Json, through: bool) -> str:
    """The verdict "refused", "refused by L8" or "right"; AssertionError for a wrong result, or for a block that is too
    large. With `through`, passes run too.
    """
    target = machine_of(machine)
    try:
        options = Options(cache=False, trees=trees)
        plan = make_plan(graph_of(name), target, threads, options)
        placement = Placement(plan)
        module = lowered(plan, placement, target)
    except CompileError as error:
        return _refusal(error)
    results = [np.zeros(value.size, value.dtype) for value in graph_results(name)]
    run_main(module, [_flat(value) for value in numbers(name)], results, placement.packed(plan), races=True)
    for found, wanted in zip(results, expected(name), strict=True):
        tolerance = 0.01 if found.dtype == np.float16 else 1e-4
        np.testing.assert_allclose(found, wanted.reshape(-1), rtol=tolerance, atol=tolerance)
    if through:
        try:
            if isinstance(target, Gpu):
                gpu.distribute(module, options)
                _require_fits(module, target)
            else:
                cpu.tile_program(plan, placement, target, options)
        except CompileError as error:
            return _refusal_of_pass(error)
    return "right"


def _refusal(error: CompileError) -> str:
    """The verdict about a refusal, which must say what is wrong, where, and what would be right."""
    for part in (error.message, error.where, error.help):
        if not part:
            raise AssertionError(f"no message, place or help: {error}")
    return "refused by L8" if isinstance(error, TooLarge) else "refused"


def _refusal_of_pass(error: CompileError) -> str:
    """The verdict about a refusal by a pass; AssertionError where rule L8 should have refused the tree."""
    _refusal(error)
    if LARGE.search(error.message):
        raise AssertionError(f"refused by a pass, not by rule L8: {error.message}")
    return "refused by a pass"


def _require_fits(module: ModuleOp, machine: Gpu) -> None:
    """Raises AssertionError for a kernel with more shared memory than a block has."""
    for func in module.body.ops:
        if isinstance(func, FuncOp):
            _, taken = shared_places(func, Facts())
            most = machine.shared_bytes_per_block
            assert taken <= most, f"rule L8 lets a block take {taken} bytes of shared memory, the machine has {most}"


def graph_results(name: str) -> list[Array]:
    kinds = [_numpy_type(tensor.dtype) for tensor in graph_of(name).outputs]
    return [np.zeros(value.shape, kind) for value, kind in zip(expected(name), kinds, strict=True)]


def _flat(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1)


def lowered(plan: Plan, placement: Placement, target: Cpu | Gpu) -> Any:
    if isinstance(target, Gpu):
        return gpu.tile_program(plan, placement, target)
    places, sections = placement.places, placement.sections
    attribute, room = described(target).attribute(), program_resources(target)
    return build_module(steps(plan), sizes(plan), places, sections, attribute, room)[0]


# Edits ----------------------------------------------------------------------------------------------------------------


LARGE = re.compile("threads exceed|shared memory needed|registers = ")  # what L8 refuses before passes do
FACTORS = (0, 1, 1, 2, 3, 4, 7, 8, 13, 16, 17, 32, 64, 101, 1 << 20, 1 << 61, 1 << 70, -1)
WRONG = (None, "", "x", 1.5, True, [], {}, [[]], [1], "L2", 10**30)
NAMES = ("i", "j", "k", "l", "m", "n", "b", "once", "x", "X", "W", "Y", "Z", "P", "T", "S", "", "é", "i.1", "k.0")
LEVELS = ("DRAM", "L2", "L1", "REG", "SHARED", "L3", "", "l2")
BINDINGS = ("for", "par", "unroll")
SCOPES = ("seq", "shar", "para", "pipe")


def nodes(tree: Json) -> list[Json]:
    """Every node of a tree, parents first."""
    found = [tree]
    for key in ("child", *SCOPES):
        below = tree.get(key, [])
        for each in below if isinstance(below, list) else [below]:
            if isinstance(each, dict):
                found += nodes(each)
    return found


def values(tree: Json) -> list[tuple[Any, Any]]:
    """Every place in a value: its container and the key or number there."""
    found: list[tuple[Any, Any]] = []
    pairs = list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree))
    for key, value in pairs:
        found.append((tree, key))
        if isinstance(value, dict | list):
            found += values(value)
    return found


def _loops(node: Json) -> list[Json]:
    for word in BINDINGS:
        if isinstance(node.get(word), list):
            return list(node[word])
    return []


def _with_loops(tree: Json, roll: random.Random) -> Json:
    return roll.choice([node for node in nodes(tree) if _loops(node)] or [{"for": [["i", 1]]}])


def _factor(tree: Json, roll: random.Random) -> None:
    loop = roll.choice(_loops(_with_loops(tree, roll)))
    if isinstance(loop, list) and len(loop) == 2:
        old = loop[1] if isinstance(loop[1], int) else 1
        loop[1] = roll.choice([*FACTORS, old + 1, old * 2, max(1, old // 2), old - 1])


def _everywhere(tree: Json, roll: random.Random) -> None:
    """Another factor of one loop wherever it has the old one: quantum and tiles agree."""
    loop = roll.choice(_loops(_with_loops(tree, roll)))
    name, old, factor = loop[0], loop[1], roll.choice([1, 2, 3, 4, 5, 8, 16])
    for container, key in values(tree):
        if container[key] == [name, old]:
            container[key] = [name, factor]


def _retile(tree: Json, roll: random.Random) -> None:
    """Other points of a loop in a tile, and as many tiles as cover it: mostly legal."""
    quanta = [q for node in nodes(tree) if "kernel" in node for q in node["kernel"].get("quantum", [])]
    inside = [loop for node in nodes(tree) if node.get("level") == "REG" for loop in _loops(node)]
    candidates = [loop for loop in (*quanta, *inside) if isinstance(loop, list) and len(loop) == 2]
    if not candidates:
        return
    name, old = roll.choice(candidates)
    outer = [loop for node in nodes(tree) if node.get("level") != "REG" for loop in _loops(node) if loop[0] == name]
    if not isinstance(old, int):
        return
    new = roll.choice([1, 2, 3, 4, 6, 8, 16, 32])
    for loop in candidates:
        if loop == [name, old]:
            loop[1] = new
    for loop in outer:
        if isinstance(loop[1], int) and loop[1] > 1:
            loop[1] = max(1, -(-loop[1] * old // new))


def _grow(tree: Json, roll: random.Random) -> None:
    """Many times the points of a loop in the tile of a block, in fewer tiles: legal but for its size."""
    quanta = [q for node in nodes(tree) if "kernel" in node for q in node["kernel"].get("quantum", [])]
    if not quanta:
        return
    name, by = roll.choice(quanta)[0], roll.choice([2, 4, 8, 16, 32])
    for node in nodes(tree):
        inside = node.get("level") == "REG"
        for loop in [*node.get("kernel", {}).get("quantum", []), *(_loops(node) if inside else [])]:
            loop[1] = loop[1] * by if loop[0] == name else loop[1]
        for loop in _loops(node) if not inside else []:
            loop[1] = -(-loop[1] // by) if loop[0] == name else loop[1]


def _binding(tree: Json, roll: random.Random) -> None:
    node = _with_loops(tree, roll)
    for word in BINDINGS:
        if word in node:
            loops = node.pop(word)
            node[roll.choice(BINDINGS)] = loops
            return


def _level(tree: Json, roll: random.Random) -> None:
    node = roll.choice([node for node in nodes(tree) if "level" in node] or [{}])
    node["level"] = roll.choice(LEVELS)


def _swap_loops(tree: Json, roll: random.Random) -> None:
    roll.shuffle(next(iter([_with_loops(tree, roll)])).get("for", []))


def _reorder(tree: Json, roll: random.Random) -> None:
    node = _with_loops(tree, roll)
    for word in BINDINGS:
        if word in node:
            roll.shuffle(node[word])


def _add_loop(tree: Json, roll: random.Random) -> None:
    node = _with_loops(tree, roll)
    name = roll.choice([*NAMES, *(loop[0] for other in nodes(tree) for loop in _loops(other) if loop)])
    for word in BINDINGS:
        if word in node:
            node[word].insert(roll.randrange(len(node[word]) + 1), [name, roll.choice(FACTORS)])
            return


def _drop_loop(tree: Json, roll: random.Random) -> None:
    node = _with_loops(tree, roll)
    for word in BINDINGS:
        if node.get(word):
            node[word].pop(roll.randrange(len(node[word])))
            return


def _replace_node(node: Json, other: Json) -> None:
    copy = json.loads(json.dumps(other))
    node.clear()
    node.update(copy)


def _drop_node(tree: Json, roll: random.Random) -> None:
    node = roll.choice(nodes(tree))
    if isinstance(node.get("child"), dict):
        _replace_node(node, node["child"])
    for word in SCOPES:
        if isinstance(node.get(word), list) and node[word]:
            node[word].pop(roll.randrange(len(node[word])))


def _duplicate(tree: Json, roll: random.Random) -> None:
    node = roll.choice(nodes(tree))
    for word in SCOPES:
        if isinstance(node.get(word), list) and node[word]:
            node[word].append(json.loads(json.dumps(roll.choice(node[word]))))
            return
    if isinstance(node.get("child"), dict):
        copy = json.loads(json.dumps(node))
        node["child"] = copy


def _swap_nodes(tree: Json, roll: random.Random) -> None:
    first, second = roll.choice(nodes(tree)), roll.choice(nodes(tree))
    one, two = json.loads(json.dumps(first)), json.loads(json.dumps(second))
    _replace_node(first, two)
    if len(nodes(tree)) < 100:
        _replace_node(second, one)


def _wrap(tree: Json, roll: random.Random) -> None:
    node = roll.choice(nodes(tree))
    copy = json.loads(json.dumps(node))
    loop = [roll.choice(NAMES), roll.choice((1, 2))]
    wrappers: list[Json] = [
        {roll.choice(SCOPES): [copy]},
        {"stage": roll.choice(NAMES), "level": roll.choice(LEVELS), "slots": roll.choice((1, 2, 3)), "child": copy},
        {"level": roll.choice(LEVELS), roll.choice(BINDINGS): [loop], "child": copy},
    ]
    _replace_node(node, roll.choice(wrappers))


def _scope(tree: Json, roll: random.Random) -> None:
    for node in nodes(tree):
        for word in SCOPES:
            if word in node and roll.random() < 0.7:
                node[roll.choice(SCOPES)] = node.pop(word)
                return


def _reverse_children(tree: Json, roll: random.Random) -> None:
    for node in nodes(tree):
        for word in SCOPES:
            if isinstance(node.get(word), list):
                roll.shuffle(node[word])


def _split(tree: Json, roll: random.Random) -> None:
    """A tile in two of the same level, or the loops of one moved to a node of their own."""
    node = _with_loops(tree, roll)
    for word in BINDINGS:
        if isinstance(node.get(word), list) and node[word] and "child" in node:
            loops = node[word]
            cut = roll.randrange(len(loops) + 1)
            inner = {"level": node.get("level"), word: loops[cut:], "child": node["child"]}
            node[word], node["child"] = loops[:cut] or [["once", 1]], inner
            return


def _hint(tree: Json, roll: random.Random) -> None:
    node = roll.choice([node for node in nodes(tree) if "op" in node or _loops(node)])
    kinds = {str: (*NAMES, "counting", "insertion", "digits"), int: FACTORS[1:-3]}
    name = roll.choice(list(HINTS))
    node.setdefault("hints", []).append([name, *(roll.choice(kinds[kind]) for kind in HINTS[name])])


def _change_hint(tree: Json, roll: random.Random) -> None:
    hints = [hint for node in nodes(tree) for hint in node.get("hints", []) if len(hint) > 1]
    if hints:
        hint = roll.choice(hints)
        place = roll.randrange(1, len(hint))
        words = ("counting", "insertion", "digits", "selected-digits", "X", "#blocked<[1], [32], [4], [0]>", "nonsense")
        hint[place] = roll.choice(FACTORS[:-3] if isinstance(hint[place], int) else words)


def _drop_hint(tree: Json, roll: random.Random) -> None:
    hinted = [node for node in nodes(tree) if node.get("hints")]
    if hinted:
        node = roll.choice(hinted)
        node["hints"].pop(roll.randrange(len(node["hints"])))


def _stage(tree: Json, roll: random.Random) -> None:
    stages = [node for node in nodes(tree) if "stage" in node]
    if stages:
        node = roll.choice(stages)
        key = roll.choice(("stage", "slots", "level"))
        node[key] = roll.choice({"stage": NAMES, "slots": FACTORS, "level": LEVELS}[key])


def _op(tree: Json, roll: random.Random) -> None:
    ops = [node for node in nodes(tree) if "op" in node]
    node = roll.choice(ops)
    if roll.random() < 0.3:
        node.pop("kernel", None)
    else:
        node["op"] = roll.choice([*NAMES, *(each["op"] for each in ops)])


def _mapping(tree: Json, roll: random.Random) -> None:
    leaves = [node["kernel"] for node in nodes(tree) if isinstance(node.get("kernel"), dict)]
    if not leaves:
        return
    kernel = roll.choice(leaves)
    if roll.random() < 0.3:
        kernel.pop("mapping", None)
        return
    target = kernel.get("mapping", kernel) if roll.random() < 0.7 else kernel
    key = roll.choice(list(target))
    target[key] = roll.choice([*WRONG, *FACTORS, *NAMES, ["i"], ["k", "j"], [["k", 4]], [["i", 2], ["i", 2]]])


def _second_product(tree: Json, roll: random.Random) -> None:
    """Another leaf runs the micro-kernel as well, or another one."""
    made = [node["kernel"] for node in nodes(tree) if isinstance(node.get("kernel"), dict)]
    leaves = [node for node in nodes(tree) if "op" in node]
    if made:
        kernel = json.loads(json.dumps(roll.choice(made)))
        kernel["name"] = roll.choice([kernel.get("name"), "other"])
        roll.choice(leaves)["kernel"] = kernel


def _wrong_type(tree: Json, roll: random.Random) -> None:
    container, key = roll.choice(values(tree))
    container[key] = json.loads(json.dumps(roll.choice(WRONG)))


def _delete_key(tree: Json, roll: random.Random) -> None:
    container, key = roll.choice(values(tree))
    del container[key]


LEGAL_LOOKING = (
    _factor,
    _everywhere,
    _retile,
    _retile,
    _grow,
    _reorder,
    _change_hint,
    _drop_hint,
    _stage,
    _scope,
    _split,
)
EDITS: Sequence[Callable[[Json, random.Random], None]] = (
    *LEGAL_LOOKING, *LEGAL_LOOKING, _binding, _level, _add_loop, _drop_loop, _drop_node, _duplicate, _swap_nodes, _wrap,
    _reverse_children, _hint, _op, _mapping, _second_product, _wrong_type, _delete_key,
)  # fmt: skip


def edited(tree: Json, roll: random.Random) -> Json:
    """The tree with one to three edits, as far as these apply to what earlier ones have left."""
    tree = json.loads(json.dumps(tree))
    for _ in range(roll.choice((1, 1, 2, 3))):
        try:
            roll.choice(EDITS)(tree, roll)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            break  # it is no tree any more
    return tree


def case(roll: random.Random, among: Sequence[tuple[str, str]]) -> tuple[str, str, int, dict[str, Json]]:
    name, machine = roll.choice(among)
    threads = roll.choice((1, 1, 3))
    trees = json.loads(trees_of(name, machine, threads))
    kernel = roll.choice(list(trees))
    return name, machine, threads, {kernel: edited(trees[kernel], roll)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--edits", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--machine", default="")
    parser.add_argument("--through", type=float, default=0.3)
    parser.add_argument("--show", type=int, default=1)
    arguments = parser.parse_args()
    among = [(n, m) for n, m in CASES if n.startswith(arguments.only) and m.startswith(arguments.machine)]
    counts: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    for number in range(arguments.edits):
        roll = random.Random(arguments.seed * 1_000_003 + number)
        name, machine, threads, trees = case(roll, among)
        through = roll.random() < arguments.through
        try:
            counts[verdict(name, machine, threads, trees, through)] += 1
        except Exception as error:
            frames = [f for f in traceback.extract_tb(error.__traceback__) if "/tilewright/" in f.filename]
            at = f"{frames[-1].filename.split('/tilewright/')[-1]}:{frames[-1].lineno}" if frames else "result"
            key = (
                f"{type(error).__name__} {at}: {str(error).strip().splitlines()[0][:110] if str(error).strip() else ''}"
            )
            failures[key] += 1
            counts["failed"] += 1
            if failures[key] <= arguments.show:
                print(f"--- {number}: {name} on {machine}, {threads} threads: {key}\n{json.dumps(trees)}", flush=True)
    print(dict(counts))
    for key, count in failures.most_common():
        print(f"{count:5d} {key}")


if __name__ == "__main__":
    main()
