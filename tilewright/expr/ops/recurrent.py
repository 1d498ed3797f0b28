"""Recurrent layers (RNN, GRU, LSTM), unrolled over time: every step is a handful of computes.

Shapes and gate orders are those of the ONNX operators with layout 0: x [T, N, I], w [D, G*H, I], r [D, G*H, H],
bias [D, 2*G*H] (input biases, then recurrent ones), states [D, N, H], result [T, D, N, H]; D is 2 when bidirectional.
The products with x are formed for all steps at once. With `lengths` [N], steps past the end of a sequence leave its
state as it is and give zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr.core import Axis, Expr, Tensor, apply, select, static_shape
from tilewright.expr.dtypes import INDEX
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops.elementwise import axes_of, clamp, emit, fill, softplus_of
from tilewright.expr.ops.nodes import contract
from tilewright.expr.ops.shape import concat, reshape, stack

MOST_STEPS = 4096

#: Activation by its ONNX name, of a value, alpha and beta; with the defaults of both.
ACTIVATIONS: dict[str, tuple[Callable[[Expr, float, float], Expr], float, float]] = {
    "Relu": (lambda v, _a, _b: apply("max", v, 0.0), 0.0, 0.0),
    "Tanh": (lambda v, _a, _b: apply("tanh", v), 0.0, 0.0),
    "Sigmoid": (lambda v, _a, _b: apply("sigmoid", v), 0.0, 0.0),
    "Affine": (lambda v, a, b: v * a + b, 1.0, 0.0),
    "LeakyRelu": (lambda v, a, _b: select(v < 0, v * a, v), 0.01, 0.0),
    "ThresholdedRelu": (lambda v, a, _b: select(v >= a, v, 0.0), 1.0, 0.0),
    "ScaledTanh": (lambda v, a, b: apply("tanh", v * b) * a, 1.0, 1.0),
    "HardSigmoid": (lambda v, a, b: clamp(v * a + b, 0.0, 1.0), 0.2, 0.5),
    "Elu": (lambda v, a, _b: select(v >= 0, v, (apply("exp", v) - 1.0) * a), 1.0, 0.0),
    "Softsign": (lambda v, _a, _b: v / (apply("abs", v) + 1.0), 0.0, 0.0),
    "Softplus": (lambda v, _a, _b: softplus_of(v), 0.0, 0.0),
}


@dataclass(frozen=True)
class Activation:
    """One activation of a cell; its argument is first limited to [-clip, clip] where `clip` is given."""

    name: str
    alpha: float | None = None
    beta: float | None = None
    clip: float | None = None

    def __post_init__(self) -> None:
        if self.name not in ACTIVATIONS:
            raise InvalidExpression(f"activation {self.name!r}", help=f"one of {', '.join(ACTIVATIONS)}")

    def __call__(self, v: Expr) -> Expr:
        function, alpha, beta = ACTIVATIONS[self.name]
        if self.clip is not None:
            v = clamp(v, -self.clip, self.clip)
        return function(v, alpha if self.alpha is None else self.alpha, beta if self.beta is None else self.beta)


@dataclass(frozen=True)
class Layer:
    """What the three kinds of layers share. `directions` says for each direction whether it runs backwards."""

    x: Tensor
    w: Tensor
    r: Tensor
    bias: Tensor | None = None
    lengths: Tensor | None = None
    initial: Tensor | None = None
    directions: Sequence[bool] = (False,)
    name: str = "recurrent"

    def sizes(self, gates: int) -> tuple[int, int, int, int]:
        """Steps, batch, inputs and hidden size, after a check of all shapes."""
        steps, batch, inputs = _shape(self.x, 3, self.name)
        if not 1 <= steps <= MOST_STEPS:
            raise InvalidExpression(f"{self.name}: {steps} steps", help=f"1 to {MOST_STEPS}, since they are unrolled")
        ways, rows, hidden = _shape(self.r, 3, self.name)
        expected = {
            "r": (self.r, (len(self.directions), gates * hidden, hidden)),
            "w": (self.w, (len(self.directions), gates * hidden, inputs)),
            "bias": (self.bias, (ways, 2 * rows)),
            "lengths": (self.lengths, (batch,)),
            "initial": (self.initial, (ways, batch, hidden)),
        }
        for role, (tensor, shape) in expected.items():
            if tensor is not None and tensor.shape != shape:
                raise ExtentMismatch(f"{self.name}: {role} is {tensor}", help=f"a tensor of shape {list(shape)}")
        return steps, batch, inputs, hidden


def _shape(x: Tensor, rank: int, name: str) -> tuple[int, int, int]:
    if x.rank != rank:
        raise ExtentMismatch(f"{name}: {x} has rank {x.rank}", help=f"give rank {rank}")
    first, second, third = static_shape(x.shape)
    return first, second, third


def rnn(b: GraphBuilder, layer: Layer, activations: Sequence[Activation]) -> tuple[Tensor, Tensor]:
    """``H' = f(W x + R H + bias)``; one activation per direction. Returns all states and the last."""
    batch, hidden = layer.sizes(1)[1], layer.sizes(1)[3]

    def step(cell: _Cell, t: int, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        recurrent = cell.recurrent(states[0], 0, hidden, f"{t}.recurrent")
        n, h = axes_of((batch, hidden))
        value = activations[cell.way](cell.inputs[t, n, h] + recurrent[n, h])
        return (cell.emit((n, h), value, t, "state"),)

    return _layer(b, layer, 1, [None], step)[:2]


def gru(
    b: GraphBuilder, layer: Layer, activations: Sequence[Activation], *, linear_before_reset: bool = False
) -> tuple[Tensor, Tensor]:
    """Gates z, r, h: ``H' = (1 - z) * h + z * H``; two activations per direction. Returns all states and the last."""
    batch, hidden = layer.sizes(3)[1], layer.sizes(3)[3]

    def step(cell: _Cell, t: int, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        f, g = activations[2 * cell.way : 2 * cell.way + 2]
        state = states[0]
        n, h = axes_of((batch, hidden))
        gates = cell.recurrent(state, 0, 2 * hidden, f"{t}.gates")
        reset = f(cell.inputs[t, n, h + hidden] + gates[n, h + hidden])
        if linear_before_reset:
            product = cell.recurrent(state, 2 * hidden, hidden, f"{t}.hidden")
            candidate = g(cell.inputs[t, n, h + 2 * hidden] + reset * product[n, h])
        else:
            kept = cell.emit((n, h), reset * state[n, h], t, "reset")
            product = cell.recurrent(kept, 2 * hidden, hidden, f"{t}.hidden")
            candidate = g(cell.inputs[t, n, h + 2 * hidden] + product[n, h])
        update = f(cell.inputs[t, n, h] + gates[n, h])
        return (cell.emit((n, h), (1.0 - update) * candidate + update * state[n, h], t, "state"),)

    return _layer(b, layer, 3, [None], step)[:2]


def lstm(
    b: GraphBuilder,
    layer: Layer,
    activations: Sequence[Activation],
    *,
    initial_cell: Tensor | None = None,
    peephole: Tensor | None = None,
    input_forget: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gates i, o, f, c: ``C' = f * C + i * c``, ``H' = o * h(C')``; three activations per direction.

    `peephole` [D, 3*H] weighs the cell in the gates i, o, f; with `input_forget` f is 1 - i. Returns all states, the
    last state and the last cell.
    """
    batch, hidden = layer.sizes(4)[1], layer.sizes(4)[3]

    def step(cell: _Cell, t: int, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        f, g, last = activations[3 * cell.way : 3 * cell.way + 3]
        state, memory = states
        n, h = axes_of((batch, hidden))
        product = cell.recurrent(state, 0, 4 * hidden, f"{t}.gates")

        def gate(position: int, seen: Tensor | None) -> Expr:
            column = h + position * hidden
            value = cell.inputs[t, n, column] + product[n, column]
            return value if peephole is None or seen is None else value + peephole[cell.way, column] * seen[n, h]

        entered = f(gate(0, memory))
        forgotten = 1.0 - entered if input_forget else f(gate(2, memory))
        following = cell.emit((n, h), forgotten * memory[n, h] + entered * g(gate(3, None)), t, "cell")
        shown = f(gate(1, following)) * last(following[n, h])
        return cell.emit((n, h), shown, t, "state"), following

    outputs, state, memory = _layer(b, layer, 4, [initial_cell], step)
    return outputs, state, memory


@dataclass(frozen=True)
class _Cell:
    """One direction of a layer; `inputs` [T, N, G*H] are the products with x, plus the input biases."""

    b: GraphBuilder
    layer: Layer
    way: int
    inputs: Tensor

    def recurrent(self, state: Tensor, first: int, count: int, suffix: str) -> Tensor:
        """``R H + recurrent bias`` [N, count] for the gate rows from `first`."""
        layer, way = self.layer, self.way
        batch, hidden = static_shape(state.shape)
        rows = static_shape(layer.r.shape)[1]
        n, k, j = Axis("n", batch), Axis("k", count), Axis("j", hidden)
        bias = layer.bias
        return contract(
            self.b, (n, k), [state[n, j], layer.r[way, k + first, j]], (j,), accumulate=None, out_dtype=state.dtype,
            epilogue=None if bias is None else lambda v, axes: v + bias[way, axes[1] + first + rows].cast(v.dtype),
            name=f"{layer.name}.{way}.{suffix}",
        )  # fmt: skip

    def emit(self, axes: Sequence[Axis], body: Expr, t: int, role: str) -> Tensor:
        return emit(self.b, axes, body, name=f"{self.layer.name}.{self.way}.{t}.{role}", source=self.layer.name)


Step = Callable[[_Cell, int, tuple[Tensor, ...]], tuple[Tensor, ...]]


def _layer(
    b: GraphBuilder, layer: Layer, gates: int, further: Sequence[Tensor | None], step: Step
) -> tuple[Tensor, Tensor, Tensor]:
    """Run `step` over time in every direction. `further` are the initial values of states beside H: one for LSTM."""
    steps, batch, _, hidden = layer.sizes(gates)
    extra = further if gates == 4 else ()
    shown: list[Tensor] = []
    finals: list[tuple[Tensor, ...]] = []
    for way, backwards in enumerate(layer.directions):
        cell = _Cell(b, layer, way, _input_products(b, layer, way))
        states = tuple(
            _initial(b, layer, start, way, batch, hidden, f"{layer.name}.{way}.initial")
            for start in (layer.initial, *extra)
        )
        outputs: dict[int, Tensor] = {}
        for t in reversed(range(steps)) if backwards else range(steps):
            results = step(cell, t, states)
            states = _masked(cell, t, results, states)
            outputs[t] = results[0] if layer.lengths is None else _masked(cell, t, results[:1], ())[0]
        rows = stack(b, [outputs[t] for t in range(steps)], axis=0, name=f"{layer.name}.{way}.all")
        shown.append(reshape(b, rows, (steps, 1, batch, hidden), name=f"{layer.name}.{way}.rows"))
        finals.append(states)
    everything = concat(b, shown, axis=1, name=layer.name)
    last = [stack(b, [s[i] for s in finals], axis=0, name=f"{layer.name}.last") for i in range(len(finals[0]))]
    return everything, last[0], last[-1]


def _input_products(b: GraphBuilder, layer: Layer, way: int) -> Tensor:
    steps, batch, inputs = static_shape(layer.x.shape)
    rows = static_shape(layer.w.shape)[1]
    t, n, k, i = Axis("t", steps), Axis("n", batch), Axis("k", rows), Axis("i", inputs)
    bias = layer.bias
    return contract(
        b, (t, n, k), [layer.x[t, n, i], layer.w[way, k, i]], (i,), accumulate=None, out_dtype=layer.x.dtype,
        epilogue=None if bias is None else lambda v, axes: v + bias[way, axes[2]].cast(v.dtype),
        name=f"{layer.name}.{way}.inputs",
    )  # fmt: skip


def _initial(
    b: GraphBuilder, layer: Layer, start: Tensor | None, way: int, batch: int, hidden: int, name: str
) -> Tensor:
    if start is None:
        return fill(b, (batch, hidden), 0, layer.x.dtype, name=name)
    n, h = axes_of((batch, hidden))
    return emit(b, (n, h), start[way, n, h], name=name, source=layer.name)


def _masked(cell: _Cell, t: int, results: Sequence[Tensor], before: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`results` where the sequence has step t; elsewhere what was `before`, or zeros."""
    lengths = cell.layer.lengths
    if lengths is None:
        return tuple(results)
    kept: list[Tensor] = []
    for position, result in enumerate(results):
        axes = axes_of(result.shape)
        other = before[position][axes] if before else 0.0
        here = lengths[axes[0]].cast(INDEX) > t
        kept.append(cell.emit(axes, select(here, result[axes], other), t, "kept"))
    return tuple(kept)
