"""DFT against NumPy: axes, lengths, real and complex signals, one side, the inverse, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.errors import CompileError
from tilewright.expr.evaluate import evaluate

pytest.importorskip("onnx")

from onnx import TensorProto, helper

from tilewright.frontend.onnx import import_model


def model_of(shape: tuple[int, ...], opset: int, axis: int, length: int | None, **attributes: int) -> Any:
    inputs, held = ["x"], []
    if length is not None:
        inputs.append("length")
        held.append(helper.make_tensor("length", TensorProto.INT64, [], [length]))
    if opset >= 20:
        inputs += [""] * (2 - len(inputs)) + ["axis"]
        held.append(helper.make_tensor("axis", TensorProto.INT64, [], [axis]))
    else:
        attributes["axis"] = axis
    node = helper.make_node("DFT", inputs, ["y"], **attributes)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, s) for name, s in (("x", shape), ("y", None)))
    graph = helper.make_graph([node], "dft", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("length", [None, 4, 9])
@pytest.mark.parametrize(("parts", "inverse", "onesided"), [(1, 0, 0), (1, 0, 1), (2, 0, 0), (2, 1, 0), (1, 1, 0)])
def test_transforms(opset: int, length: int | None, parts: int, inverse: int, onesided: int) -> None:
    x = np.random.default_rng(0).standard_normal((3, 7, 2, parts)).astype(np.float32)
    signal = x[..., 0] + 1j * x[..., 1] if parts == 2 else x[..., 0].astype(complex)
    expected = (np.fft.ifft if inverse else np.fft.fft)(signal, length, axis=1)
    if onesided:
        expected = expected[:, : expected.shape[1] // 2 + 1]
    graph = import_model(model_of(x.shape, opset, 1, length, inverse=inverse, onesided=onesided))
    (found,) = evaluate(graph, [x])
    np.testing.assert_allclose(found, np.stack([expected.real, expected.imag], -1), atol=1e-5)


@pytest.mark.parametrize("length", [None, 1, 5, 6, 9])
def test_real_signals_from_one_side(length: int | None) -> None:
    x = np.random.default_rng(0).standard_normal((3, 4, 2, 2)).astype(np.float32)
    expected = np.fft.irfft(x[..., 0] + 1j * x[..., 1], length, axis=1)
    (found,) = evaluate(import_model(model_of(x.shape, 20, 1, length, inverse=1, onesided=1)), [x])
    np.testing.assert_allclose(found, expected[..., None], atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "axis", "attributes", "reason"),
    [
        ((3, 4, 3), 1, {}, "a last dimension of 1"),
        ((3, 4, 2), 2, {}, "parts of complex numbers"),
        ((3, 4, 2), 1, {"onesided": 1}, "one-sided transform"),
        ((3, 4, 1), 1, {"onesided": 1, "inverse": 1}, "complex numbers: a last dimension of 2"),
    ],
)
def test_refusals(shape: tuple[int, ...], axis: int, attributes: dict[str, int], reason: str) -> None:
    with pytest.raises(CompileError, match=reason):
        import_model(model_of(shape, 20, axis, None, **attributes))
