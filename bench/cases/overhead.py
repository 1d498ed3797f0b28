"""The cost of a call: one kernel that adds sixteen numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bench.cases.definition import function_module, node, normal, onnx_model
from bench.problem import Case, Problem


def cases() -> Iterator[Case]:
    yield Case("call-overhead", "overhead", "none", add)


def add() -> Problem:
    import torch

    inputs = {"x": normal(0, 16), "y": normal(1, 16)}
    model = onnx_model([node("Add", ["x", "y"], "z")], inputs, ("z", (16,), np.float32))
    return Problem(model, inputs, {"add": function_module(torch.add)}, flops=16)
