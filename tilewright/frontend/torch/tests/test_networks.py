"""The example networks, at sizes that the evaluator takes seconds for, agree with torch."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.expr.evaluate import evaluate
from tilewright.frontend.torch import import_module
from tilewright.frontend.torch.element_types import array_of

torch = pytest.importorskip("torch")


def _resnet18() -> tuple[Any, dict[str, Any], dict[str, Any]]:
    from examples.networks.resnet import resnet18

    return resnet18(), {"input": torch.randn(2, 3, 64, 64)}, {"input": torch.randn(1, 3, 32, 32)}


def _mobilenet_v2() -> tuple[Any, dict[str, Any], dict[str, Any]]:
    from examples.networks.mobilenet_v2 import MobileNetV2

    return MobileNetV2(), {"input": torch.randn(2, 3, 64, 64)}, {"input": torch.randn(1, 3, 17, 16)}


def _bert_tokens() -> tuple[Any, dict[str, Any], dict[str, Any]]:
    from examples.networks.bert import Bert

    module = Bert(layers=1, positions=5)
    module.tokens = torch.nn.Embedding(100, 768)
    tokens, mask = torch.randint(0, 100, (1, 5)), torch.tensor([[1, 1, 1, 1, 0]])
    return module, {"tokens": tokens, "mask": mask}, {"mask": mask, "tokens": tokens}  # in another order


def _vit() -> tuple[Any, dict[str, Any], dict[str, Any]]:
    from examples.networks.vit import ViT

    module = ViT(layers=1)
    module.positions = torch.nn.Parameter(torch.randn(1, 5, 768))
    inputs = {"image": torch.randn(1, 3, 32, 32)}
    return module, inputs, inputs


@pytest.mark.parametrize("build", [_resnet18, _mobilenet_v2, _bert_tokens, _vit])
def test_network_agrees_with_torch(build: Any) -> None:
    from examples.networks.initialise import initialise

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        module, samples, inputs = build()
        initialise(module, samples)
        module.eval()
        expected = module(**inputs).numpy()
    graph = import_module(module, inputs)
    assert {tensor.name for tensor in graph.inputs} == set(inputs)
    (found,) = evaluate(graph, {name: array_of(value) for name, value in inputs.items()})
    # Sums of up to 4608 products in f32, each side in its own order: far below what a wrong operator does.
    assert abs(found - expected).max() <= 1e-4 * abs(expected).max()
