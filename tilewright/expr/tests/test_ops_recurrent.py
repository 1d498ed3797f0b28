"""Recurrent layers against a loop over time in NumPy float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr import GraphBuilder
from tilewright.expr.dtypes import from_numpy
from tilewright.expr.evaluate import evaluate
from tilewright.expr.ops import recurrent as ops
from tilewright.expr.ops.recurrent import Activation, Layer

Array = np.ndarray[Any, Any]
STEPS, BATCH, INPUTS, HIDDEN = 4, 3, 5, 2
GATES = {"rnn": 1, "gru": 3, "lstm": 4}
DEFAULTS = {"rnn": ["Tanh"], "gru": ["Sigmoid", "Tanh"], "lstm": ["Sigmoid", "Tanh", "Tanh"]}
DIRECTIONS = [(False,), (True,), (False, True)]


def parameters(kind: str, ways: int) -> dict[str, Array]:
    rng, rows = np.random.default_rng(0), GATES[kind] * HIDDEN
    shapes = {
        "x": (STEPS, BATCH, INPUTS), "w": (ways, rows, INPUTS), "r": (ways, rows, HIDDEN), "bias": (ways, 2 * rows),
        "initial": (ways, BATCH, HIDDEN), "cell": (ways, BATCH, HIDDEN), "peephole": (ways, 3 * HIDDEN),
    }  # fmt: skip
    found: dict[str, Array] = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    found["lengths"] = np.array([4, 1, 3])
    return found


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def reference(kind: str, p: dict[str, Array], directions: tuple[bool, ...], lengths: bool, linear: bool) -> list[Array]:
    """All states [T, D, N, H], the last state and the last cell [D, N, H]."""
    shown = np.zeros((STEPS, len(directions), BATCH, HIDDEN))
    last = p["initial"].copy()
    cells = p["cell"].copy()
    for way, backwards in enumerate(directions):
        w, r = p["w"][way], p["r"][way]
        wb, rb = np.split(p["bias"][way], 2)
        for t in reversed(range(STEPS)) if backwards else range(STEPS):
            for n in range(BATCH):
                if lengths and t >= p["lengths"][n]:
                    continue
                h, c = last[way, n], cells[way, n]
                xs, hs = np.split(w @ p["x"][t, n] + wb, GATES[kind]), np.split(r @ h + rb, GATES[kind])
                if kind == "rnn":
                    h = np.tanh(xs[0] + hs[0])
                elif kind == "gru":
                    z, reset = sigmoid(xs[0] + hs[0]), sigmoid(xs[1] + hs[1])
                    inner = reset * hs[2] if linear else r[2 * HIDDEN :] @ (reset * h) + rb[2 * HIDDEN :]
                    h = (1 - z) * np.tanh(xs[2] + inner) + z * h
                else:
                    pi, po, pf = np.split(p["peephole"][way], 3)
                    i, f = sigmoid(xs[0] + hs[0] + pi * c), sigmoid(xs[2] + hs[2] + pf * c)
                    c = f * c + i * np.tanh(xs[3] + hs[3])
                    h = sigmoid(xs[1] + hs[1] + po * c) * np.tanh(c)
                last[way, n], cells[way, n], shown[t, way, n] = h, c, h
    return [shown, last, cells]


def run(kind: str, p: dict[str, Array], directions: tuple[bool, ...], lengths: bool, linear: bool) -> list[Array]:
    b = GraphBuilder()
    t = {name: b.input(name, array.shape, from_numpy(array.dtype)) for name, array in p.items()}
    layer = Layer(
        t["x"], t["w"], t["r"], t["bias"], t["lengths"] if lengths else None, t["initial"], directions, name=kind
    )
    activations = [Activation(name) for name in DEFAULTS[kind]] * len(directions)
    if kind == "rnn":
        outputs = ops.rnn(layer, activations)
    elif kind == "gru":
        outputs = ops.gru(layer, activations, linear_before_reset=linear)
    else:
        outputs = ops.lstm(layer, activations, initial_cell=t["cell"], peephole=t["peephole"])  # type: ignore[assignment]
    return evaluate(b.finish(list(outputs)), p)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("directions", DIRECTIONS)
@pytest.mark.parametrize("lengths", [False, True])
def test_layer(kind: str, directions: tuple[bool, ...], lengths: bool) -> None:
    p = parameters(kind, len(directions))
    for linear in (False, True) if kind == "gru" else (False,):
        found = run(kind, p, directions, lengths, linear)
        for value, expected in zip(found, reference(kind, p, directions, lengths, linear), strict=False):
            np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-14)


def test_coupled_gates_and_clip() -> None:
    """With the forget gate 1 - i and everything clipped to 0, i = f = o = 1/2: C' = C/2."""
    p = parameters("lstm", 1)
    b = GraphBuilder()
    t = {name: b.input(name, array.shape, "f64") for name, array in p.items() if name != "lengths"}
    layer = Layer(t["x"], t["w"], t["r"], initial=t["initial"])
    activations = [Activation(name, clip=0.0) for name in DEFAULTS["lstm"]]
    outputs = ops.lstm(layer, activations, initial_cell=t["cell"], input_forget=True)
    del p["lengths"]
    np.testing.assert_allclose(evaluate(b.finish([outputs[2]]), p)[0], p["cell"] / 2**STEPS, rtol=1e-15)


def test_errors() -> None:
    with pytest.raises(InvalidExpression, match="activation 'Gauss'"):
        Activation("Gauss")
    b = GraphBuilder()
    x, w, r = b.input("x", (2, 1, 3), "f32"), b.input("w", (1, 4, 3), "f32"), b.input("r", (1, 5, 4), "f32")
    with pytest.raises(ExtentMismatch, match="r is r: f32") as caught:
        ops.rnn(Layer(x, w, r), [Activation("Tanh")])
    assert "[1, 4, 4]" in caught.value.help
