"""The five networks of Table 5.1 as tensor expressions, standard and as AMOS's code writes them, batch 1, f16.

Groups are loops of their own, so that every index is affine. Batch norms are the scale and offset that they are when a
network runs; weights are inputs of the graph. The same networks as PyTorch modules are in `examples/networks`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

from tilewright.dataclass import dataclass
from tilewright.expr.core import Axis, Compute, Expr, Tensor, apply, static_shape
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.names import unique
from tilewright.expr.ops import conv, elementwise, linalg, norm, pool, shape
from tilewright.graph.groups import form_groups
from tilewright.graph.passes.table import run_passes, simplifying, storing

DTYPE = "f16"
ACCUMULATOR = "f32"


@dataclass(frozen=True)
class Network:
    """A row of Table 5.1: operators and mapped operators as published, and what the compiler XLA mapped of them.

    `build` makes the graph, of the standard network or of the one in AMOS's code (`compat`).
    """

    name: str
    operators: int
    xla: int
    xla_fails_on: str
    mapped: int
    derivation: str
    build: Callable[[bool], Graph]


class _Builder(GraphBuilder):
    """Layers: what computes, and the element-wise work behind it."""

    def weights(self, *extents: int) -> Tensor:
        return self.input(unique("w", {tensor.name for tensor in self.inputs}), extents, DTYPE)

    def convolve(
        self, x: Tensor, filters: int, kernel: int, stride: int = 1, groups: int = 1, active: bool = True
    ) -> Tensor:
        """A convolution that keeps the size (or divides it by `stride`), its batch norm, and a ReLU if `active`."""
        batch, channels, *size = static_shape(x.shape)
        if groups == 1:
            y = self._convolution(x, self.weights(filters, channels, kernel, kernel), stride)
            return self.normalise(y, active)
        split = shape.reshape(x, (batch, groups, channels // groups, *size), name="split")
        y = self._convolution(
            split, self.weights(groups, filters // groups, channels // groups, kernel, kernel), stride, "split"
        )
        _, _, _, *size = static_shape(y.shape)
        return self.normalise(shape.reshape(y, (batch, filters, *size), name="merge"), active)

    def _convolution(self, x: Tensor, w: Tensor, stride: int, channels: conv.Channels = "flat") -> Tensor:
        return conv.conv(
            x, w, strides=stride, pads=static_shape(w.shape)[-1] // 2, channels=channels, accumulate=ACCUMULATOR,
            name="conv",
        )  # fmt: skip

    def normalise(self, x: Tensor, active: bool) -> Tensor:
        """Scale and offset per channel, and a ReLU if `active`."""
        (channels,) = static_shape(x.shape[1:2])
        scale, offset = self.weights(channels), self.weights(channels)
        axes = elementwise.axes_of(x.shape)
        body: Expr = x[axes] * scale[axes[1]] + offset[axes[1]]
        return elementwise.emit(self, axes, apply("max", body, 0) if active else body, name="norm")

    def join(self, x: Tensor, y: Tensor) -> Tensor:
        return elementwise.binary(x, y, "add")

    def relu(self, x: Tensor) -> Tensor:
        return elementwise.map_elements([x], lambda v: apply("max", v, 0), name="relu")

    def dense(self, x: Tensor, outputs: int) -> Tensor:
        """A fully connected layer with a bias."""
        (inputs,) = static_shape(x.shape[-1:])
        w, bias = self.weights(outputs, inputs), self.weights(outputs)
        return linalg.linear(x, w, bias, accumulate=ACCUMULATOR, name="dense")

    def classify(self, x: Tensor, classes: int = 1000) -> Graph:
        """The mean over the image, a fully connected layer, the end."""
        pooled = pool.global_average_pool(x)
        return self.finish([self.dense(shape.flatten(pooled), classes)])


def _image(b: _Builder) -> Tensor:
    return b.input("image", (1, 3, 224, 224), DTYPE)


def shufflenet(compat: bool = False) -> Graph:
    """ShuffleNet v1 with 3 groups (Zhang et al. 2018): 1 + 16 units of 3 + 1 products; both variants are the same."""
    b = _Builder("shufflenet")
    groups = 3
    x = pool.max_pool(b.convolve(_image(b), 24, 3, stride=2), (3, 3), strides=2, pads=1)
    for stage, (filters, units) in enumerate(((240, 4), (480, 8), (960, 4))):
        for unit in range(units):
            (entering,) = static_shape(x.shape[1:2])
            first = unit == 0
            leaving = filters - entering if first else filters
            middle = leaving // 4
            y = b.convolve(x, middle, 1, groups=1 if first and stage == 0 else groups)
            y = _shuffle(y, groups)
            y = b.convolve(y, middle, 3, stride=2 if first else 1, groups=middle, active=False)
            y = b.convolve(y, leaving, 1, groups=groups, active=False)
            if first:
                x = b.relu(shape.concat([pool.average_pool(x, (3, 3), strides=2, pads=1), y], axis=1))
            else:
                x = b.relu(b.join(x, y))
    return b.classify(x)


def _shuffle(x: Tensor, groups: int) -> Tensor:
    """Neighbouring channels of one group move to different groups."""
    batch, channels, *size = static_shape(x.shape)
    split = shape.reshape(x, (batch, groups, channels // groups, *size))
    turned = shape.transpose(split, (0, 2, 1, 3, 4))
    return shape.reshape(turned, (batch, channels, *size))


def resnet50(compat: bool = False) -> Graph:
    """ResNet-50 (He et al. 2016): 53 convolutions and a classifier; both variants are the same."""
    b = _Builder("resnet50")
    x = pool.max_pool(b.convolve(_image(b), 64, 7, stride=2), (3, 3), strides=2, pads=1)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = b.convolve(x, width, 1)
            y = b.convolve(y, width, 3, stride)
            y = b.convolve(y, 4 * width, 1, active=False)
            shortcut = x if block else b.convolve(x, 4 * width, 1, stride, active=False)
            x = b.relu(b.join(y, shortcut))
    return b.classify(x)


def mobilenet(compat: bool = False) -> Graph:
    """MobileNet-V1 (Howard et al. 2017): 27 convolutions and a classifier; AMOS's code makes the stem separable too."""
    b = _Builder("mobilenet")
    layers = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))

    def separable(x: Tensor, filters: int, stride: int) -> Tensor:
        (channels,) = static_shape(x.shape[1:2])
        return b.convolve(b.convolve(x, channels, 3, stride, groups=channels), filters, 1)

    x = separable(_image(b), 32, 2) if compat else b.convolve(_image(b), 32, 3, stride=2)
    for filters, stride in layers:
        x = separable(x, filters, stride)
    return b.classify(x)


def bert(compat: bool = False, *, layers: int = 12, length: int = 512) -> Graph:
    """The encoder of BERT base (Devlin et al. 2019): 8 products per layer.

    AMOS's code divides the attention scores within the sum, the standard network after it.
    """
    b = _Builder("bert")
    width, heads = 768, 12
    x = b.input("embeddings", (1, length, width), DTYPE)
    for _ in range(layers):
        query, key, value = (_heads(b.dense(x, width), heads) for _ in range(3))
        scores = _scores(b, query, key, within=compat)
        mixed = linalg.matmul(norm.softmax(scores), value, accumulate=ACCUMULATOR, name="mix")
        joined = shape.reshape(shape.transpose(mixed, (0, 2, 1, 3)), (1, length, width))
        x = _normalised(b, b.join(x, b.dense(joined, width)))
        inner = elementwise.map_elements([b.dense(x, 4 * width)], _gelu, name="gelu")
        x = _normalised(b, b.join(x, b.dense(inner, width)))
    return b.finish([x])


def _heads(x: Tensor, heads: int) -> Tensor:
    batch, length, width = static_shape(x.shape)
    return shape.transpose(shape.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


def _scores(b: _Builder, query: Tensor, key: Tensor, *, within: bool) -> Tensor:
    """``sum q * k / sqrt(d)``, divided `within` the sum or after it."""
    batch, heads, length, depth = static_shape(query.shape)
    scale = sqrt(depth)
    if not within:
        products = linalg.matmul(query, key, transpose_b=True, accumulate=ACCUMULATOR, name="scores")
        return elementwise.map_elements([products], lambda v: v / scale, name="scaled")
    axes = (Axis("n", batch), Axis("h", heads), Axis("i", length), Axis("j", length))
    n, h, i, j = axes
    k = Axis("k", depth)
    body = query[n, h, i, k].cast(ACCUMULATOR) * key[n, h, j, k].cast(ACCUMULATOR) / scale
    products = elementwise.emit(b, axes, body, reduce=[k], accum="sum", name="scores")
    return elementwise.map_elements([products], lambda v: v.cast(DTYPE), name="rounded")


def _gelu(v: Expr) -> Expr:
    return v * 0.5 * (apply("erf", v * sqrt(0.5)) + 1)


def _normalised(b: _Builder, x: Tensor) -> Tensor:
    (width,) = static_shape(x.shape[-1:])
    return norm.layer_norm(x, b.weights(width), b.weights(width))


def mi_lstm(compat: bool = False, *, inputs: int = 512, width: int = 1024, classes: int = 10) -> Graph:
    """One step of MI-LSTM (Wu et al. 2016) and its classifier: 8 + 1 products; both variants are the same."""
    b = _Builder("mi_lstm")
    x, hidden = b.input("x", (1, inputs), DTYPE), b.input("hidden", (1, width), DTYPE)
    cell = b.input("cell", (1, width), DTYPE)
    gates = []
    for _ in range(4):
        read = linalg.linear(x, b.weights(width, inputs), accumulate=ACCUMULATOR, name="read")
        kept = linalg.linear(hidden, b.weights(width, width), accumulate=ACCUMULATOR, name="kept")
        scales = [b.weights(width) for _ in range(3)]
        gates.append(
            elementwise.map_elements(
                [read, kept, *scales], lambda r, u, a, p, q: a * r * u + p * r + q * u, name="gate"
            )
        )
    forget, enter, leave, update = gates
    cell = elementwise.map_elements(
        [cell, forget, enter, update], lambda c, f, e, u: _sigmoid(f) * c + _sigmoid(e) * _tanh(u), name="cell"
    )
    hidden = elementwise.map_elements([cell, leave], lambda c, o: _sigmoid(o) * _tanh(c), name="hidden")
    return b.finish([b.dense(hidden, classes), cell])


def _sigmoid(v: Expr) -> Expr:
    return apply("sigmoid", v)


def _tanh(v: Expr) -> Expr:
    return apply("tanh", v)


#: Table 5.1 (fact), and where its numbers come from (ours).
NETWORKS: tuple[Network, ...] = (
    Network("ShuffleNet", 70, 6, "depthwise convolutions", 50, "1 + 16 units x 3 + classifier", shufflenet),
    Network("ResNet-50", 71, 15, "convolutions with a stride", 54, "53 convolutions + classifier", resnet50),
    Network("MobileNet", 30, 7, "grouped convolutions", 29, "separable stem: 14 x 2 + classifier", mobilenet),
    Network("BERT", 204, 42, "self-attention", 84, "12 x (4 projections + 1 of 2 attention products + 2)", bert),
    Network("MI-LSTM", 11, 0, "linear layers", 9, "8 products of gates + classifier", mi_lstm),
)

#: What the standard networks have where the variants differ: a plain stem, attention scores scaled after the sum.
STANDARD_MAPPED = {"MobileNet": 28, "BERT": 96}


def operators(graph: Graph) -> int:
    """Kernels that are left after our own fusion of element-wise work, counted like the operators of the table."""
    simplified = run_passes(run_passes(graph, simplifying(_is_product)), storing())
    return len(form_groups(simplified.graph, _is_product))


def _is_product(node: Compute) -> bool:
    return node.accum == "sum" and len(set(node.inputs())) == 2
