"""Neither dense products nor plain maps: transposed convolutions, detector heads, updates, scans, sorts, recurrences.

Sizes are those of published networks: DCGAN (Radford et al. 2016), a U-Net's upsampling, the 8x upsampling of FCN-8s,
the heads of SSD300 (8,732 boxes of 21 classes), a YOLO head's 25,600 boxes, message passing with mean degree 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bench.arrays import Array
from bench.cases.definition import function_module, node, normal, onnx_model
from bench.problem import Case, Problem

if TYPE_CHECKING:
    import torch


class Upsampling(NamedTuple):
    channels: int
    filters: int
    size: int  # height and width of the input
    kernel: int
    stride: int
    padding: int
    output_padding: int = 0

    @property
    def extent(self) -> int:
        """Height and width of the output."""
        return (self.size - 1) * self.stride - 2 * self.padding + self.kernel + self.output_padding


TRANSPOSED = {
    "dcgan-8": Upsampling(512, 256, 4, 4, 2, 1),
    "dcgan-16": Upsampling(256, 128, 8, 4, 2, 1),
    "dcgan-32": Upsampling(128, 64, 16, 4, 2, 1),
    "dcgan-64": Upsampling(64, 3, 32, 4, 2, 1),
    "unet": Upsampling(128, 64, 32, 2, 2, 0),
    "odd-kernel": Upsampling(128, 64, 32, 3, 2, 1, 1),
    "fcn-8s": Upsampling(21, 21, 16, 16, 8, 4),
}


#: PyTorch's gates of each kind in the order in which ONNX has them.
GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}


#: Rows, elements of a row, and how many of them: tokens to experts, and rows that are no whole vectors.
ROUTED = ((64, 128, 8), (1_024, 64, 6), (256, 65, 8))


def cases() -> Iterator[Case]:
    for name, layer in TRANSPOSED.items():
        yield Case(f"transposed-{name}", "transposed", "f32", partial(transposed, layer))
    yield Case("detector-heads", "detector-heads", "copy", partial(detector_heads, SSD300, 21))
    yield Case("topk-25600", "updates", "copy", partial(top_k, 1, 25_600, 300))
    for rows, count, k in ROUTED:
        yield Case(f"topk-{rows}x{count}", "updates", "copy", partial(top_k, rows, count, k))
    yield Case("cumsum-8x16384", "updates", "copy", partial(cumulative_sum, 8, 16_384))
    yield Case("cumsum-1x131072", "updates", "copy", partial(cumulative_sum, 1, 131_072))
    yield Case("scatter-nd-8000", "updates", "copy", partial(scatter_rows, 2_048, 8_000, 16))
    yield Case("scatter-elements-4096x64", "updates", "copy", partial(scatter_elements, 4_096, 64))
    yield Case("scatter-chain", "updates", "f32", partial(scatter_chain, 2_048, 512, 8, 4))
    for kind in GATES:
        yield Case(f"{kind}-100x128", "recurrent", "f32", partial(recurrent, kind, 100, 1, 128))
        yield Case(f"{kind}-100x16x512", "recurrent", "f32", partial(recurrent, kind, 100, 16, 512))
    yield Case("graph-layer", "updates", "f32", partial(graph_layer, 2_048, 16_384, 64))


def transposed(layer: Upsampling) -> Problem:
    """A transposed convolution and a rectifier; the useful work has no products with inserted zeros."""
    import torch

    inputs = {"x": normal(0, 1, layer.channels, layer.size, layer.size)}
    shape = (layer.channels, layer.filters, layer.kernel, layer.kernel)
    weights = normal(1, *shape, scale=1 / math.sqrt(layer.channels * layer.kernel**2 / layer.stride**2))
    attributes = {
        "strides": [layer.stride] * 2,
        "pads": [layer.padding] * 4,
        "output_padding": [layer.output_padding] * 2,
    }
    nodes = [node("ConvTranspose", ["x", "w"], "t", **attributes), node("Relu", ["t"], "y")]
    output = (1, layer.filters, layer.extent, layer.extent)
    model = onnx_model(nodes, inputs, ("y", output, np.float32), {"w": weights})

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.conv_transpose2d(
            x, w, stride=layer.stride, padding=layer.padding, output_padding=layer.output_padding
        )
        return torch.relu(y)

    flops = 2 * math.prod(shape) * layer.size**2
    return Problem(model, inputs, {"conv_transpose2d": function_module(function, weights)}, flops)


#: Height and width of a feature map, and its anchors per place.
SSD300 = ((38, 4), (19, 6), (10, 6), (5, 6), (3, 4), (1, 4))


def detector_heads(levels: tuple[tuple[int, int], ...], classes: int) -> Problem:
    """The score of every box of every level, as one list: transposed, reshaped, concatenated, through a sigmoid."""
    import torch

    inputs = {f"level{n}": normal(n, 1, boxes * classes, size, size) for n, (size, boxes) in enumerate(levels)}
    shape = np.array([1, -1, classes], np.int64)
    nodes, parts = [], []
    for name in inputs:
        nodes.append(node("Transpose", [name], f"{name}.t", perm=[0, 2, 3, 1]))
        nodes.append(node("Reshape", [f"{name}.t", "shape"], f"{name}.r"))
        parts.append(f"{name}.r")
    nodes += [node("Concat", parts, "scores", axis=1), node("Sigmoid", ["scores"], "y")]
    count = sum(size * size * boxes for size, boxes in levels)
    model = onnx_model(nodes, inputs, ("y", (1, count, classes), np.float32), {"shape": shape})

    def function(*maps: torch.Tensor) -> torch.Tensor:
        lists = [each.permute(0, 2, 3, 1).reshape(1, -1, classes) for each in maps]
        return torch.sigmoid(torch.cat(lists, 1))

    return Problem(model, inputs, {"cat": function_module(function)}, flops=4 * count * classes)


def top_k(rows: int, count: int, k: int) -> Problem:
    """The k largest of each row, in order."""
    import torch

    inputs = {"x": normal(0, rows, count)}
    wanted = np.array([k], np.int64)
    nodes = [node("TopK", ["x", "k"], "y", axis=-1)]
    nodes[0].output.append("places")
    model = onnx_model(nodes, inputs, ("y", (rows, k), np.float32), {"k": wanted})

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.topk(x, k)[0]

    return Problem(model, inputs, {"topk": function_module(function)}, flops=rows * count)


def cumulative_sum(rows: int, columns: int) -> Problem:
    import torch

    inputs = {"x": normal(0, rows, columns)}
    model = onnx_model(
        [node("CumSum", ["x", "axis"], "y")],
        inputs,
        ("y", (rows, columns), np.float32),
        {"axis": np.array(1, np.int64)},
    )
    return Problem(model, inputs, {"cumsum": function_module(partial(torch.cumsum, dim=1))}, flops=rows * columns)


def _places(seed: int, high: int, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(0, high, shape).astype(np.int64)


def scatter_rows(rows: int, updates: int, columns: int) -> Problem:
    """``data[index[n]] += update[n]`` for rows; indices repeat."""
    inputs = {
        "data": normal(0, rows, columns),
        "index": _places(1, rows, updates, 1),
        "update": normal(2, updates, columns),
    }
    scatter = node("ScatterND", ["data", "index", "update"], "y", reduction="add")
    model = onnx_model([scatter], inputs, ("y", (rows, columns), np.float32))

    def function(data: torch.Tensor, index: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        return data.index_add(0, index[:, 0], update)

    return Problem(model, inputs, {"index_add": function_module(function)}, flops=updates * columns)


def scatter_chain(rows: int, columns: int, updates: int, times: int) -> Problem:
    """Some rows of a product replaced, several times."""
    inputs: dict[str, Array] = {"x": normal(0, rows, 32)}
    weights = normal(1, 32, columns, scale=32**-0.5)
    nodes = [node("MatMul", ["x", "w"], "t0")]
    for number in range(times):
        places = np.random.default_rng(number).permutation(rows)[:updates, None]
        inputs[f"index{number}"] = places.astype(np.int64)
        inputs[f"update{number}"] = normal(2 + number, updates, columns)
        result = f"t{number + 1}" if number < times - 1 else "y"
        nodes.append(node("ScatterND", [f"t{number}", f"index{number}", f"update{number}"], result))
    model = onnx_model(nodes, inputs, ("y", (rows, columns), np.float32), {"w": weights})

    def function(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        result = x @ rest[-1]
        for index, update in zip(rest[0:-1:2], rest[1:-1:2], strict=True):
            result[index[:, 0]] = update
        return result

    return Problem(model, inputs, {"index_put": function_module(function, weights)}, 2 * rows * 32 * columns)


def scatter_elements(rows: int, columns: int) -> Problem:
    """``data[index[i, j], j] += update[i, j]``; indices repeat."""
    inputs = {
        "data": normal(0, rows, columns),
        "index": _places(1, rows, rows, columns),
        "update": normal(2, rows, columns),
    }
    scatter = node("ScatterElements", ["data", "index", "update"], "y", axis=0, reduction="add")
    model = onnx_model([scatter], inputs, ("y", (rows, columns), np.float32))

    def function(data: torch.Tensor, index: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        return data.scatter_add(0, index, update)

    return Problem(model, inputs, {"scatter_add": function_module(function)}, flops=rows * columns)


def graph_layer(nodes_: int, edges: int, channels: int) -> Problem:
    """One layer of message passing: gather along edges, a product, a rectifier, a sum at each edge's end."""
    import torch

    inputs: dict[str, Array] = {
        "x": normal(0, nodes_, channels),
        "source": _places(1, nodes_, edges),
        "target": _places(2, nodes_, edges, 1),
    }
    constants: dict[str, Array] = {
        "w": normal(3, channels, channels, scale=1 / math.sqrt(channels)),
        "zeros": np.zeros((nodes_, channels), np.float32),
    }
    steps: list[Any] = [
        node("Gather", ["x", "source"], "g", axis=0),
        node("MatMul", ["g", "w"], "m"),
        node("Relu", ["m"], "r"),
        node("ScatterND", ["zeros", "target", "r"], "y", reduction="add"),
    ]
    model = onnx_model(steps, inputs, ("y", (nodes_, channels), np.float32), constants)

    def function(
        x: torch.Tensor, source: torch.Tensor, target: torch.Tensor, w: torch.Tensor, zeros: torch.Tensor
    ) -> torch.Tensor:
        return zeros.index_add(0, target[:, 0], torch.relu(x[source] @ w))

    return Problem(model, inputs, {"message": function_module(function, *constants.values())}, 2 * edges * channels**2)


def recurrent(kind: str, steps: int, batch: int, hidden: int) -> Problem:
    """One layer over a sequence; the output of every step."""
    import torch

    order = GATES[kind]
    inputs = {"x": normal(0, steps, batch, hidden)}
    shapes = ((len(order) * hidden, hidden),) * 2 + ((len(order) * hidden,),) * 2
    w_x, w_h, b_x, b_h = (normal(seed, *shape, scale=hidden**-0.5) for seed, shape in enumerate(shapes, 1))

    def gates(array: Array) -> Array:
        """The array with its gates in the order of ONNX."""
        return np.concatenate([np.split(array, len(order))[gate] for gate in order])[None]

    constants = {"W": gates(w_x), "R": gates(w_h), "B": np.concatenate([gates(b_x), gates(b_h)], 1)}
    extra = {"linear_before_reset": 1} if kind == "gru" else {}
    nodes = [
        node(kind.upper(), ["x", "W", "R", "B"], "states", hidden_size=hidden, **extra),
        node("Squeeze", ["states", "direction"], "y"),
    ]
    constants["direction"] = np.array([1], np.int64)
    model = onnx_model(nodes, inputs, ("y", (steps, batch, hidden), np.float32), constants)
    layer = (torch.nn.LSTM if kind == "lstm" else torch.nn.GRU)(hidden, hidden)
    with torch.no_grad():
        for parameter, array in zip(layer.parameters(), (w_x, w_h, b_x, b_h), strict=True):
            parameter.copy_(torch.from_numpy(array))
    flops = 2 * steps * batch * len(order) * 2 * hidden**2
    return Problem(model, inputs, {kind: _first(layer)}, flops)


def _first(layer: torch.nn.Module) -> torch.nn.Module:
    """The layer without its final states."""
    import torch

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.layer(x)[0]
            return result

    return First()
