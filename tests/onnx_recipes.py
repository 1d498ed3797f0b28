"""How random nodes of each ONNX operator are made: `RECIPES`, for `random_onnx`.

A recipe adds one node (or the few that belong together) to a `Draft`, with inputs that the operator takes. Extents are
small and odd; constants and inputs are mixed; attributes are drawn from all that the operator knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper, numpy_helper, shape_inference

Array = np.ndarray[Any, Any]
OPSET = 20

F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
BF16 = np.dtype(ml_dtypes.bfloat16)
I8, U8, I32, I64, BOOL = (np.dtype(t) for t in (np.int8, np.uint8, np.int32, np.int64, np.bool_))
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 11, 17)


def code_of(dtype: np.dtype[Any]) -> int:
    return int(TensorProto.BFLOAT16 if dtype == BF16 else helper.np_dtype_to_tensor_dtype(dtype))


def dtype_of(code: int) -> np.dtype[Any]:
    return BF16 if code == TensorProto.BFLOAT16 else np.dtype(helper.tensor_dtype_to_np_dtype(code))


class Draft:
    """A graph under construction: nodes, constants, inputs with their values, and the type of every value."""

    def __init__(self, rng: np.random.Generator, prefix: str = "") -> None:
        self.rng, self.prefix = rng, prefix
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}
        self.inputs: dict[str, Array] = {}
        self.types: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self.made: list[str] = []  # results, from which later nodes may read

    # Choices

    def one(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def shape(self, low: int = 0, high: int = 4, limit: int = 600) -> tuple[int, ...]:
        while True:
            shape = tuple(self.one(EXTENTS) for _ in range(int(self.rng.integers(low, high + 1))))
            if prod(shape) <= limit:
                return (*shape[:-1], 0) if shape and self.chance(0.02) else shape

    def floating(self) -> np.dtype[Any]:
        return self.one((F32, F32, F32, F32, F64, F16, BF16))

    # Values

    def array(self, dtype: np.dtype[Any], shape: Sequence[int], low: float = -4, high: float = 4) -> Array:
        if dtype == BOOL:
            return np.asarray(self.rng.random(shape) < 0.5)
        if dtype.kind in "iu":
            least = max(0, int(low)) if dtype.kind == "u" else int(low)
            return np.asarray(self.rng.integers(least, int(high) + 1, shape)).astype(dtype)
        values = self.rng.uniform(low, high, shape)
        if self.chance(0.25):
            values = np.round(values * 2) / 2  # ties
        return np.asarray(values).astype(dtype)

    def given(self, array: Array, constant: float = 0.4) -> str:
        """A value of the graph: a constant, or an input."""
        name = f"{self.prefix}{'c' if (held := self.chance(constant)) else 'x'}{len(self.types)}"
        (self.constants if held else self.inputs)[name] = array
        self.types[name] = (array.dtype, array.shape)
        return name

    def known(self, values: Any, dtype: np.dtype[Any] = I64) -> str:
        """A constant that the operator needs when it is compiled."""
        return self.given(np.asarray(values, dtype), 1.0)

    def value(
        self, dtype: np.dtype[Any], low: int = 0, high: int = 4, *, limit: int = 600, again: float = 0.6
    ) -> tuple[str, tuple[int, ...]]:
        """A tensor of a rank in the range: a result of an earlier node, or a new one."""
        fitting = [n for n in self.made if self.types[n][0] == dtype and low <= len(self.types[n][1]) <= high]
        fitting = [n for n in fitting if prod(self.types[n][1]) <= limit]
        if fitting and self.chance(again):
            name = self.one(fitting)
            return name, self.types[name][1]
        shape = self.shape(low, high, limit)
        return self.given(self.array(dtype, shape)), shape

    def broadcast(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts to another."""
        start = int(self.rng.integers(len(shape) + 1))
        return tuple(1 if self.chance(0.3) else e for e in shape[start:])

    def node(self, operator: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> list[str]:
        """Add a node; its results have the types that ONNX infers."""
        names = [f"{self.prefix}v{len(self.types)}.{n}" for n in range(outputs)]
        node = helper.make_node(operator, list(inputs), names, **attributes)
        read = [name for name in dict.fromkeys(inputs) if name]
        infos = [helper.make_tensor_value_info(n, code_of(self.types[n][0]), self.types[n][1]) for n in read]
        held = [tensor_of(self.constants[n], n) for n in read if n in self.constants]
        graph = helper.make_graph([node], "one", infos, [helper.make_empty_tensor_value_info(n) for n in names], held)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
        found = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph.output
        for info in found:
            kind = info.type.tensor_type
            dims = [d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim]
            if not kind.HasField("shape") or min(dims, default=0) < 0:
                raise LookupError(f"{operator}: no shape inferred")
            self.types[info.name] = (dtype_of(kind.elem_type), tuple(dims))
        self.nodes.append(node)
        self.made += names
        return names


def tensor_of(array: Array, name: str) -> Any:
    if array.dtype == BF16:
        return helper.make_tensor(name, TensorProto.BFLOAT16, array.shape, array.tobytes(), raw=True)
    return numpy_helper.from_array(np.asarray(array), name)


Recipe = Callable[[Draft, str], Any]
RECIPES: dict[str, Recipe] = {}


def recipe(*operators: str) -> Callable[[Recipe], Recipe]:
    def register(function: Recipe) -> Recipe:
        RECIPES.update(dict.fromkeys(operators, function))
        return function

    return register


# Element by element -------------------------------------------------------------------------------------------------


@recipe(
    "Exp", "Log", "Sqrt", "Tanh", "Erf", "Sigmoid", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh",
    "Asinh", "Acosh", "Atanh", "Floor", "Ceil", "Round", "IsNaN", "Softplus", "Softsign", "Mish", "HardSwish",
    "Reciprocal", "Selu",
)  # fmt: skip
def _unary(d: Draft, operator: str) -> None:
    d.node(operator, [d.value(d.floating())[0]])


@recipe("Abs", "Neg", "Sign", "Relu", "Identity")
def _signed(d: Draft, operator: str) -> None:
    d.node(operator, [d.value(d.one((F32, F16, F64, I32, I8, BF16)))[0]])


@recipe("Not")
def _not(d: Draft, operator: str) -> None:
    d.node(operator, [d.value(BOOL)[0]])


@recipe("BitwiseNot")
def _bits(d: Draft, operator: str) -> None:
    d.node(operator, [d.value(d.one((I32, U8, I64)))[0]])


@recipe("LeakyRelu", "Elu", "Celu", "ThresholdedRelu")
def _alpha(d: Draft, operator: str) -> None:
    dtype = F32 if operator == "Celu" else d.floating()
    d.node(operator, [d.value(dtype)[0]], alpha=d.one((0.01, 0.5, 1.0, 2.0)))


@recipe("HardSigmoid")
def _hard_sigmoid(d: Draft, operator: str) -> None:
    d.node(operator, [d.value(d.floating())[0]], alpha=d.one((0.2, 0.5)), beta=d.one((0.5, 0.25)))


@recipe("Shrink")
def _shrink(d: Draft, operator: str) -> None:
    d.node(operator, [d.value(d.floating())[0]], bias=d.one((0.0, 0.75)), lambd=d.one((0.5, 1.0)))


@recipe("Gelu")
def _gelu(d: Draft, operator: str) -> None:
    d.node(operator, [d.value(d.floating())[0]], approximate=d.one(("none", "tanh")))


@recipe("IsInf")
def _is_inf(d: Draft, operator: str) -> None:
    x = d.array(F32, d.shape())
    x = np.where(x > 3, F32.type(np.inf), np.where(x < -3, F32.type(-np.inf), x)).astype(F32)
    d.node(operator, [d.given(x)], detect_positive=d.one((0, 1)), detect_negative=d.one((0, 1)))


def _pair(d: Draft, dtype: np.dtype[Any], low: float = -4, high: float = 4) -> list[str]:
    """Two tensors that broadcast to each other, in either order."""
    name, shape = d.value(dtype)
    other = d.given(d.array(dtype, d.broadcast(shape), low, high))
    return [name, other] if d.chance(0.5) else [other, name]


@recipe("Add", "Sub", "Mul")
def _arithmetic(d: Draft, operator: str) -> None:
    d.node(operator, _pair(d, d.one((F32, F32, F16, BF16, F64, I32, I64, U8))))


@recipe("Div")
def _quotient(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F16, F64, BF16, I32, I64))
    name, shape = d.value(dtype)
    divisor = d.array(dtype, d.broadcast(shape))
    divisor = np.where(divisor == 0, dtype.type(3), divisor).astype(dtype)
    d.node(operator, [name, d.given(divisor)])


@recipe("Mod")
def _mod(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F64, I32, I64))
    name, shape = d.value(dtype)
    divisor = d.array(dtype, d.broadcast(shape))
    divisor = np.where(divisor == 0, dtype.type(3), divisor).astype(dtype)
    d.node(operator, [name, d.given(divisor)], fmod=1 if dtype.kind == "f" else d.one((0, 1)))


@recipe("Pow")
def _pow(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F64))
    shape = d.shape()
    base = d.given(d.array(dtype, shape, 0.1, 4))
    d.node(operator, [base, d.given(d.array(dtype, d.one(((), d.broadcast(shape)))))])


@recipe("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
def _compare(d: Draft, operator: str) -> None:
    d.node(operator, _pair(d, d.one((F32, F64, I32, I64))))


@recipe("And", "Or", "Xor")
def _logic(d: Draft, operator: str) -> None:
    d.node(operator, _pair(d, BOOL))


@recipe("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def _bitwise(d: Draft, operator: str) -> None:
    d.node(operator, _pair(d, d.one((I32, U8, I64))))


@recipe("BitShift")
def _shift(d: Draft, operator: str) -> None:
    name, shape = d.value(U8)
    d.node(operator, [name, d.given(d.array(U8, d.broadcast(shape), 0, 7))], direction=d.one(("LEFT", "RIGHT")))


@recipe("Min", "Max", "Sum", "Mean")
def _variadic(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F64, F16) if operator in ("Sum", "Mean") else (F32, F64, F16, I32))
    name, shape = d.value(dtype)
    others = [d.given(d.array(dtype, d.broadcast(shape))) for _ in range(int(d.rng.integers(3)))]
    d.node(operator, [name, *others])


@recipe("PRelu")
def _prelu(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F64, F16))
    name, shape = d.value(dtype)
    d.node(operator, [name, d.given(d.array(dtype, d.broadcast(shape)))])


@recipe("Where")
def _where(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F16, F64, I32, I64))
    name, shape = d.value(dtype)
    condition, other = d.given(d.array(BOOL, d.broadcast(shape))), d.given(d.array(dtype, d.broadcast(shape)))
    d.node(operator, [condition, *([name, other] if d.chance(0.5) else [other, name])])


@recipe("Clip")
def _clip(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F16, F64, I32))
    bounds = [d.given(np.asarray(v, dtype)) if d.chance(0.7) else "" for v in (-1, 2)]
    d.node(operator, [d.value(dtype)[0], *bounds])


@recipe("Cast")
def _cast(d: Draft, operator: str) -> None:
    source, to = d.one((F32, F16, F64, I32, I64, U8, BOOL, BF16)), d.one((F32, F16, F64, I32, I64, BOOL, BF16))
    low = 0 if to.kind == "u" else -4
    d.node(operator, [d.given(d.array(source, d.shape(), low))], to=code_of(to))


# Shapes -----------------------------------------------------------------------------------------------------------

ANY = (F32, F32, F16, F64, I32, I64, BOOL)


@recipe("Transpose")
def _transpose(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one(ANY))
    order = [int(p) for p in d.rng.permutation(len(shape))]
    d.node(operator, [name], **({"perm": order} if order and d.chance(0.8) else {}))


@recipe("Reshape")
def _reshape(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one(ANY), 1)
    count = prod(shape)
    divisors = [e for e in range(1, count + 1) if count % e == 0] or [1]
    first = d.one(divisors)
    target = d.one(([-1], [first, -1] if count else [0, -1], [0, -1]))
    d.node(operator, [name, d.known(target if count else [0])])


@recipe("Flatten")
def _flatten(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one(ANY), 1)
    d.node(operator, [name], axis=int(d.rng.integers(-len(shape), len(shape) + 1)))


@recipe("Unsqueeze")
def _unsqueeze(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one(ANY), 0, 3)
    d.node(operator, [name, d.known([int(d.rng.integers(-len(shape) - 1, len(shape) + 1))])])


@recipe("Squeeze")
def _squeeze(d: Draft, operator: str) -> None:
    shape = (1, *d.shape(0, 2), 1)
    name = d.given(d.array(d.one(ANY), shape))
    d.node(operator, [name, d.known(d.one(([0], [-1], [0, -1])))])


@recipe("Concat")
def _concat(d: Draft, operator: str) -> None:
    dtype = d.one(ANY)
    name, shape = d.value(dtype, 1)
    axis = int(d.rng.integers(len(shape)))
    parts = [name]
    for _ in range(int(d.rng.integers(3))):
        other = [d.one(EXTENTS) if p == axis else e for p, e in enumerate(shape)]
        parts.append(d.given(d.array(dtype, other)))
    d.node(operator, parts, axis=axis - (len(shape) if d.chance(0.3) else 0))


@recipe("Split")
def _split(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one(ANY), 1)
    axis = int(d.rng.integers(len(shape)))
    first = int(d.rng.integers(shape[axis] + 1))
    d.node(operator, [name, d.known([first, shape[axis] - first])], 2, axis=axis)


@recipe("Slice")
def _slice(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one(ANY), 1)
    axis = int(d.rng.integers(len(shape)))
    start, stop = (int(d.rng.integers(-shape[axis] - 2, shape[axis] + 3)) for _ in range(2))
    d.node(operator, [name, d.known([start]), d.known([stop]), d.known([axis]), d.known([d.one((1, 2, 3, -1, -2))])])


@recipe("Pad")
def _pad(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F64, F16, I32))
    name, shape = d.value(dtype, 1)
    mode = d.one(("constant", "reflect", "edge", "wrap"))
    if 0 in shape:
        mode = "constant"
    pads = [int(d.rng.integers(0, 3 if mode == "constant" else min(3, max(e, 1)))) for e in (*shape, *shape)]
    value = [d.given(np.asarray(1.5, dtype))] if mode == "constant" and d.chance(0.5) else []
    d.node(operator, [name, d.known(pads), *value], mode=mode)


@recipe("Tile")
def _tile(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one(ANY), 1, 3, limit=100)
    d.node(operator, [name, d.known([d.one((1, 2, 3)) for _ in shape])])


@recipe("Expand")
def _expand(d: Draft, operator: str) -> None:
    target = d.shape(1, 4)
    d.node(operator, [d.given(d.array(d.one(ANY), d.broadcast(target))), d.known(target)])


@recipe("Gather")
def _gather(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one(ANY), 1, 3)
    axis = int(d.rng.integers(len(shape)))
    if not shape[axis]:
        raise LookupError("nothing to gather")
    index = d.rng.integers(-shape[axis], shape[axis], d.shape(0, 2, 20)).astype(d.one((I32, I64)))
    d.node(operator, [name, d.given(index)], axis=axis)


@recipe("GatherElements")
def _gather_elements(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one(ANY), 1, 3)
    axis = int(d.rng.integers(len(shape)))
    if 0 in shape:
        raise LookupError("nothing to gather")
    index = d.rng.integers(-shape[axis], shape[axis], [int(d.rng.integers(1, e + 1)) for e in shape])
    d.node(operator, [name, d.given(index.astype(I64))], axis=axis)


@recipe("GatherND")
def _gather_nd(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one(ANY), 1, 3)
    if 0 in shape:
        raise LookupError("nothing to gather")
    depth = int(d.rng.integers(1, len(shape) + 1))
    index = np.stack([d.rng.integers(-e, e, (2, 3)) for e in shape[:depth]], -1)
    d.node(operator, [name, d.given(index.astype(I64))])


@recipe("ScatterElements", "Scatter")
def _scatter_elements(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F64, I32))
    name, shape = d.value(dtype, 1, 3, limit=120)
    axis = int(d.rng.integers(len(shape)))
    if 0 in shape:
        raise LookupError("nothing to scatter into")
    reduction = d.one(("none", "add", "mul", "max", "min"))
    count = int(d.rng.integers(1, shape[axis] + 1))
    others = [e if p != axis else count for p, e in enumerate(shape)]
    order = np.argsort(d.rng.random(shape), axis=axis)  # without duplicates, whose order is open
    index = np.take(order, range(count), axis=axis)
    inputs = [name, d.given(index.astype(I64)), d.given(d.array(dtype, others))]
    d.node("ScatterElements", inputs, axis=axis, reduction=reduction)


@recipe("ScatterND")
def _scatter_nd(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F64, I32))
    name, shape = d.value(dtype, 1, 3, limit=120)
    if 0 in shape:
        raise LookupError("nothing to scatter into")
    reduction = d.one(("none", "add", "mul", "max", "min"))
    count = int(d.rng.integers(1, shape[0] + 1))
    index = d.rng.permutation(shape[0])[:count].reshape(count, 1).astype(I64)
    d.node(operator, [name, d.given(index), d.given(d.array(dtype, (count, *shape[1:])))], reduction=reduction)


@recipe("DepthToSpace", "SpaceToDepth")
def _depth(d: Draft, operator: str) -> None:
    block, channels = 2, d.one((1, 3))
    if operator == "DepthToSpace":
        x = d.given(d.array(F32, (2, channels * block * block, 3, 2)))
        d.node(operator, [x], blocksize=block, mode=d.one(("DCR", "CRD")))
    else:
        d.node(operator, [d.given(d.array(F32, (2, channels, 3 * block, 2 * block)))], blocksize=block)


@recipe("Trilu")
def _trilu(d: Draft, operator: str) -> None:
    name, _ = d.value(d.one((F32, F64, I64)), 2)
    d.node(operator, [name, *([d.known(d.one((-1, 0, 2)))] if d.chance(0.5) else [])], upper=d.one((0, 1)))


@recipe("OneHot")
def _one_hot(d: Draft, operator: str) -> None:
    index = d.given(d.rng.integers(-5, 5, d.shape(0, 2, 20)).astype(I64))
    d.node(operator, [index, d.known(5), d.given(np.asarray([0.5, 2], F32))], axis=d.one((-1, 0)))


@recipe("EyeLike")
def _eye(d: Draft, operator: str) -> None:
    d.node(operator, [d.value(F32, 2, 2)[0]], k=d.one((-1, 0, 1)))


@recipe("ConstantOfShape")
def _constant_of_shape(d: Draft, operator: str) -> None:
    value = numpy_helper.from_array(np.asarray([d.one((0, 3))], d.one((F32, I64))))
    d.node(operator, [d.known(d.shape(1, 3))], value=value)


@recipe("Range")
def _range(d: Draft, operator: str) -> None:
    d.node(operator, [d.known(d.one((0, 2))), d.known(d.one((7, 12))), d.known(d.one((1, 3)))])


@recipe("Shape", "Size")
def _shape(d: Draft, operator: str) -> None:
    d.node(operator, [d.value(F32)[0]])


@recipe("ReverseSequence")
def _reverse(d: Draft, operator: str) -> None:
    time, batch = d.one((3, 7)), d.one((2, 5))
    lengths = d.given(d.rng.integers(1, time + 1, batch).astype(I64))
    d.node(operator, [d.given(d.array(F32, (time, batch, 3))), lengths], time_axis=0, batch_axis=1)


@recipe("CenterCropPad")
def _crop(d: Draft, operator: str) -> None:
    d.node(operator, [d.given(d.array(F32, (5, 7))), d.known([d.one((3, 4, 8)), d.one((3, 7, 9))])])


# Reductions ---------------------------------------------------------------------------------------------------------


@recipe(
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip
def _reduce(d: Draft, operator: str) -> None:
    whole = operator in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
    dtype = d.one((F32, F32, F64, I32) if whole else (F32, F64))
    shape = tuple(max(e, 1) for e in d.shape(1, 4))
    low = 0.1 if operator == "ReduceLogSum" else -2
    name = d.given(d.array(dtype, shape, low, 2))
    axes = sorted(d.rng.permutation(len(shape))[: int(d.rng.integers(len(shape) + 1))].tolist())
    rest = [d.known(axes)] if axes or d.chance(0.5) else []
    d.node(operator, [name, *rest], keepdims=d.one((0, 1)), noop_with_empty_axes=d.one((0, 1)) if not axes else 0)


@recipe("ArgMax", "ArgMin")
def _arg(d: Draft, operator: str) -> None:
    shape = tuple(max(e, 1) for e in d.shape(1, 3))
    name = d.given(d.array(d.one((F32, F64, I32)), shape))
    axis = int(d.rng.integers(-len(shape), len(shape)))
    d.node(operator, [name], axis=axis, keepdims=d.one((0, 1)), select_last_index=d.one((0, 1)))


@recipe("CumSum")
def _cumsum(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one((F32, F64, I32)), 1, 3)
    axis = d.known(int(d.rng.integers(-len(shape), len(shape))))
    d.node(operator, [name, axis], exclusive=d.one((0, 1)), reverse=d.one((0, 1)))


@recipe("STFT")
def _stft(d: Draft, operator: str) -> None:
    length, step = d.one((1, 4, 6, 7)), d.one((1, 2, 3))
    dtype = d.one((F32, F64))
    signal = d.given(d.array(dtype, (d.one((1, 2)), length + d.one((0, 1, 5)), 1)))
    window = d.given(d.array(dtype, (length,))) if d.chance(0.6) else ""
    d.node(operator, [signal, d.known(step), window, d.known(length)], onesided=d.one((0, 1)))


@recipe("Det")
def _det(d: Draft, operator: str) -> None:
    rows = d.one((1, 2, 3))
    d.node(operator, [d.given(d.array(d.one((F32, F64)), (*d.shape(0, 2, 30), rows, rows)))])


@recipe("MaxUnpool")
def _unpool(d: Draft, operator: str) -> None:
    kernel = [d.one((1, 2, 3)) for _ in range(2)]
    image = d.given(d.array(F32, (2, 3, *(width * d.one((1, 2, 3)) for width in kernel))))
    values, places = d.node("MaxPool", [image], 2, kernel_shape=kernel, strides=kernel)
    d.node(operator, [values, places], kernel_shape=kernel, strides=kernel)


@recipe("DFT")
def _dft(d: Draft, operator: str) -> None:
    parts = d.one((1, 2))
    shape = (*(max(extent, 1) for extent in d.shape(1, 3)), parts)
    signal = d.given(d.rng.uniform(-4, 4, shape).astype(d.one((F32, F64))))
    length = d.known(np.int64(d.rng.integers(1, 9))) if d.rng.random() < 0.5 else ""
    axis = d.known(np.int64(d.rng.integers(len(shape) - 1)))
    inverse = d.one((0, 1))
    d.node(
        operator, [signal, length, axis], inverse=inverse, onesided=d.one((0, 1)) if parts == 1 and not inverse else 0
    )


@recipe("TopK")
def _topk(d: Draft, operator: str) -> None:
    shape = tuple(max(e, 1) for e in d.shape(1, 3))
    axis = int(d.rng.integers(len(shape)))
    values = d.rng.permutation(prod(shape)).reshape(shape).astype(d.one((F32, F64, I32)))
    count = d.known([int(d.rng.integers(1, shape[axis] + 1))])
    d.node(operator, [d.given(values), count], 2, axis=axis, largest=d.one((0, 1)))


@recipe("Softmax", "LogSoftmax", "Hardmax")
def _softmax(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one((F32, F32, F64, F16)), 1, 3)
    if 0 in shape:
        raise LookupError("the maximum of nothing")
    d.node(operator, [name], axis=int(d.rng.integers(-len(shape), len(shape))))


# Products, windows, norms -------------------------------------------------------------------------------------------


@recipe("MatMul")
def _matmul(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F32, F64, F16, BF16))
    m, k, n = (d.one(EXTENTS) for _ in range(3))
    batch = d.one(((), (2,), (3, 1)))
    a, b = d.one((((*batch, m, k), (k, n)), ((k,), (k, n)), ((m, k), (k,)), ((*batch, m, k), (2, k, n))))
    d.node(operator, [d.given(d.array(dtype, a)), d.given(d.array(dtype, b))])


@recipe("Gemm")
def _gemm(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F32, F64, F16))
    m, k, n = (d.one(EXTENTS) for _ in range(3))
    ta, tb = d.one((0, 1)), d.one((0, 1))
    inputs = [d.given(d.array(dtype, (k, m) if ta else (m, k))), d.given(d.array(dtype, (n, k) if tb else (k, n)))]
    if d.chance(0.7):
        inputs.append(d.given(d.array(dtype, d.one(((n,), (m, 1), (1, n), (), (m, n))))))
    d.node(operator, inputs, alpha=d.one((1.0, 0.5)), beta=d.one((1.0, 2.0)), transA=ta, transB=tb)


EQUATIONS = (
    ("ij,jk->ik", (3, 5), (5, 7)), ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)), ("i,j->ij", (3,), (7,)),
    ("ij,ij->i", (5, 3), (5, 3)),
)  # fmt: skip


@recipe("Einsum")
def _einsum(d: Draft, operator: str) -> None:
    equation, a, b = d.one(EQUATIONS)
    d.node(operator, [d.given(d.array(F32, a)), d.given(d.array(F32, b))], equation=equation)


def _window(d: Draft, rank: int) -> tuple[list[int], list[int], dict[str, Any]]:
    """Kernel, strides and other attributes of a window over images."""
    kernel, strides = [d.one((1, 2, 3)) for _ in range(rank)], [d.one((1, 1, 2, 3)) for _ in range(rank)]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
    if d.chance(0.7):
        attributes["pads"] = [int(d.rng.integers(k)) for k in (*kernel, *kernel)]
    else:
        attributes["auto_pad"] = d.one(("SAME_UPPER", "SAME_LOWER", "VALID"))
    return kernel, strides, attributes


@recipe("Conv", "ConvTranspose")
def _conv(d: Draft, operator: str) -> None:
    rank, group = d.one((1, 2)), d.one((1, 1, 2, 3))
    kernel, _, attributes = _window(d, rank)
    if operator == "Conv" and "pads" in attributes and d.chance(0.4):
        attributes["dilations"] = [d.one((1, 2)) for _ in range(rank)]
    if operator == "ConvTranspose" and "auto_pad" in attributes:
        del attributes["auto_pad"]
    channels, filters = group * d.one((1, 2, 5)), group * d.one((1, 3, 4))
    image = d.given(d.array(F32, (d.one((1, 2)), channels, *(d.one((5, 7, 8)) for _ in range(rank)))))
    outer = (filters, channels // group) if operator == "Conv" else (channels, filters // group)
    inputs = [image, d.given(d.array(F32, (*outer, *kernel)), 0.7)]
    if d.chance(0.5):
        inputs.append(d.given(d.array(F32, (filters,))))
    d.node(operator, inputs, group=group, **attributes)


@recipe("MaxPool", "AveragePool", "LpPool")
def _pool(d: Draft, operator: str) -> None:
    rank = d.one((1, 2))
    kernel, strides, attributes = _window(d, rank)
    if any(stride > width for stride, width in zip(strides, kernel, strict=True)):
        attributes.pop("auto_pad", None)  # onnxruntime refuses, and the reference pads by a negative number
    if operator == "AveragePool":
        attributes["count_include_pad"] = d.one((0, 1))
    if operator == "LpPool":
        attributes["p"] = d.one((1, 2, 3))
    if operator != "LpPool":
        attributes["ceil_mode"] = d.one((0, 0, 1)) if "pads" in attributes else 0
    d.node(operator, [d.given(d.array(F32, (2, 3, *(d.one((5, 7, 8)) for _ in range(rank)))))], **attributes)


@recipe("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global(d: Draft, operator: str) -> None:
    d.node(operator, [d.given(d.array(F32, (2, 3, d.one((1, 5, 7)), d.one((1, 3)))))])


@recipe("BatchNormalization")
def _batch_norm(d: Draft, operator: str) -> None:
    parameters = [d.given(d.array(F32, (5,), low, 2)) for low in (-2, -2, -2, 0.1)]
    d.node(operator, [d.given(d.array(F32, (2, 5, *d.shape(0, 2, 30)))), *parameters])


@recipe("InstanceNormalization")
def _instance_norm(d: Draft, operator: str) -> None:
    parameters = [d.given(d.array(F32, (3,))) for _ in range(2)]
    d.node(operator, [d.given(d.array(F32, (2, 3, d.one((5, 7)), 3))), *parameters])


@recipe("LayerNormalization")
def _layer_norm(d: Draft, operator: str) -> None:
    shape = (d.one((1, 3)), d.one((2, 5)), d.one((4, 7, 17)))
    axis = d.one((-1, 1, 2))
    parameters = [d.given(d.array(F32, shape[axis:])) for _ in range(d.one((1, 2)))]
    d.node(operator, [d.given(d.array(F32, shape)), *parameters], axis=axis)


@recipe("LpNormalization")
def _lp_norm(d: Draft, operator: str) -> None:
    d.node(operator, [d.given(d.array(F32, (3, 5, 2), 0.5))], axis=d.one((-1, 0, 1)), p=d.one((1, 2)))


@recipe("LRN")
def _lrn(d: Draft, operator: str) -> None:
    d.node(operator, [d.given(d.array(F32, (2, 5, 3, 2)))], size=d.one((1, 3, 5)), alpha=0.01, bias=1.5)


@recipe("MeanVarianceNormalization")
def _mvn(d: Draft, operator: str) -> None:
    d.node(operator, [d.given(d.array(F32, (2, 3, 5, 7)))], axes=d.one(([0, 2, 3], [1], [2, 3])))


# Quantised ----------------------------------------------------------------------------------------------------------


@recipe("QuantizeLinear", "DequantizeLinear")
def _quantised(d: Draft, operator: str) -> None:
    kind, shape = d.one((I8, U8)), d.shape(1, 3)
    axis = int(d.rng.integers(len(shape)))
    per = d.one(((), (shape[axis],)))
    scale = d.given(d.array(F32, per, 0.05, 0.5))
    zero = d.given(d.array(kind, per, 0, 9))
    x = d.given(d.array(F32, shape, -9, 9) if operator == "QuantizeLinear" else d.array(kind, shape, 0, 99))
    d.node(operator, [x, scale, zero], axis=axis)


@recipe("DynamicQuantizeLinear")
def _dynamic(d: Draft, operator: str) -> None:
    d.node(operator, [d.given(d.array(F32, tuple(max(e, 1) for e in d.shape(1, 3))))], 3)


@recipe("MatMulInteger")
def _matmul_integer(d: Draft, operator: str) -> None:
    m, k, n = (d.one(EXTENTS) for _ in range(3))
    zeros = [d.given(np.asarray(3, U8)), d.given(np.asarray(2, I8))] if d.chance(0.5) else []
    d.node(operator, [d.given(d.array(U8, (m, k), 0, 99)), d.given(d.array(I8, (k, n), -50, 50)), *zeros])


@recipe("ConvInteger")
def _conv_integer(d: Draft, operator: str) -> None:
    zero = [d.given(np.asarray(3, U8))] if d.chance(0.5) else []
    d.node(operator, [d.given(d.array(U8, (1, 3, 7, 5), 0, 99)), d.given(d.array(U8, (4, 3, 3, 2), 0, 99)), *zero])


@recipe("QLinearMatMul")
def _qlinear(d: Draft, operator: str) -> None:
    m, k, n = (d.one(EXTENTS) for _ in range(3))
    scale = lambda: d.known(d.one((0.05, 0.125)), F32)  # noqa: E731
    zero = lambda: d.known(d.one((0, 5)), U8)  # noqa: E731
    a, b = d.given(d.array(U8, (m, k), 0, 20)), d.given(d.array(U8, (k, n), 0, 20))
    d.node(operator, [a, scale(), zero(), b, scale(), zero(), d.known(0.5, F32), zero()])


# Sampling and recurrences -------------------------------------------------------------------------------------------


@recipe("Resize")
def _resize(d: Draft, operator: str) -> None:
    shape = (1, 2, d.one((3, 4, 5)), d.one((4, 7, 9)))
    mode = d.one(("nearest", "linear", "cubic"))
    position = d.one(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"))
    attributes = {"mode": mode, "coordinate_transformation_mode": position}
    if mode == "nearest":
        attributes["nearest_mode"] = d.one(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
    scales = [1, 1, d.one((0.6, 1, 2, 1.5)), d.one((0.5, 1, 2, 2.3))]
    x = d.given(d.array(F32, shape))
    if d.chance(0.5):
        d.node(operator, [x, "", d.known(scales, F32)], **attributes)
    else:
        sizes = [max(1, int(e * scale)) for e, scale in zip(shape, scales, strict=True)]
        d.node(operator, [x, "", "", d.known(sizes)], **attributes)


@recipe("GridSample")
def _grid_sample(d: Draft, operator: str) -> None:
    grid = d.given(d.array(F32, (1, 3, 5, 2), -1.2, 1.2))
    attributes = {"mode": d.one(("linear", "nearest")), "padding_mode": d.one(("zeros", "border", "reflection"))}
    d.node(operator, [d.given(d.array(F32, (1, 2, 5, 7))), grid], align_corners=d.one((0, 1)), **attributes)


@recipe("RNN", "GRU", "LSTM")
def _recurrent(d: Draft, operator: str) -> None:
    steps, batch, width, hidden = d.one((1, 3)), d.one((1, 2)), d.one((2, 5)), d.one((3, 4))
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[operator]
    direction = d.one(("forward", "reverse", "bidirectional"))
    ways = 2 if direction == "bidirectional" else 1
    inputs = [d.given(d.array(F32, (steps, batch, width)), 0.0)]
    inputs += [d.given(d.array(F32, (ways, gates * hidden, k), -1, 1), 0.8) for k in (width, hidden)]
    if d.chance(0.5):
        inputs.append(d.given(d.array(F32, (ways, 2 * gates * hidden), -1, 1), 0.8))
    extra = {"linear_before_reset": d.one((0, 1))} if operator == "GRU" else {}
    d.node(operator, inputs, 3 if operator == "LSTM" else 2, hidden_size=hidden, direction=direction, **extra)


#: Operators of the importer that random graphs leave out, by the reason; the node tests of ONNX have them.
LEFT_OUT: dict[str, tuple[str, ...]] = {
    "draws numbers": (
        "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
    ),
    "holds graphs": ("If", "Loop", "Scan"),
    "has values that are no tensors": (
        "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt", "SequenceConstruct", "SequenceEmpty",
        "SequenceErase", "SequenceInsert", "SequenceLength", "SplitToSequence", "ConcatFromSequence",
    ),
    "has a shape that depends on values": ("Compress", "NonZero", "Unique", "MelWeightMatrix"),
    "is newer than the operator set of the graphs": (
        "Attention", "RMSNormalization", "Swish", "TensorScatter", "CumProd", "BitCast", "GroupNormalization",
    ),
    "takes no choice": ("BlackmanWindow", "HammingWindow", "HannWindow", "Constant", "CastLike", "Dropout"),
    "is a composition": ("Col2Im", "QLinearConv"),
}  # fmt: skip
