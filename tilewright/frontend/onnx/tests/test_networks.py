"""Networks exported from PyTorch: importer and evaluator against the module itself. All with TILEWRIGHT_FULL=1."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import torch

from examples.networks import NETWORKS, build
from examples.networks.bert import WIDTH, Encoder
from examples.networks.export import export_module
from examples.networks.mobilenet_v2 import InvertedResidual
from examples.networks.resnet import basic_block, convolution
from tilewright.expr.evaluate import evaluate
from tilewright.frontend.onnx import import_model


def agrees(module: Any, inputs: dict[str, Any], path: Path) -> None:
    """The imported graph has the module's inputs and its output, to a relative error of 1e-4 of the largest value."""
    export_module(module, inputs, path)
    graph = import_model(path)
    assert [tensor.name for tensor in graph.inputs] == list(inputs)
    assert [tensor.name for tensor in graph.outputs] == ["output"]
    (found,) = evaluate(graph, {name: tensor.numpy() for name, tensor in inputs.items()})
    with torch.no_grad():
        expected = module(*inputs.values()).numpy()
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_encoder_layer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    agrees(Encoder(1).eval(), {"embeddings": torch.randn(1, 16, WIDTH)}, tmp_path / "model.onnx")


def test_convolutional_blocks(tmp_path: Path) -> None:
    torch.manual_seed(0)
    head = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(24, 10)]
    body = [convolution(3, 8, 3, 2), torch.nn.MaxPool2d(3, 2, 1), basic_block(8, 16, 2), InvertedResidual(16, 24, 2, 6)]
    agrees(torch.nn.Sequential(*body, *head).eval(), {"image": torch.randn(2, 3, 33, 31)}, tmp_path / "model.onnx")


@pytest.mark.skipif(not os.environ.get("TILEWRIGHT_FULL"), reason="minutes: set TILEWRIGHT_FULL=1")
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str, tmp_path: Path) -> None:
    module, inputs = build(name)
    agrees(module, inputs, tmp_path / "model.onnx")
