"""The example networks: sane activations, reproducible weights, clean ONNX files that compute the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from examples.networks import NETWORKS, build, export_onnx  # noqa: E402
from examples.networks.tests.built import built  # noqa: E402

SMALL = ("mobilenet-v2", "bert-layer")  # a convolutional network with batch norms and a transformer, both quick


@pytest.mark.parametrize("name", [name for name in NETWORKS if not name.startswith(("bert-base", "vit"))])
def test_outputs_are_of_order_one(name: str) -> None:
    module, inputs = built(name)
    assert not module.training
    with torch.no_grad():
        output = module(*inputs.values())
    assert 0.1 < output.std() < 10


def test_build_is_reproducible_and_leaves_the_random_state() -> None:
    before = torch.random.get_rng_state()
    first, second = (build("bert-layer")[0].state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert torch.equal(before, torch.random.get_rng_state())


def test_unknown_network_is_refused() -> None:
    with pytest.raises(ValueError, match="no network 'alexnet'; there are resnet18"):
        build("alexnet")


@pytest.mark.parametrize("name", SMALL)
def test_exported_file_computes_the_same(name: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    path = tmp_path / "network.onnx"
    export_onnx(name, str(path))
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    module, inputs = built(name)
    assert [value.name for value in model.graph.input] == list(inputs)
    assert [value.name for value in model.graph.output] == ["output"]
    for value in (*model.graph.input, *model.graph.output):
        assert all(dim.dim_value > 0 for dim in value.type.tensor_type.shape.dim)
    assert b"/networks/" not in model.SerializeToString()  # no source paths left

    norms = sum(isinstance(layer, torch.nn.BatchNorm2d) for layer in module.modules())
    assert Counter(node.op_type for node in model.graph.node)["BatchNormalization"] == norms

    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (actual,) = session.run(None, {name: value.numpy() for name, value in inputs.items()})
    with torch.no_grad():
        expected = module.double()(*(value.double() for value in inputs.values())).numpy()
    assert np.abs(actual - expected).max() <= 1e-4 * np.abs(expected).max()
