"""LSTM, GRU, RNN."""

from __future__ import annotations

from tilewright.errors import InvalidModel
from tilewright.expr.core import Tensor
from tilewright.expr.ops import recurrent as ops
from tilewright.expr.ops.shape import transpose
from tilewright.frontend.onnx.node import Node
from tilewright.frontend.onnx.registry import op

_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def _layer(node: Node) -> ops.Layer:
    """The inputs that all three share; layout 1 (batch first) is transposed to layout 0."""
    direction = node.get_string("direction", "forward")
    if direction not in _DIRECTIONS:
        raise InvalidModel(f"direction {direction!r}", help=", ".join(_DIRECTIONS))
    x, initial = node.input(0), node.optional(5)
    return ops.Layer(
        _batch_second(node, x, "x"), node.input(1), node.input(2), node.optional(3), node.optional(4),
        None if initial is None else _batch_second(node, initial, "initial"), _DIRECTIONS[direction],
        name=f"{node.name}.steps" if node.get_int("layout", 0) else node.name,
    )  # fmt: skip


def _batch_second(node: Node, x: Tensor, role: str) -> Tensor:
    return transpose(x, (1, 0, 2), name=f"{node.name}.{role}") if node.get_int("layout", 0) else x


def _activations(node: Node, defaults: list[str], directions: int) -> list[ops.Activation]:
    """Names in order, with alphas and betas taken in order by those activations that have them."""
    names = [n.decode() if isinstance(n, bytes) else str(n) for n in node.attributes.get("activations", [])]
    names = (names or defaults * directions)[: len(defaults) * directions]
    if len(names) < len(defaults) * directions:
        raise InvalidModel(f"{len(names)} activations", help=f"{len(defaults) * directions}")
    alphas, betas = list(node.attributes.get("activation_alpha", [])), list(node.attributes.get("activation_beta", []))
    clip = node.get_float("clip") if "clip" in node.attributes else None
    found: list[ops.Activation] = []
    for name in names:
        known = next((ours for ours in ops.ACTIVATIONS if ours.lower() == name.lower()), name)
        alpha = float(alphas.pop(0)) if alphas and known in _WITH_ALPHA else None
        beta = float(betas.pop(0)) if betas and known in _WITH_BETA else None
        found.append(ops.Activation(known, alpha, beta, clip))
    return found


_WITH_ALPHA = ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu")
_WITH_BETA = ("Affine", "ScaledTanh", "HardSigmoid")


def _outputs(node: Node, everything: Tensor, *last: Tensor) -> tuple[Tensor, ...]:
    if not node.get_int("layout", 0):
        return (everything, *last)
    turned = transpose(everything, (2, 0, 1, 3), name=node.name)
    return (turned, *(transpose(state, (1, 0, 2), name=f"{node.name}.last") for state in last))


@op("RNN")
def rnn(node: Node) -> tuple[Tensor, ...]:
    layer = _layer(node)
    return _outputs(node, *ops.rnn(layer, _activations(node, ["Tanh"], len(layer.directions))))


@op("GRU")
def gru(node: Node) -> tuple[Tensor, ...]:
    layer = _layer(node)
    activations = _activations(node, ["Sigmoid", "Tanh"], len(layer.directions))
    linear = bool(node.get_int("linear_before_reset", 0))
    return _outputs(node, *ops.gru(layer, activations, linear_before_reset=linear))


@op("LSTM")
def lstm(node: Node) -> tuple[Tensor, ...]:
    layer, cell = _layer(node), node.optional(6)
    activations = _activations(node, ["Sigmoid", "Tanh", "Tanh"], len(layer.directions))
    found = ops.lstm(
        layer, activations, initial_cell=None if cell is None else _batch_second(node, cell, "cell"),
        peephole=node.optional(7), input_forget=bool(node.get_int("input_forget", 0)),
    )  # fmt: skip
    return _outputs(node, *found)
