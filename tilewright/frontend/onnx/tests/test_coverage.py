"""Every operator of ONNX has an importer, a definition by others, or a reason why it has neither."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.errors import Unsupported
from tilewright.expr.evaluate import evaluate
from tilewright.frontend.onnx import import_model
from tilewright.frontend.onnx.refusals import OPEN, REASONS, refusal
from tilewright.frontend.onnx.registry import load_all

onnx = pytest.importorskip("onnx")
helper = onnx.helper


def operators() -> dict[str, bool]:
    """The operators of ONNX itself, and whether it defines them by others."""
    newest = {schema.name: schema for schema in onnx.defs.get_all_schemas() if not schema.domain}
    return {
        name: schema.has_function or schema.has_context_dependent_function
        for name, schema in newest.items()
        if not schema.deprecated
    }


def test_every_operator_is_covered() -> None:
    imported = {name for domain, name in load_all() if not domain}
    missing = {name for name, defined in operators().items() if not defined and name not in imported}
    assert missing == (REASONS.keys() | OPEN) & operators().keys()
    assert not imported & (REASONS.keys() | OPEN)


def test_a_refusal_says_why() -> None:
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores"], ["kept"])
    inputs = [
        helper.make_tensor_value_info(name, 1, shape) for name, shape in (("boxes", [1, 5, 4]), ("scores", [1, 2, 5]))
    ]
    graph = helper.make_graph([node], "boxes", inputs, [helper.make_tensor_value_info("kept", 7, None)])
    with pytest.raises(Unsupported, match="the shape of the result depends on data"):
        import_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9))
    assert refusal("DeformConv", "") == refusal("StringSplit", "com.example") == "this operator has no importer"


def run(node: object, **inputs: np.ndarray) -> list[np.ndarray]:
    """The results of one node whose inputs called c… are constants."""
    held = [onnx.numpy_helper.from_array(a, name) for name, a in inputs.items() if name.startswith("c")]
    given = {name: a for name, a in inputs.items() if not name.startswith("c")}
    code = helper.np_dtype_to_tensor_dtype
    infos = [helper.make_tensor_value_info(name, code(a.dtype), a.shape) for name, a in given.items()]
    kind = code(next(iter(inputs.values())).dtype)
    outputs = [helper.make_tensor_value_info(name, kind, None) for name in node.output]  # type: ignore[attr-defined]
    graph = helper.make_graph([node], "one", infos, outputs, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return evaluate(import_model(model), given)


@pytest.mark.parametrize("length", [1, 6, 7, 90])
@pytest.mark.parametrize("padded", [0, 3, -2])
def test_transforms_of_real_and_complex_numbers(length: int, padded: int) -> None:
    random = np.random.default_rng(length)
    count = max(length + padded, 1)
    x = random.standard_normal((2, length, 3, 2))
    size, axis = np.array(count, np.int64), np.array(1, np.int64)
    number = x[..., 0] + 1j * x[..., 1]

    def transformed(values: np.ndarray, **attributes: int) -> np.ndarray:
        (found,) = run(helper.make_node("DFT", ["x", "c0", "c1"], ["y"], **attributes), x=values, c0=size, c1=axis)
        return found[..., 0] + 1j * found[..., 1]

    np.testing.assert_allclose(transformed(x), np.fft.fft(number, count, axis=1), atol=1e-9)
    np.testing.assert_allclose(transformed(x, inverse=1), np.fft.ifft(number, count, axis=1), atol=1e-9)
    half = transformed(x[..., :1].copy(), onesided=1)
    np.testing.assert_allclose(half, np.fft.rfft(x[..., 0], count, axis=1), atol=1e-9)


def test_unique_values_of_constants() -> None:
    x = np.array([[3, 1, 1], [2, 3, 1]], np.int64)
    outputs = ["y", "first", "inverse", "counts"]
    found = run(helper.make_node("Unique", ["c"], outputs, sorted=0), c=x)
    for got, want in zip(found, ([3, 1, 2], [0, 1, 3], [0, 1, 1, 2, 0, 1], [2, 3, 1]), strict=True):
        np.testing.assert_array_equal(got, want)
    (found_rows,) = run(helper.make_node("Unique", ["c"], ["y"], axis=1), c=x[:, [0, 1, 0]])
    np.testing.assert_array_equal(found_rows, [[1, 3], [3, 2]])
    with pytest.raises(Unsupported, match="must be known when compiling"):
        run(helper.make_node("Unique", ["x"], ["y"]), x=x)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_determinants(rows: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, rows, rows))
    (found,) = run(helper.make_node("Det", ["x"], ["y"]), x=x)
    np.testing.assert_allclose(found, np.linalg.det(x), atol=1e-12)
