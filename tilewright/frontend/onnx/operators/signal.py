"""Transforms of frames of a signal, mel weights, determinants. Complex numbers are pairs in the last dimension."""

from __future__ import annotations

import numpy as np

from tilewright.errors import InvalidModel, Unsupported
from tilewright.expr.core import Expr, Tensor
from tilewright.expr.dtypes import numpy_dtype
from tilewright.expr.ops import fourier, shape
from tilewright.expr.ops.elementwise import axes_of, element, emit, map_elements
from tilewright.frontend.onnx.element_types import dtype_of
from tilewright.frontend.onnx.node import Node
from tilewright.frontend.onnx.registry import op


@op("STFT")
def short_time_transform(node: Node) -> Tensor:
    """Frames of a signal [batch, length, 1 or 2], times a window, transformed: [batch, frame, bin, 2]."""
    x = node.input(0)
    step = node.integer(1, "the step between frames")
    length = node.integer(3, "the length of a frame") if node.has(3) else None
    window = node.optional(2)
    if window is not None:
        length = node.shape(2)[0]
    if length is None or x.rank != 3 or step < 1 or not 1 <= length <= node.shape()[1]:
        raise InvalidModel(f"frames of {length} elements every {step} of {x}", help="a window, or a length that fits")
    frames = 1 + (node.shape()[1] - length) // step
    onesided = bool(node.get_int("onesided", 1))

    def framed(part: Tensor, label: str) -> Tensor:
        axes = axes_of((node.shape()[0], frames, length))
        value = part[axes[0], axes[1] * step + axes[2]]
        body = value if window is None else value * element(window, axes).cast(x.dtype)
        return emit(node.b, axes, body, name=f"{node.name}.{label}", source=node.name)

    re, im = _parts(node, x)
    parts = fourier.dft(
        framed(re, "frames.re"), None if im is None else framed(im, "frames.im"), axis=2,
        bins=length // 2 + 1 if onesided else None, name=f"{node.name}.dft",
    )  # fmt: skip
    return shape.stack(parts, axis=3, name=node.name)


def _parts(node: Node, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """The real part, and the imaginary one where the last dimension has two."""
    if not x.rank or node.shape()[-1] not in (1, 2):
        raise InvalidModel(f"real or complex numbers in {x}", help="a last dimension of 1 or 2")
    if x.dtype not in ("f32", "f64"):
        raise Unsupported(f"a transform of {x.dtype}", help="f32 or f64")

    def part(at: int, label: str) -> Tensor:
        index = lambda axes: (*axes, at)  # noqa: E731
        return shape.move(x, node.shape()[:-1], index, name=f"{node.name}.{label}")

    return part(0, "in.re"), part(1, "in.im") if node.shape()[-1] == 2 else None


@op("MelWeightMatrix")
def mel_weights(node: Node) -> Tensor:
    """Triangles over the bins of a spectrum whose corners are at equal steps of the mel scale."""
    bands = node.integer(0, "the number of bands")
    length, rate = node.integer(1, "the length"), node.integer(2, "the sample rate")
    low, high = (float(node.array(at, "the edges").reshape(())) for at in (3, 4))
    if bands < 1 or length < 1 or rate < 1 or not 0 <= low <= high:
        raise InvalidModel(f"{bands} bands of {low} to {high} Hz, {length} elements at {rate} Hz")
    edges = 2595 * np.log10(1 + np.array([low, high]) / 700)
    mel = np.arange(bands + 2) * ((edges[1] - edges[0]) / (bands + 2)) + edges[0]
    corners = ((length + 1) * (700 * (10 ** (mel / 2595) - 1)) // rate).astype(np.int64)
    weights = np.zeros((length // 2 + 1, bands))
    for band, (left, centre, right) in enumerate(zip(corners, corners[1:], corners[2:], strict=False)):
        if not right <= length // 2 + 1:
            raise InvalidModel(f"a band up to bin {right} of {length // 2 + 1}", help="a lower upper edge")
        if left == centre:
            weights[centre, band] = 1
        else:
            weights[left : centre + 1, band] = np.arange(centre - left + 1) / (centre - left)
        if right > centre:
            weights[centre:right, band] = (right - np.arange(centre, right)) / (right - centre)
    kind = dtype_of(node.get_int("output_datatype", 1))
    return node.constant(weights.astype(numpy_dtype(kind)))


@op("Det")
def determinant(node: Node) -> Tensor:
    """Of matrices up to 3 by 3, by their definition."""
    x = node.input()
    rows, columns = node.shape()[-2:] if x.rank >= 2 else (0, -1)
    if rows != columns or not rows:
        raise InvalidModel(f"determinants of {x}", help="square matrices")
    if rows > 3:
        raise Unsupported(f"determinants of {rows} by {rows} matrices", help="at most 3 by 3")

    def entry(i: int, j: int) -> Tensor:
        return shape.move(x, node.shape()[:-2], lambda axes: (*axes, i, j), name=f"{node.name}.{i}{j}")

    entries = [entry(i, j) for i in range(rows) for j in range(rows)]

    def body(*m: Expr) -> Expr:
        if rows == 1:
            return m[0]
        if rows == 2:
            return m[0] * m[3] - m[1] * m[2]
        minors = [m[4] * m[8] - m[5] * m[7], m[3] * m[8] - m[5] * m[6], m[3] * m[7] - m[4] * m[6]]
        return m[0] * minors[0] - m[1] * minors[1] + m[2] * minors[2]

    return map_elements(entries, body, name=node.name)
