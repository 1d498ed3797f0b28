"""Elementwise operators, activations and casts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.errors import InvalidModel, Unsupported
from tilewright.expr import dtypes
from tilewright.expr.core import Tensor
from tilewright.expr.ops import elementwise as ops
from tilewright.expr.ops import shape as shapes
from tilewright.frontend.onnx.element_types import dtype_of
from tilewright.frontend.onnx.model_file import BY_CHANNEL
from tilewright.frontend.onnx.node import Node
from tilewright.frontend.onnx.registry import Value, op

_UNARY = {
    "Abs": "abs",
    "Neg": "neg",
    "Sign": "sign",
    "Exp": "exp",
    "Log": "log",
    "Sqrt": "sqrt",
    "Tanh": "tanh",
    "Erf": "erf",
    "Sigmoid": "sigmoid",
    "Sin": "sin",
    "Cos": "cos",
    "Tan": "tan",
    "Asin": "asin",
    "Acos": "acos",
    "Atan": "atan",
    "Sinh": "sinh",
    "Cosh": "cosh",
    "Asinh": "asinh",
    "Acosh": "acosh",
    "Atanh": "atanh",
    "Floor": "floor",
    "Ceil": "ceil",
    "Round": "round",
    "IsNaN": "isnan",
    "Not": "not",
    "BitwiseNot": "not",
}

_BINARY = {
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "Div": "div",
    "Equal": "eq",
    "Less": "lt",
    "LessOrEqual": "le",
    "Greater": "gt",
    "GreaterOrEqual": "ge",
    "And": "and",
    "Or": "or",
    "Xor": "xor",
    "BitwiseAnd": "and",
    "BitwiseOr": "or",
    "BitwiseXor": "xor",
}

_VARIADIC = {"Sum": "add", "Max": "max", "Min": "min"}

_ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "Relu": ops.relu,
    "Softplus": ops.softplus,
    "Softsign": ops.softsign,
    "Mish": ops.mish,
    "HardSwish": ops.hard_swish,
}

#: Activations with float attributes: the builder and its attributes with ONNX defaults.
_PARAMETRIC: dict[str, tuple[Callable[..., Tensor], dict[str, float]]] = {
    "LeakyRelu": (ops.leaky_relu, {"alpha": 0.01}),
    "Elu": (ops.elu, {"alpha": 1.0}),
    "Celu": (ops.celu, {"alpha": 1.0}),
    "Selu": (ops.selu, {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}),
    "Swish": (ops.swish, {"alpha": 1.0}),
    "HardSigmoid": (ops.hard_sigmoid, {"alpha": 0.2, "beta": 0.5}),
    "ThresholdedRelu": (ops.thresholded_relu, {"alpha": 1.0}),
    "Shrink": (ops.shrink, {"bias": 0.0, "lambd": 0.5}),
}


@op(*_UNARY)
def unary(node: Node) -> Tensor:
    return ops.unary(node.input(), _UNARY[node.operator], name=node.name)


@op(*_BINARY)
def binary(node: Node) -> Tensor:
    return ops.binary(node.input(0), node.input(1), _BINARY[node.operator], name=node.name)


@op(*_VARIADIC)
def variadic(node: Node) -> Tensor:
    return ops.variadic(node.tensors(), _VARIADIC[node.operator], name=node.name)


@op("Mean")
def mean(node: Node) -> Tensor:
    return ops.mean(node.tensors(), name=node.name)


@op(*_ACTIVATIONS)
def activation(node: Node) -> Tensor:
    return _ACTIVATIONS[node.operator](node.input(), name=node.name)


@op(*_PARAMETRIC)
def parametric(node: Node) -> Tensor:
    builder, defaults = _PARAMETRIC[node.operator]
    attributes = {name: node.get_float(name, value) for name, value in defaults.items()}
    return builder(node.input(), **attributes, name=node.name)


@op("PRelu")
def prelu(node: Node) -> Tensor:
    x, slope = node.input(0), node.input(1)
    if node.get_int(BY_CHANNEL, 0) and slope.rank == 1:
        slope = shapes.unsqueeze(slope, range(1, x.rank - 1), name=f"{node.name}.slope")
    return ops.prelu(x, slope, name=node.name)


@op("Gelu")
def gelu(node: Node) -> Tensor:
    return ops.gelu(node.input(), approximate=node.get_string("approximate", "none"), name=node.name)


@op("Reciprocal")
def reciprocal(node: Node) -> Tensor:
    return ops.map_elements([node.input()], lambda v: 1.0 / v, name=node.name)


@op("Clip")
def clip(node: Node) -> Tensor:
    return ops.clip(node.input(), node.optional(1), node.optional(2), name=node.name)


@op("Where")
def where(node: Node) -> Tensor:
    return ops.where(node.input(0), node.input(1), node.input(2), name=node.name)


@op("IsInf")
def is_inf(node: Node) -> Tensor:
    positive, negative = node.get_int("detect_positive", 1), node.get_int("detect_negative", 1)
    return ops.is_inf(node.input(), positive=bool(positive), negative=bool(negative), name=node.name)


@op("Mod")
def mod(node: Node) -> Tensor:
    x, y = node.input(0), node.input(1)
    function = "fmod" if node.get_int("fmod", 0) else "mod"
    return ops.binary(x, y, function, name=node.name)


@op("Pow")
def power(node: Node) -> Tensor:
    x, y = node.input(0), node.input(1)
    exponent = node.known(1)
    if exponent is not None and exponent.size == 1 and y.rank <= x.rank:
        return ops.power_constant(x, float(exponent.reshape(())), name=node.name)
    return ops.power(x, y, name=node.name)


@op("BitShift")
def bit_shift(node: Node) -> Tensor:
    function = {"LEFT": "shl", "RIGHT": "shr"}.get(node.get_string("direction"))
    if function is None:
        raise InvalidModel(f"direction {node.get_string('direction')!r}", help="LEFT or RIGHT")
    return ops.binary(node.input(0), node.input(1), function, name=node.name)


@op("Identity", "Dropout")
def identity(node: Node) -> Value | tuple[Value, ...]:
    """Dropout has the second output, all true, in the few graphs that ask for it."""
    value = node.inputs[0]
    if node.operator == "Identity":
        return value
    training = node.known(2) if node.has(2) else np.asarray(False)
    ratio = node.known(1) if node.has(1) else np.asarray(0.5)
    if training is None or (bool(training) and (ratio is None or float(ratio) != 0)):
        raise Unsupported("dropout in training mode, which is random")
    if not node.wants(1):
        return value
    return value, ops.fill(node.b, node.shape(0), True, "bool", name=node.hint(1))


@op("Cast", "CastLike")
def cast(node: Node) -> Tensor:
    target = dtype_of(node.get_int("to")) if node.operator == "Cast" else node.input(1).dtype
    x = node.input()
    return x if x.dtype == target else ops.cast(x, target, name=node.name)


@op("BitCast")
def bit_cast(node: Node) -> Tensor:
    x, target = node.input(), dtype_of(node.get_int("to"))
    if not (dtypes.is_integer(x.dtype) and dtypes.is_integer(target) and dtypes.bits(x.dtype) == dtypes.bits(target)):
        raise Unsupported(f"the bits of {x.dtype} as {target}", help="integers of equal size")
    return ops.cast(x, target, name=node.name)
