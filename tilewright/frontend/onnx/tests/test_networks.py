"""Networks exported from PyTorch: importer and evaluator against the module itself. All with `--full`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import torch
import torch.nn.functional as f

from examples.networks import NETWORKS, build
from examples.networks.bert import WIDTH, Encoder
from examples.networks.export import export_module
from examples.networks.mobilenet_v2 import InvertedResidual
from examples.networks.resnet import basic_block, convolution
from tests.covering import FULL
from tilewright.expr.evaluate import evaluate
from tilewright.frontend.onnx import import_model


def agrees(module: Any, inputs: dict[str, Any], path: Path, opset: int = 18) -> None:
    """The imported graph has the module's inputs and its output, to a relative error of 1e-4 of the largest value."""
    export_module(module, inputs, path, opset)
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


class Wrapped(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


class LastOf(torch.nn.Module):
    """The first output of a module that has several."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first: torch.Tensor = self.module(x)[0]
        return first


MODULES: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "lstm": (lambda: LastOf(torch.nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True)), (2, 3, 4)),
    "gru": (lambda: LastOf(torch.nn.GRU(4, 5)), (3, 2, 4)),
    "transformer": (lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 4, 8)),
    "transposed convolution": (lambda: torch.nn.ConvTranspose2d(3, 4, 3, 2, 1, 1), (1, 3, 5, 5)),
    "bilinear": (lambda: Wrapped(lambda x: f.interpolate(x, scale_factor=2, mode="bilinear")), (1, 2, 4, 5)),
    "reflection": (lambda: Wrapped(lambda x: f.pad(x, (1, 2, 0, 1), mode="reflect")), (1, 2, 4, 4)),
    "attention": (lambda: Wrapped(lambda x: f.scaled_dot_product_attention(x, x, x, is_causal=True)), (1, 2, 4, 8)),
    "running sum": (lambda: Wrapped(lambda x: x.cumsum(1).topk(3, dim=-1)[0]), (3, 7)),
    "parts": (lambda: Wrapped(lambda x: torch.cat([x[:, ::2], x.flip(1)], 1).roll(1, 0)), (3, 6)),
}


@pytest.mark.covering(1)
@pytest.mark.skipif(not FULL, reason="minutes: with --full")
@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("name", MODULES)
def test_module(name: str, opset: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    build_module, shape = MODULES[name]
    agrees(build_module().eval(), {"x": torch.randn(shape)}, tmp_path / "model.onnx", opset)


@pytest.mark.skipif(not FULL, reason="minutes: with --full")
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str, tmp_path: Path) -> None:
    module, inputs = build(name)
    agrees(module, inputs, tmp_path / "model.onnx")
