"""What case files share: small ONNX models by hand, functions as PyTorch modules, random values by seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.arrays import Array, to_torch

if TYPE_CHECKING:
    import onnx
    import torch

OPSET = 20  # the first with Gelu


def normal(seed: int, *shape: int, scale: float = 1.0) -> Array:
    """Reproducible f32 values with mean 0 and standard deviation `scale`."""
    return scale * np.random.default_rng(seed).standard_normal(shape, np.float32)


def node(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> onnx.NodeProto:
    import onnx

    return onnx.helper.make_node(op, inputs, [output], name=f"{op.lower()}_{output}", **attributes)


def onnx_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    output: tuple[str, Sequence[int], Any],
    constants: Mapping[str, Array] | None = None,
    opset: int = OPSET,
) -> onnx.ModelProto:
    """A model of `nodes` with the static shapes of `inputs`; `output` is name, shape and NumPy dtype."""
    import onnx

    def value(name: str, shape: Sequence[int], dtype: Any) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

    graph = onnx.helper.make_graph(
        nodes,
        "case",
        [value(name, array.shape, array.dtype) for name, array in inputs.items()],
        [value(*output)],
        [onnx.numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=9)


def function_module(function: Callable[..., Any], *constants: Array) -> torch.nn.Module:
    """A module that computes ``function(*inputs, *constants)``; `.double()` widens its constants."""
    import torch

    class Function(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = len(constants)
            for index, array in enumerate(constants):
                self.register_buffer(f"constant{index}", to_torch(array))

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            buffers = (getattr(self, f"constant{index}") for index in range(self.count))
            result: torch.Tensor = function(*inputs, *buffers)
            return result

    return Function()
