"""A random ONNX graph under construction, and the registry of recipes for its nodes, by operator."""

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


def registry() -> tuple[Callable[..., Callable[[Recipe], Recipe]], dict[str, Recipe]]:
    """A decorator for recipes, which takes the operators that they make, and all recipes by operator, in order."""
    found: dict[str, Recipe] = {}

    def recipe(*operators: str) -> Callable[[Recipe], Recipe]:
        def register(function: Recipe) -> Recipe:
            found.update(dict.fromkeys(operators, function))
            return function

        return register

    return recipe, found
