"""Whole networks from `examples.networks`, batch 1, f32, read from their exported ONNX files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.arrays import from_torch
from bench.problem import Case, Problem

if TYPE_CHECKING:
    import torch

NAMES = (
    "resnet18",
    "resnet50",
    "mobilenet-v2",
    "shufflenet-v2",
    "efficientnet-b0",
    "bert-base-128",
    "vit-b16",
    "mi-lstm",
)


def cases() -> Iterator[Case]:
    for name in NAMES:
        yield Case(name, "networks", "f32", partial(network, name), partial(modules, name))


def network(name: str) -> Problem:
    """The useful work counts the products of convolutions and matrix products only."""
    import onnx
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from examples.networks import build
    from examples.networks.export import export_module

    module, inputs = build(name)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "network.onnx"
        export_module(module, inputs, path)
        model = onnx.load(path)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(*inputs.values())
    arrays = {key: from_torch(value) for key, value in inputs.items()}
    return Problem(model, arrays, {"eager": module}, counter.get_total_flops())


def modules(name: str) -> dict[str, torch.nn.Module]:
    """What `network` has as modules, without the export, which takes longer than all else."""
    from examples.networks import build

    return {"eager": build(name)[0]}
