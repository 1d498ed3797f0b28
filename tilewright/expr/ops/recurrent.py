"""Recurrent layers (RNN, GRU, LSTM): a loop over time for each direction.

Shapes are those of the ONNX operators with layout 0: x [T, N, I], w [D, G*H, I], r [D, G*H, H],
bias [D, 2*G*H] (input biases, then recurrent ones), states [D, N, H], result [T, D, N, H]; D is 2 when bidirectional.
The products with x are formed for all steps at once. With `lengths` [N], steps past the end of a sequence leave its
state as it is and give zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr.core import Axis, Expr, Tensor, apply, select, static_shape
from tilewright.expr.dtypes import INDEX
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops.arguments import operator
from tilewright.expr.ops.elementwise import axes_of, clamp, emit, fill, softplus_of
from tilewright.expr.ops.nodes import contract
from tilewright.expr.ops.shape import concat, reshape, stack

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
    """What the three kinds of layers share. `directions` says for each direction whether it runs backwards.

    With a `projection` [D, P, H] the state of an LSTM is ``projection H`` and has P values, as r has columns.
    """

    x: Tensor
    w: Tensor
    r: Tensor
    bias: Tensor | None = None
    lengths: Tensor | None = None
    initial: Tensor | None = None
    directions: Sequence[bool] = (False,)
    name: str = "recurrent"
    projection: Tensor | None = None

    def sizes(self, gates: int) -> tuple[int, int, int, int]:
        """Steps, batch, inputs and hidden size, after a check of all shapes."""
        steps, batch, inputs = _shape(self.x, 3, self.name)
        ways, rows, shown = _shape(self.r, 3, self.name)
        hidden = shown if self.projection is None else _shape(self.projection, 3, self.name)[2]
        expected = {
            "r": (self.r, (len(self.directions), gates * hidden, shown)),
            "projection": (self.projection, (ways, shown, hidden)),
            "w": (self.w, (len(self.directions), gates * hidden, inputs)),
            "bias": (self.bias, (ways, 2 * rows)),
            "lengths": (self.lengths, (batch,)),
            "initial": (self.initial, (ways, batch, shown)),
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


@operator
def rnn(layer: Layer, activations: Sequence[Activation]) -> tuple[Tensor, Tensor]:
    """``H' = f(W x + R H + bias)``; one activation per direction. Returns all states and the last."""
    b = layer.x.builder
    batch, hidden = layer.sizes(1)[1], layer.sizes(1)[3]

    def step(cell: _Cell, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        recurrent = cell.recurrent(states[0], 0, "recurrent")
        n, h = axes_of((batch, hidden))
        value = activations[cell.way](cell.inputs[n, h] + recurrent[n, h])
        return (cell.emit((n, h), value, "state"),)

    return _layer(b, layer, 1, [None], step)[:2]


@operator
def gru(
    layer: Layer,
    activations: Sequence[Activation],
    *,
    linear_before_reset: bool = False,
    order: str = "zrh",
) -> tuple[Tensor, Tensor]:
    """Gates z, r, h: ``H' = (1 - z) * h + z * H``; two activations per direction. Returns all states and the last.

    `order` is that of the gates in the weights, h last.
    """
    b = layer.x.builder
    update_column, reset_column = (order.index(gate) * layer.sizes(3)[3] for gate in "zr")
    batch, hidden = layer.sizes(3)[1], layer.sizes(3)[3]

    def step(cell: _Cell, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        f, g = activations[2 * cell.way : 2 * cell.way + 2]
        state = states[0]
        n, h = axes_of((batch, hidden))
        gates = cell.recurrent(state, 0, "gates")
        reset = f(cell.inputs[n, h + reset_column] + gates[n, h + reset_column])
        if linear_before_reset:
            candidate = g(cell.inputs[n, h + 2 * hidden] + reset * gates[n, h + 2 * hidden])
        else:
            kept = cell.emit((n, h), reset * state[n, h], "reset")
            product = cell.recurrent(kept, 2, "hidden")
            candidate = g(cell.inputs[n, h + 2 * hidden] + product[n, h])
        update = f(cell.inputs[n, h + update_column] + gates[n, h + update_column])
        return (cell.emit((n, h), (1.0 - update) * candidate + update * state[n, h], "state"),)

    return _layer(b, layer, 3, [None], step, (0,) if linear_before_reset else (0, 2))[:2]


@operator
def lstm(
    layer: Layer,
    activations: Sequence[Activation],
    *,
    initial_cell: Tensor | None = None,
    peephole: Tensor | None = None,
    input_forget: bool = False,
    order: str = "iofc",
) -> tuple[Tensor, Tensor, Tensor]:
    """Gates i, o, f, c: ``C' = f * C + i * c``, ``H' = o * h(C')``; three activations per direction.

    `peephole` [D, 3*H] weighs the cell in the gates i, o, f; with `input_forget` f is 1 - i. `order` is that of the
    gates in the weights. Returns all states, the last state and the last cell.
    """
    b = layer.x.builder
    batch, hidden = layer.sizes(4)[1], layer.sizes(4)[3]

    def step(cell: _Cell, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        f, g, last = activations[3 * cell.way : 3 * cell.way + 3]
        state, memory = states
        n, h = axes_of((batch, hidden))
        product = cell.recurrent(state, 0, "gates")

        def gate(letter: str, seen: Tensor | None) -> Expr:
            column = h + order.index(letter) * hidden
            value = cell.inputs[n, column] + product[n, column]
            if peephole is None or seen is None:
                return value
            return value + peephole[cell.way, h + "iof".index(letter) * hidden] * seen[n, h]

        entered = f(gate("i", memory))
        forgotten = 1.0 - entered if input_forget else f(gate("f", memory))
        following = cell.emit((n, h), forgotten * memory[n, h] + entered * g(gate("c", None)), "cell")
        shown = cell.emit((n, h), f(gate("o", following)) * last(following[n, h]), "state")
        return shown if cell.projection is None else cell.projected(shown), following

    outputs, state, memory = _layer(b, layer, 4, [initial_cell], step)
    return outputs, state, memory


@dataclass(frozen=True)
class _Cell:
    """One step in one direction of a layer.

    `weights` [G*H, H] are the recurrent ones of some gates, by the first of these; `inputs` [N, G*H] are the products
    with x, plus the input biases; `position` [] is the place of the step.
    """

    b: GraphBuilder
    layer: Layer
    way: int
    weights: Mapping[int, Tensor]
    inputs: Tensor
    position: Tensor | None = None
    projection: Tensor | None = None

    def recurrent(self, state: Tensor, gate: int, suffix: str) -> Tensor:
        """``R H + recurrent bias`` for the gates whose weights are together with those of `gate`."""
        layer, way = self.layer, self.way
        batch, width = static_shape(state.shape)
        rows, (count, _) = static_shape(layer.r.shape)[1], static_shape(self.weights[gate].shape)
        first = 0 if gate == 0 else rows - count
        n, k, j = Axis("n", batch), Axis("k", count), Axis("j", width)
        bias = layer.bias
        return contract(
            self.b, (n, k), [state[n, j], self.weights[gate][k, j]], (j,), accumulate=None, out_dtype=state.dtype,
            epilogue=None if bias is None else lambda v, axes: v + bias[way, axes[1] + first + rows].cast(v.dtype),
            name=f"{layer.name}.{way}.{suffix}",
        )  # fmt: skip

    def projected(self, shown: Tensor) -> Tensor:
        assert self.projection is not None, "called where there is one"
        size, hidden = static_shape(self.projection.shape)
        n, p, j = Axis("n", static_shape(shown.shape)[0]), Axis("p", size), Axis("j", hidden)
        factors = [shown[n, j], self.projection[p, j]]
        return contract(
            self.b, (n, p), factors, (j,), accumulate=None, out_dtype=shown.dtype,
            name=f"{self.layer.name}.{self.way}.projected",
        )  # fmt: skip

    def emit(self, axes: Sequence[Axis], body: Expr, role: str) -> Tensor:
        return emit(self.b, axes, body, name=f"{self.layer.name}.{self.way}.{role}", source=self.layer.name)


Step = Callable[[_Cell, Sequence[Tensor]], tuple[Tensor, ...]]


def _layer(
    b: GraphBuilder, layer: Layer, gates: int, further: Sequence[Tensor | None], step: Step, first: Sequence[int] = (0,)
) -> tuple[Tensor, Tensor, Tensor]:
    """Run `step` over time in every direction. `further` are the initial values of states beside H: one for LSTM.

    `first` are the gates with which a product of the recurrent weights begins.
    """
    steps, batch, _, hidden = layer.sizes(gates)
    width = _shape(layer.r, 3, layer.name)[2]
    starts = [(layer.initial, width), *((start, hidden) for start in (further if gates == 4 else ()))]
    shown: list[Tensor] = []
    finals: list[tuple[Tensor, ...]] = []
    for way, backwards in enumerate(layer.directions):
        initial = [_initial(b, layer, start, way, batch, size, f"{layer.name}.{way}.initial") for start, size in starts]
        ends = [*(gate * hidden for gate in first[1:]), gates * hidden]
        weights = {
            gate: _of_way(b, layer.r, way, f"{layer.name}.{way}.weights", gate * hidden, end)
            for gate, end in zip(first, ends, strict=True)
        }
        projection = layer.projection
        if projection is not None:
            projection = _of_way(b, projection, way, f"{layer.name}.{way}.projection")
        sliced = [_input_products(b, layer, way)]
        if layer.lengths is not None:
            sliced.append(b.constant(np.arange(steps, dtype=np.int64), f"{layer.name}.{way}.positions"))

        def trip(
            parts: Sequence[Tensor],
            states: Sequence[Tensor],
            way: int = way,
            backwards: bool = backwards,
            weights: Mapping[int, Tensor] = weights,
            projection: Tensor | None = projection,
        ) -> tuple[Sequence[Tensor], Sequence[tuple[Tensor, bool]]]:
            cell = _Cell(b, layer, way, weights, parts[0], parts[1] if len(parts) > 1 else None, projection)
            results = step(cell, states)
            row = results[0] if layer.lengths is None else _masked(cell, results[:1], ())[0]
            return _masked(cell, results, states), [(row, backwards)]

        last, (rows,) = b.loop(f"{layer.name}.{way}", steps, [(x, backwards) for x in sliced], initial, trip)
        shown.append(reshape(rows, (steps, 1, batch, width), name=f"{layer.name}.{way}.rows"))
        finals.append(tuple(last))
    everything = concat(shown, axis=1, name=layer.name)
    last_states = [stack([s[i] for s in finals], axis=0, name=f"{layer.name}.last") for i in range(len(finals[0]))]
    return everything, last_states[0], last_states[-1]


def _input_products(b: GraphBuilder, layer: Layer, way: int) -> Tensor:
    steps, batch, inputs = static_shape(layer.x.shape)
    rows = static_shape(layer.w.shape)[1]
    t, n, k, i = Axis("t", steps), Axis("n", batch), Axis("k", rows), Axis("i", inputs)
    bias, weights = layer.bias, _of_way(b, layer.w, way, f"{layer.name}.{way}.w")
    return contract(
        b, (t, n, k), [layer.x[t, n, i], weights[k, i]], (i,), accumulate=None, out_dtype=layer.x.dtype,
        epilogue=None if bias is None else lambda v, axes: v + bias[way, axes[2]].cast(v.dtype),
        name=f"{layer.name}.{way}.inputs",
    )  # fmt: skip


def _of_way(b: GraphBuilder, weights: Tensor, way: int, name: str, begin: int = 0, end: int | None = None) -> Tensor:
    """Rows of the weights of one direction: a product reads them whole, so that constants are packed ahead of time."""
    _, rows, columns = static_shape(weights.shape)
    axes = axes_of((rows if end is None else end - begin, columns))
    return emit(b, axes, weights[way, axes[0] + begin if begin else axes[0], axes[1]], name=name)


def _initial(
    b: GraphBuilder, layer: Layer, start: Tensor | None, way: int, batch: int, hidden: int, name: str
) -> Tensor:
    if start is None:
        return fill(b, (batch, hidden), 0, layer.x.dtype, name=name)
    n, h = axes_of((batch, hidden))
    return emit(b, (n, h), start[way, n, h], name=name, source=layer.name)


def _masked(cell: _Cell, results: Sequence[Tensor], before: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`results` where the sequence has this step; elsewhere what was `before`, or zeros."""
    lengths = cell.layer.lengths
    if lengths is None or cell.position is None:
        return tuple(results)
    kept: list[Tensor] = []
    for place, result in enumerate(results):
        axes = axes_of(result.shape)
        other = before[place][axes] if before else 0.0
        here = lengths[axes[0]].cast(INDEX) > cell.position[()]
        kept.append(cell.emit(axes, select(here, result[axes], other), "kept"))
    return tuple(kept)
