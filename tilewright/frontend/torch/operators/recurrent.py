"""LSTM, GRU and RNN with all their layers and directions: a loop over time for each."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.expr.core import Tensor, static_shape
from tilewright.expr.ops import recurrent as ops
from tilewright.expr.ops.shape import concat, narrow, reshape, stack, transpose
from tilewright.frontend.torch.call import Call, refuse
from tilewright.frontend.torch.registry import aten


@aten("aten.lstm.input")
def lstm(
    call: Call, x: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    _refuse_dropout(train, dropout)
    return _layers(call, "lstm", x, hx, params, has_biases, num_layers, bidirectional, batch_first)


@aten("aten.gru.input")
def gru(
    call: Call, x: Tensor, hx: Tensor, params: Sequence[Tensor], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    _refuse_dropout(train, dropout)
    return _layers(call, "gru", x, [hx], params, has_biases, num_layers, bidirectional, batch_first)


@aten("aten.rnn_tanh.input")
def rnn_tanh(
    call: Call, x: Tensor, hx: Tensor, params: Sequence[Tensor], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    _refuse_dropout(train, dropout)
    return _layers(call, "Tanh", x, [hx], params, has_biases, num_layers, bidirectional, batch_first)


@aten("aten.rnn_relu.input")
def rnn_relu(
    call: Call, x: Tensor, hx: Tensor, params: Sequence[Tensor], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    _refuse_dropout(train, dropout)
    return _layers(call, "Relu", x, [hx], params, has_biases, num_layers, bidirectional, batch_first)


def _refuse_dropout(train: bool, dropout: float) -> None:
    refuse(train and dropout > 0, "dropout between recurrent layers, in training", "module.eval()")


def _layers(
    call: Call, kind: str, x: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], biases: bool, layers: int,
    bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """All states, and of each kind of state the last ones of every layer and direction."""
    ways = 2 if bidirectional else 1
    directions = (False, True) if bidirectional else (False,)
    each = len(params) // (layers * ways)  # w, r, perhaps two biases, perhaps a projection
    if batch_first:
        x = transpose(x, (1, 0, 2), name=f"{call.name}.steps")
    ends: list[list[Tensor]] = [[] for _ in hx]
    for number in range(layers):
        name = f"{call.name}.{number}"
        own = [params[(number * ways + way) * each :][:each] for way in range(ways)]
        starts = [narrow(state, 0, number * ways, ways, name=f"{name}.first") for state in hx]
        bias = None
        if biases:
            rows = [concat(group[2:4], axis=0, name=f"{name}.bias") for group in own]
            bias = stack(rows, axis=0, name=f"{name}.bias")
        w, r = (stack([group[place] for group in own], axis=0, name=f"{name}.w") for place in (0, 1))
        projected = each == (5 if biases else 3)
        projection = stack([group[-1] for group in own], axis=0, name=f"{name}.projection") if projected else None
        layer = ops.Layer(x, w, r, bias, None, starts[0], directions, name, projection)
        found = _layer(call, kind, layer, starts)
        steps, _, batch, size = static_shape(found[0].shape)
        together = transpose(found[0], (0, 2, 1, 3), name=f"{name}.together")
        x = reshape(together, (steps, batch, ways * size), name=f"{name}.states")
        for states, last in zip(ends, found[1:], strict=True):
            states.append(last)
    if batch_first:
        x = transpose(x, (1, 0, 2), name=call.name)
    return (x, *(concat(states, axis=0, name=call.hint(place)) for place, states in enumerate(ends, 1)))


def _layer(call: Call, kind: str, layer: ops.Layer, starts: Sequence[Tensor]) -> tuple[Tensor, ...]:
    ways = len(layer.directions)
    tanh, sigmoid = ops.Activation("Tanh"), ops.Activation("Sigmoid")
    if kind == "lstm":
        return ops.lstm(layer, [sigmoid, tanh, tanh] * ways, initial_cell=starts[1], order="ifco")
    if kind == "gru":
        return ops.gru(layer, [sigmoid, tanh] * ways, linear_before_reset=True, order="rzh")
    return ops.rnn(layer, [ops.Activation(kind)] * ways)
