"""What import_module and import_fx make of modules as a whole, and what they refuse."""

from __future__ import annotations

import logging
import sys
from typing import Any

import numpy as np
import pytest

from tilewright.errors import InvalidArgument, MissingExtra, Unsupported
from tilewright.expr.evaluate import evaluate
from tilewright.frontend.onnx.problems import UnsupportedModel
from tilewright.frontend.torch import import_fx, import_module
from tilewright.frontend.torch.element_types import array_of, check_tensor, dtype_of, torch_dtype

torch = pytest.importorskip("torch")
logging.getLogger("torch.__trace").setLevel(logging.WARNING)


class Several(torch.nn.Module):
    """Nested inputs and outputs, a buffer, a constant, an unused parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
        self.unused = torch.nn.Parameter(torch.ones(100))
        self.register_buffer("offset", torch.tensor([5, 6, 7]), persistent=False)

    def forward(self, x: Any, pair: Any, scale: float = 2.0) -> Any:
        with torch.no_grad():
            y = x @ self.weight * scale + self.offset
        return {"y": y, "both": (y, pair[0] + torch.tensor([1.0, 2.0])), "same": pair[1]}


def test_names_and_order_of_inputs_and_outputs() -> None:
    x, a, b = torch.randn(4, 2), torch.randn(2), torch.randn(1)
    graph = import_module(Several(), {"x": x, "pair": [a, b]}, name="several")
    assert graph.name == "several"
    assert [(t.name, t.shape) for t in graph.inputs] == [("x", (4, 2)), ("pair_0", (2,)), ("pair_1", (1,))]
    assert {"weight", "offset"} <= set(graph.constants)
    assert "unused" not in graph.constants
    expected = torch.utils._pytree.tree_leaves(Several()(x, [a, b]))
    found = evaluate(graph, [array_of(v) for v in (x, a, b)])
    assert len(found) == len(expected) == 4
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-6, atol=1e-5)  # sums that may cancel


class Pair(torch.nn.Module):
    """Two inputs that are not exchangeable, and a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), 5.0))

    def forward(self, a: Any, b: Any) -> Any:
        return a * 2 - b * self.weight


@pytest.mark.parametrize("example", ["one tensor twice", "one by name", "a weight"])
def test_inputs_stay_apart_whose_examples_are_one_tensor(example: str) -> None:
    module, x = Pair(), torch.ones(3)
    inputs = {"one tensor twice": (x, x), "one by name": {"a": x, "b": x}, "a weight": (module.weight, x)}[example]
    graph = import_module(module, inputs)
    a, b = np.arange(3, dtype=np.float32), np.full(3, 7, np.float32)
    np.testing.assert_array_equal(evaluate(graph, [a, b])[0], a * 2 - b * 5)


def test_numbers_among_the_inputs_are_fixed() -> None:
    x, pair = torch.randn(4, 2), [torch.randn(2), torch.randn(1)]
    module = Several()
    graph = import_module(module, (x, pair, 3.0))
    assert len(graph.inputs) == 3
    (found, *_) = evaluate(graph, [array_of(v) for v in (x, *pair)])
    np.testing.assert_allclose(found, module(x, pair, 3.0)["y"].numpy(), rtol=1e-6, atol=1e-5)  # sums that may cancel


def test_constants_share_memory_and_cannot_be_written() -> None:
    module = torch.nn.Linear(3, 2)
    graph = import_module(module, torch.randn(1, 3))
    weight = graph.constants["weight"]
    assert weight.__array_interface__["data"][0] == module.weight.data_ptr()
    with pytest.raises(ValueError, match="read-only"):
        weight[0, 0] = 1


def test_fx_inputs_can_be_made_constants() -> None:
    gm = torch.fx.symbolic_trace(lambda x, w, b: (torch.nn.functional.linear(x, w, b), 3, w.sum()))
    x, w, b = torch.randn(2, 3), torch.randn(4, 3), torch.randn(4)
    gm.graph.output_node().args = (gm.graph.output_node().args[0][::2],)
    gm.recompile()
    graph = import_fx(gm, [x, w, b], constants=(1, 2))
    assert len(graph.inputs) == 1
    assert sorted(array.shape for array in graph.constants.values()) == [(4,), (4, 3)]
    found = evaluate(graph, [array_of(x)])
    np.testing.assert_allclose(found[0], (x @ w.T + b).numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], w.sum().numpy(), rtol=1e-5)


class Bad(torch.nn.Module):
    """Everything that has to be refused, at once."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: Any) -> Any:
        self.calls.add_(1)
        noise = torch.rand_like(x)
        y = torch.special.airy_ai(x)
        z = torch.nn.functional.dropout(x, 0.5, training=True)
        return x + noise + self.calls, y.sum(), z.exp(), x.cosh()


def test_everything_unsupported_is_listed_at_once() -> None:
    with pytest.raises(UnsupportedModel) as caught:
        import_module(Bad(), (torch.randn(2, 3),))
    reasons = {problem.operator: problem.reason for problem in caught.value.problems}
    assert reasons["aten.special_airy_ai.default"] == "this operator has no importer"
    assert reasons["buffer_mutation"] == "changes a tensor in place that outlives the call"
    assert "no importer" in reasons["aten.rand_like.default"] or "aten.rand" in str(reasons)
    assert any("dropout" in operator for operator in reasons)
    assert not any("cosh" in operator or "exp" in operator for operator in reasons)  # fine, or only follow
    assert str(caught.value).startswith(f"Bad: error[unsupported]: {len(caught.value.problems)} nodes:\n")


def test_training_mode_is_refused_with_advice() -> None:
    module = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 1), torch.nn.BatchNorm1d(3))
    with pytest.raises(Unsupported, match=r"updates of running statistics \(module\.eval\(\)\)"):
        import_module(module.train(), (torch.randn(2, 2, 4),))


class Branches(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x + 1 if x.sum() > 0 else x


def test_what_torch_cannot_capture_is_unsupported() -> None:
    with pytest.raises(Unsupported, match=r"Branches: error.*torch\.export cannot capture this module"):
        import_module(Branches(), (torch.randn(2),))


@pytest.mark.parametrize(
    ("module", "inputs", "message"),
    [
        (lambda x: x, (torch.ones(1),), "module: error.*got a function"),
        (torch.nn.ReLU(), 3, "example_inputs: error.*got a int"),
        (torch.nn.ReLU(), (torch.ones(1), torch.ones(1)), "cannot capture"),
        (torch.nn.ReLU(), (torch.ones(2).to(torch.complex64),), "element type complex64"),
    ],
)
def test_wrong_arguments(module: Any, inputs: Any, message: str) -> None:
    with pytest.raises((InvalidArgument, Unsupported), match=message):
        import_module(module, inputs)


def test_sparse_tensors_are_refused() -> None:
    with pytest.raises(Unsupported, match="sparse_coo"):
        check_tensor(torch.eye(3).to_sparse())


def test_missing_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"pip install 'tilewright\[torch\]'"):
        import_module(object(), ())


def test_importers_are_of_operators_that_exist() -> None:
    from tilewright.frontend.torch.registry import load_all

    for name in load_all():
        namespace, packet, overload = name.split(".")
        if namespace == "aten":  # others exist once their package is imported
            assert overload in getattr(torch.ops.aten, packet).overloads(), name


def test_element_types_there_and_back() -> None:
    for name in ("f32", "f64", "f16", "bf16", "bool", "i8", "i16", "i32", "i64", "u8"):
        assert dtype_of(torch_dtype(name)) == name
    values = torch.tensor([[1.5, -2.0], [0.25, 3.0]], dtype=torch.bfloat16).t()
    np.testing.assert_array_equal(array_of(values).astype(np.float32), values.float().numpy())
    assert array_of(torch.tensor(2.5, dtype=torch.bfloat16)).shape == ()


def test_numbers_taken_out_of_tensors_stay_tensors() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: Any, n: Any, i: Any) -> Any:
            scale = n.item()
            return x * scale + 1 / (scale + 2), i * scale, x.clamp(max=scale) - i.sum().item()

    x, n, i = torch.randn(3, 5), torch.tensor([0.7]), torch.arange(4)
    graph = import_module(Scaled(), (x, n, i))
    for found, want in zip(evaluate(graph, [array_of(v) for v in (x, n, i)]), Scaled()(x, n, i), strict=True):
        assert found.dtype == want.numpy().dtype
        np.testing.assert_allclose(found, want.numpy(), rtol=1e-5, atol=1e-6)


def test_a_number_that_has_to_be_known_is_refused_where_it_is_computed() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: Any, n: Any) -> Any:
            return torch.add(x, x, alpha=n.item())

    with pytest.raises(UnsupportedModel, match="alpha is a number that is computed"):
        import_module(Scaled(), (torch.randn(3), torch.tensor(0.5)))
