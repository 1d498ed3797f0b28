"""The networks whose compile time is measured, as ONNX files.

Those of `examples.networks`, DenseNet-121, and networks quantised by onnxruntime: the form with QuantizeLinear and
DequantizeLinear around every operator, int8 activations with a scale per tensor, int8 weights with a scale per filter.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch

QUANTISED = "qdq-"  # before the name of the network that is quantised
NAMES = (
    "resnet18",
    "resnet50",
    "mobilenet-v2",
    "shufflenet-v2",
    "bert-base-128",
    "vit-b16",
    "densenet121",
    "qdq-resnet18",
    "qdq-mobilenet-v2",
    "qdq-bert-base-128",
)


def write(name: str, path: Path) -> None:
    """Write the network `name` to an ONNX file. Raises ValueError for a network that is not known."""
    from examples.networks.export import export_module

    module, inputs = _build(name.removeprefix(QUANTISED))
    if not name.startswith(QUANTISED):
        export_module(module, inputs, path)
        return
    with tempfile.TemporaryDirectory() as directory:
        plain = Path(directory) / "plain.onnx"
        export_module(module, inputs, plain)
        _quantise(plain, path, {key: value.numpy() for key, value in inputs.items()})


def _build(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    import torch

    from examples.networks import SEED, build
    from examples.networks.initialise import initialise

    if name != "densenet121":
        return build(name)
    from bench.compile_time.densenet import DenseNet121

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        module, inputs = DenseNet121().eval(), {"image": torch.randn(1, 3, 224, 224)}
        initialise(module, inputs)
    return module.eval(), inputs


def _quantise(plain: Path, path: Path, inputs: dict[str, np.ndarray]) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class OneSample(CalibrationDataReader):
        def __init__(self) -> None:
            self.samples = iter([inputs])

        def get_next(self) -> dict[str, np.ndarray] | None:  # type: ignore[override]
            return next(self.samples, None)

    logging.disable(logging.WARNING)
    prepared = plain.with_name("prepared.onnx")
    quant_pre_process(plain, prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared,
        path,
        OneSample(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
    )
