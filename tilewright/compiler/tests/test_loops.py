"""Loops compiled: results beside the evaluator's, one set of kernels whatever the number of trips, saved and loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

import tilewright
from tests.covering import some
from tilewright.compiler.compile import compile_graph, resolve_target
from tilewright.compiler.cpu import tile_program
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.neighbourhood import neighbourhood
from tilewright.compiler.program import Placement
from tilewright.expr import Graph, GraphBuilder
from tilewright.expr.evaluate import evaluate
from tilewright.expr.ops import recurrent as ops
from tilewright.expr.text import parse_graph, print_graph
from tilewright.kernel.interpreter import run_main
from tilewright.kernel.text import parse_module, print_module
from tilewright.options import Options

FRESH = Options(cache=False)
ALL = {
    "states that change places, one of them stacked twice": """
        input a0: f32[3]
        input b0: f32[3]
        loop swap times 5
        state a of a0
        state b of b0
        sum: f32[i:3] = a[i] + b[i]
        again: f32[i:3] = sum[i]
        carry a to b as a.last
        carry b to sum as b.last
        stack sum as sums backwards
        stack again as sums.forward
        stack a as before
        end
        output a.last
        output b.last
        output sums
        output sums.forward
        output before
    """,
    "loops in a loop, whose slices are slices of slices": """
        input x: f32[4, 3, 7]
        input h0: f32[7]
        input w: f32[7, 7]
        loop outer times 4
        slice row of x backwards
        state h of h0
        loop inner times 3
        slice part of row
        state s of h
        p: f32[i:7] += w[i, j] * s[j] over j:7
        s.next: f32[i:7] = tanh(p[i] * 0.3 + part[i])
        carry s to s.next as s.last
        stack s.next as all
        end
        loop back times 3
        slice seen of all backwards
        state q of s.last
        q.next: f32[i:7] = q[i] * 0.5 + seen[i]
        carry q to q.next as q.last
        end
        carry h to q.last as h.last
        stack all as everything
        end
        total: f32[i:7] += everything[t, u, i] over t:4, u:3
        output h.last
        output total
    """,
    "weights that are no constants, of which one is computed": """
        input x: f32[3, 37, 17]
        input v: f32[17, 17]
        input h0: f32[37, 17]
        w: f32[i:17, j:17] = v[j, i] * 0.2
        loop steps times 3
        slice x.t of x
        state h of h0
        p: f32[n:37, k:17] += h[n, j] * w[k, j] over j:17
        next: f32[n:37, k:17] = tanh(p[n, k] + x.t[n, k])
        carry h to next as last
        end
        output last
    """,
    "a loop after a loop, on its rows and its last state, and one trip": """
        input x: f32[3, 4]
        input h0: f32[4]
        loop first times 3
        slice x.t of x
        state h of h0
        next: f32[i:4] = h[i] * 0.5 + x.t[i]
        carry h to next as last
        stack next as rows
        end
        loop second times 3
        slice y.t of rows backwards
        state g of last
        g.next: f32[i:4] = g[i] * y.t[i]
        carry g to g.next as g.last
        end
        loop once times 1
        state k of g.last
        k.next: f32[i:4] = k[i] + 1.0
        carry k to k.next as k.last
        stack k.next as k.rows
        end
        output k.last
        output k.rows
        output rows
    """,
    "views of the last state, which is the second of two places": """
        input h0: f32[3, 4]
        loop twice times 4
        state h of h0
        next: f32[i:3, j:4] = h[i, j] * 0.5 + 1.0
        carry h to next as last
        end
        flat: f32[i:12] = last[i // 4, i % 4]
        sums: f32[i:12] += flat[i] * flat[k] over k:12
        largest: f32[i:1] max= sums[k] + flat[k] over k:12
        output largest
    """,
    "padding in the body, which becomes a border": """
        input h0: f32[2, 7]
        input k: f32[3]
        loop smooth times 3
        state h of h0
        raised: f32[n:2, i:7] = exp(h[n, i] * 0.1)
        padded: f32[n:2, i:9] = i >= 1 and i < 8 ? raised[n, i - 1] : 0.0
        next: f32[n:2, i:7] += padded[n, i + r] * k[r] over r:3
        carry h to next as last
        end
        output last
    """,
    "a scan, a sort and a scatter": """
        input x: f32[3, 7]
        input h0: f32[7]
        input b: f32[7]
        loop steps times 3
        slice part of x
        state h of h0
        sums: f32[i:7] += part[u] * h[u] over u:7 scanned i
        places: i64[i:7] = sums[u] over u:7 sorted i
        z: f32[i:7] += scatter(b[i], h[u], (u * 3) % 5) over u:7 scattered i
        next: f32[i:7] = h[6 - i] * 0.5 + z[i] * 0.2 + f32(places[i]) * 0.1
        carry h to next as last
        stack sums as all backwards
        end
        output last
        output all
    """,
    "no trip": """
        input h0: f32[3]
        input x: f32[0, 3]
        loop none times 0
        slice part of x
        state h of h0
        next: f32[i:3] = h[i] + part[i]
        carry h to next as last
        stack next as all
        end
        output last
        output all
    """,
}


def graph_of(name: str) -> tuple[Graph, list[Any]]:
    graph, rng = parse_graph(dedent(ALL[name])), np.random.default_rng(0)
    return graph, [rng.standard_normal(tensor.shape).astype(np.float32) for tensor in graph.inputs]


def agrees(found: Any, graph: Graph, inputs: list[Any], tolerance: float = 2e-5) -> None:
    results = found if isinstance(found, tuple) else (found,)
    for result, wanted in zip(results, evaluate(graph, inputs, precise=True), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=tolerance, atol=tolerance)


def recurrent(kind: str, steps: int, batch: int, hidden: int, directions: tuple[bool, ...] = (False,)) -> Graph:
    """A layer with random constant weights."""
    b, rng, gates = GraphBuilder(), np.random.default_rng(1), {"lstm": 4, "gru": 3}[kind]

    def weights(*shape: int) -> Any:
        return b.constant(rng.standard_normal((len(directions), gates * hidden, *shape)).astype(np.float32) * 0.3)

    x = b.input("x", (steps, batch, 5), "f32")
    layer = ops.Layer(x, weights(5), weights(hidden), directions=directions, name=kind)
    sigmoid, tanh = ops.Activation("Sigmoid"), ops.Activation("Tanh")
    if kind == "lstm":
        return b.finish(list(ops.lstm(layer, [sigmoid, tanh, tanh] * len(directions))))
    return b.finish(list(ops.gru(layer, [sigmoid, tanh] * len(directions))))


@pytest.mark.covering(1)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ALL)
def test_loops_agree_with_the_evaluator(name: str, threads: int) -> None:
    graph, inputs = graph_of(name)
    module = compile_graph(graph, threads=threads, options=replace(FRESH, verify_each=True))
    for _ in range(2):  # what a call leaves in the arena is not the next one's
        agrees(module(*inputs), graph, inputs)


@pytest.mark.parametrize("name", ALL)
def test_loops_agree_in_the_interpreter(name: str) -> None:
    """It reads no byte that no launch has written, and refuses views of a launch that overlap."""
    graph, inputs = graph_of(name)
    machine = resolve_target("host")
    plan = make_plan(graph, machine, 1, FRESH)
    placement = Placement(plan)
    program = tile_program(plan, placement, machine, FRESH)  # type: ignore[arg-type]
    text = print_module(program)
    outputs = [np.zeros(tensor.size, np.float32) for tensor in plan.graph.outputs]
    run_main(parse_module(text), [x.reshape(-1) for x in inputs], outputs, placement.packed(plan), races=True)
    agrees(tuple(o.reshape(t.shape) for o, t in zip(outputs, graph.outputs, strict=True)), graph, inputs)


@pytest.mark.parametrize("name", some([name for name in ALL if name != "no trip"], 4))
def test_gpus_launch_the_kernels_of_every_trip(name: str) -> None:
    graph, inputs = graph_of(name)
    module = compile_graph(graph, machine="sm_90a", device="emulator", options=FRESH)
    for _ in range(3):  # the third call replays a graph
        agrees(module(*inputs), graph, inputs, 1e-3)
    assert len(module.manifest.kernels) < len(module.manifest.launches)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_kernels_do_not_grow_with_the_trips(kind: str) -> None:
    """An LSTM of 500 steps took 129 s to compile."""
    plans = [make_plan(recurrent(kind, steps, 2, 17), resolve_target("host"), 1, FRESH) for steps in (3, 500)]
    first, second = ([kernel.name for kernel in plan.kernels] for plan in plans)
    assert first == second
    (loop,) = plans[1].loops
    assert (loop.trips, loop.end - loop.begin) == (500, 3)


@pytest.mark.covering(1)
@pytest.mark.parametrize(("batch", "hidden", "steps"), [(1, 1, 2), (7, 17, 13)])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_recurrent_layers_agree_with_the_evaluator(kind: str, batch: int, hidden: int, steps: int) -> None:
    graph = recurrent(kind, steps, batch, hidden, (False, True))
    x = np.random.default_rng(2).standard_normal((steps, batch, 5)).astype(np.float32)
    module = compile_graph(graph, threads=2, options=FRESH)
    agrees(module(x), graph, [x])
    assert [launch.trips for launch in module.manifest.launches].count(steps) >= 4


@pytest.mark.covering
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["const", "input"])
@pytest.mark.parametrize("initial", ["b[i]", "h[i]"])
@pytest.mark.parametrize("update", ["part[u] * h[u]", "c[u]"])
def test_scatters_begin_every_trip_with_their_initial_values(
    kind: str, initial: str, update: str, threads: int
) -> None:
    """Initial values that vary in no trip were written once, before the loop: each trip updated what the last left."""
    rng = np.random.default_rng(0)
    text = f"""
        input x: f32[4, 7]
        input h0: f32[7]
        {kind} b: f32[7]
        {kind} c: f32[7]
        loop steps times 4
        slice part of x
        state h of h0
        z: f32[i:7] += scatter({initial}, {update}, (u * 3) % 5) over u:7 scattered i
        n: f32[i:7] = h[6 - i] * 0.5 + z[i] * 0.3
        carry h to n as last
        stack z as all
        end
        output last
        output all
    """
    constants = {name: rng.standard_normal(7).astype(np.float32) for name in "bc" if kind == "const"}
    graph = parse_graph(dedent(text), constants)
    inputs = [rng.standard_normal(tensor.shape).astype(np.float32) for tensor in graph.inputs]
    for stacked in (graph, replace(graph, outputs=graph.outputs[:1])):
        agrees(compile_graph(stacked, threads=threads, options=FRESH)(*inputs), stacked, inputs)


SHARED = {
    "a loop and the graph around it": """
        loop a times 4
        state h of h0
        n: f32[i:37, j:17] += h[i, k] * v[j, k] over k:17
        carry h to n as last
        end
        z: f32[i:37, j:17] += last[i, k] * v[j, k] over k:17
        output z
    """,
    "two loops": """
        loop a times 3
        state h of h0
        n: f32[i:37, j:17] += h[i, k] * v[j, k] over k:17
        carry h to n as middle
        end
        loop b times 3
        state g of middle
        m: f32[i:37, j:17] += g[i, k] * v[j, k] over k:17
        carry g to m as last
        end
        output last
    """,
    "a loop and one inside it, whose weights the outer one computes": """
        loop a times 3
        state h of h0
        w: f32[i:17, j:17] = h[0, i] * 0.2 + v[i, j]
        n: f32[i:37, j:17] += h[i, k] * w[j, k] over k:17
        loop b times 2
        state g of n
        m: f32[i:37, j:17] += g[i, k] * w[j, k] over k:17
        p: f32[i:37, j:17] += m[i, k] * v[j, k] over k:17
        carry g to p as inner
        end
        carry h to inner as last
        end
        z: f32[i:37, j:17] += last[i, k] * v[j, k] over k:17
        output z
    """,
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("kind", ["const", "input"])
@pytest.mark.parametrize("name", SHARED)
def test_parts_of_a_graph_share_what_they_multiply_by(name: str, kind: str) -> None:
    """Both had the relayout of it as a node, of one name: "defined twice"."""
    rng = np.random.default_rng(0)
    head = f"input h0: f32[37, 17]\n{kind} v: f32[17, 17]\n"
    constants = {"v": rng.standard_normal((17, 17)).astype(np.float32) * 0.2} if kind == "const" else {}
    graph = parse_graph(head + dedent(SHARED[name]), constants)
    inputs = [rng.standard_normal(tensor.shape).astype(np.float32) * 0.2 for tensor in graph.inputs]
    agrees(compile_graph(graph, threads=1, options=FRESH)(*inputs), graph, inputs)
    mapped = make_plan(graph, resolve_target("host"), 1, FRESH).mapped_graph()
    agrees(tuple(evaluate(mapped, inputs)), graph, inputs)
    text = print_graph(mapped)
    assert print_graph(parse_graph(text, mapped.all_constants())) == text


@pytest.mark.parametrize("name", ["n.pair", "y.packed"])
def test_tensors_have_names_that_plans_give_to_others(name: str) -> None:
    """The two places of a state, and a product before it is brought back, were stored as the tensor of that name."""
    text = f"""
        input x: f32[37, 17]
        input h0: f32[37, 17]
        input w: f32[17, 17]
        "{name}": f32[i:37, j:17] += exp(x[i, k]) * w[k, j] over k:17
        loop steps times 4
        state h of h0
        n: f32[i:37, j:17] = h[i, j] * 0.5 + "{name}"[36 - i, j] * 0.1
        carry h to n as last
        end
        y: f32[i:7, j:17] += w[j, k] * last[i, k] over k:17
        u: f32[i:37, j:17] = last[i, j] + "{name}"[i, j]
        output y
        output u
    """
    graph, rng = parse_graph(dedent(text)), np.random.default_rng(0)
    inputs = [rng.standard_normal(tensor.shape).astype(np.float32) for tensor in graph.inputs]
    agrees(compile_graph(graph, threads=1, options=FRESH)(*inputs), graph, inputs)


def test_weights_are_packed_once() -> None:
    """Before the loop where they are no constants, when compiled where they are."""
    graph, _ = graph_of("weights that are no constants, of which one is computed")
    plan = make_plan(graph, resolve_target("znver5"), 1, FRESH)
    (loop,) = plan.loops
    assert [kernel.name for kernel in plan.kernels[loop.begin : loop.end]] == ["p+next"]
    constant = make_plan(recurrent("gru", 4, 2, 17, (False, True)), resolve_target("znver5"), 1, FRESH)
    for loop in constant.loops:
        assert not any(kernel.name.endswith(".packed") for kernel in constant.kernels[loop.begin : loop.end])


def test_products_in_loops_are_searched_too() -> None:
    """Each is found in some part of the graph, with what is around it there."""
    plan = make_plan(recurrent("gru", 3, 2, 17), resolve_target("host"), 1, FRESH)
    parts = list(plan.computed.explicit().parts())
    assert len(plan.products) == 3
    for node in plan.products:
        (inside,) = [part for part in parts if node in part.producers()]
        assert neighbourhood(inside, node, plan.products).producers()[node].accum == "sum"


def test_saved_and_cached_modules_hold_the_loop(tmp_path: Path) -> None:
    graph = recurrent("lstm", 13, 2, 17, (True,))
    x = np.random.default_rng(2).standard_normal((13, 2, 5)).astype(np.float32)
    options = Options(cache=True, cache_dir=tmp_path / "cache")
    module = compile_graph(graph, threads=1, options=options)
    agrees(compile_graph(graph, threads=1, options=options)(x), graph, [x])
    module.save(tmp_path / "layer.twm")
    loaded = tilewright.load(tmp_path / "layer.twm", threads=2)
    agrees(loaded(x), graph, [x])
    assert loaded.manifest.launches == module.manifest.launches
    fresh = Options(cache=False, cache_dir=options.cache_dir)  # where no rates of the host are kept either
    again = tilewright.compiler.compile.rebuilt(loaded.artifact, threads=1, options=fresh)
    assert again.graph == module.artifact.graph
    assert again.code == module.artifact.code


def test_profile_and_explain_show_the_loop() -> None:
    module = compile_graph(recurrent("lstm", 13, 2, 17), threads=1, options=FRESH)
    assert "loop lstm.0: 13 trips" in module.explain(all=True)
    times = {time.name: time for time in module.profile()}
    assert times["lstm.0.gates"].flops == 13 * 2 * 2 * 68 * 17
    assert 0 < times["lstm.0.gates"].seconds < 1
    assert "tile.loop" in module.artifact.program
