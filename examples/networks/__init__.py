"""Networks with random weights, for the demo, the tests and the benchmarks (need `torch`, and `onnxscript` to export).

`build(name)` gives a module in evaluation mode and its example inputs; `export_onnx(name, path)` writes an ONNX file.
Weights follow from a fixed seed. They compute nothing useful, but activations stay as large as in a trained network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    Inputs = dict[str, torch.Tensor]

SEED = 0


def _resnet18() -> tuple[torch.nn.Module, Inputs]:
    from examples.networks.resnet import resnet18

    return resnet18(), _image()


def _resnet50() -> tuple[torch.nn.Module, Inputs]:
    from examples.networks.resnet import resnet50

    return resnet50(), _image()


def _mobilenet_v2() -> tuple[torch.nn.Module, Inputs]:
    from examples.networks.mobilenet_v2 import MobileNetV2

    return MobileNetV2(), _image()


def _efficientnet_b0() -> tuple[torch.nn.Module, Inputs]:
    from examples.networks.efficientnet_b0 import EfficientNetB0

    return EfficientNetB0(), _image()


def _shufflenet_v2() -> tuple[torch.nn.Module, Inputs]:
    from examples.networks.shufflenet_v2 import ShuffleNetV2

    return ShuffleNetV2(), _image()


def _shufflenet_v1() -> tuple[torch.nn.Module, Inputs]:
    from examples.networks.shufflenet_v1 import ShuffleNetV1

    return ShuffleNetV1(), _image()


def _mobilenet_v1(separable_stem: bool) -> tuple[torch.nn.Module, Inputs]:
    from examples.networks.mobilenet_v1 import MobileNetV1

    return MobileNetV1(separable_stem), _image()


def _bert(layers: int, sequence: int) -> tuple[torch.nn.Module, Inputs]:
    import torch

    from examples.networks.bert import WIDTH, Encoder

    return Encoder(layers), {"embeddings": torch.randn(1, sequence, WIDTH)}


def _bert_tokens(layers: int, sequence: int) -> tuple[torch.nn.Module, Inputs]:
    import torch

    from examples.networks.bert import VOCABULARY, Bert

    mask = torch.ones(1, sequence, dtype=torch.int64)
    mask[:, sequence * 3 // 4 :] = 0  # the last quarter is padding
    return Bert(layers, positions=sequence), {"tokens": torch.randint(0, VOCABULARY, (1, sequence)), "mask": mask}


def _vit_b16() -> tuple[torch.nn.Module, Inputs]:
    from examples.networks.vit import ViT

    return ViT(), _image()


def _mi_lstm(steps: int, inputs: int) -> tuple[torch.nn.Module, Inputs]:
    import torch

    from examples.networks.mi_lstm import MiLstm

    return MiLstm(inputs), {"sequence": torch.randn(steps, 1, inputs)}


def _image() -> Inputs:
    import torch

    return {"image": torch.randn(1, 3, 224, 224)}


NETWORKS: dict[str, Callable[[], tuple[torch.nn.Module, Inputs]]] = {
    "resnet18": _resnet18,
    "resnet50": _resnet50,
    "mobilenet-v2": _mobilenet_v2,
    "mobilenet-v1": lambda: _mobilenet_v1(separable_stem=False),
    "mobilenet-v1-separable": lambda: _mobilenet_v1(separable_stem=True),
    "efficientnet-b0": _efficientnet_b0,
    "shufflenet-v2": _shufflenet_v2,
    "shufflenet-v1": _shufflenet_v1,
    "bert-layer": lambda: _bert(layers=1, sequence=128),
    "bert-base-128": lambda: _bert(layers=12, sequence=128),
    "bert-base-512": lambda: _bert(layers=12, sequence=512),
    "bert-base-128-tokens": lambda: _bert_tokens(layers=12, sequence=128),
    "vit-b16": _vit_b16,
    "mi-lstm": lambda: _mi_lstm(steps=16, inputs=784),
    "mi-lstm-step": lambda: _mi_lstm(steps=1, inputs=512),
}


def build(name: str) -> tuple[torch.nn.Module, Inputs]:
    """The network `name` in evaluation mode and inputs for it by name, in the order of the module's arguments.

    Raises ValueError for a name that is not in `NETWORKS`. The caller's random state is left as it was.
    """
    import torch

    from examples.networks.initialise import initialise

    if name not in NETWORKS:
        raise ValueError(f"no network {name!r}; there are {', '.join(NETWORKS)}")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        module, inputs = NETWORKS[name]()
        initialise(module, inputs)
    return module.eval(), inputs


def export_onnx(name: str, path: str, opset: int = 18) -> None:
    """Write the network `name` to an ONNX file with static shapes and batch normalisations of their own.

    Inputs have the names that `build` gives; the output is called `output`.
    """
    from examples.networks.export import export_module

    module, inputs = build(name)
    export_module(module, inputs, path, opset)
