"""The graph of tensor expressions: computes in topological order, explicit inputs and outputs, constants by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.errors import InvalidExpression
from tilewright.expr import dtypes
from tilewright.expr.core import Compute, Tensor


@dataclass(frozen=True)
class Graph:
    """``G = <E, T>``: every tensor is written by one node, or is an input or constant; node order is topological.

    `constants` maps the name of a tensor to its contents (C-contiguous, dtype and shape of the tensor). An output may
    be a node's output, an input or a constant.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    nodes: tuple[Compute, ...]
    constants: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    name: str = "main"

    def __post_init__(self) -> None:
        known: dict[str, Tensor] = {}
        for tensor in self.inputs:
            if tensor.name in known or tensor.name in self.constants:
                raise InvalidExpression(f"graph {self.name}: tensor {tensor.name} is defined twice")
            known[tensor.name] = tensor
        for node in self.nodes:
            for tensor in node.inputs():
                self._check_known(tensor, known, f"{node.name} reads")
            if node.name in known or node.name in self.constants:
                raise InvalidExpression(f"graph {self.name}: tensor {node.name} is defined twice")
            known[node.name] = node.output
        for tensor in self.outputs:
            self._check_known(tensor, known, "output")

    def _check_known(self, tensor: Tensor, known: Mapping[str, Tensor], what: str) -> None:
        if tensor.name in self.constants:
            array = self.constants[tensor.name]
            if array.shape != tensor.shape or dtypes.from_numpy(array.dtype) != tensor.dtype:
                raise InvalidExpression(
                    f"graph {self.name}: {what} {tensor}, a constant of {array.dtype}{list(array.shape)}"
                )
        elif known.get(tensor.name) != tensor:
            raise InvalidExpression(
                f"graph {self.name}: {what} {tensor}, which no earlier node writes",
                help="order nodes topologically",
            )

    def producers(self) -> dict[str, Compute]:
        """Node by the name of the tensor it writes."""
        return {node.name: node for node in self.nodes}

    def consumers(self) -> dict[str, list[Compute]]:
        """Nodes that read each tensor, by its name, in order."""
        users: dict[str, list[Compute]] = {}
        for node in self.nodes:
            for tensor in node.inputs():
                users.setdefault(tensor.name, []).append(node)
        return users

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the graph by name."""
        found = {tensor.name: tensor for tensor in self.inputs}
        for node in self.nodes:
            found.update((tensor.name, tensor) for tensor in node.inputs())
            found[node.name] = node.output
        found.update((tensor.name, tensor) for tensor in self.outputs)
        return found


class GraphBuilder:
    """Collects nodes with unique names; what frontends and the operator library build graphs with."""

    def __init__(self, name: str = "main") -> None:
        self.name = name
        self.inputs: list[Tensor] = []
        self.nodes: list[Compute] = []
        self.constants: dict[str, np.ndarray[Any, Any]] = {}
        self._taken: set[str] = set()

    def unique(self, hint: str) -> str:
        """`hint`, or `hint.1`, `hint.2`, … if it is taken."""
        name, count = hint, 0
        while name in self._taken:
            count += 1
            name = f"{hint}.{count}"
        self._taken.add(name)
        return name

    def input(self, name: str, shape: tuple[int, ...], dtype: dtypes.DType) -> Tensor:
        tensor = Tensor(self.unique(name), shape, dtype)
        self.inputs.append(tensor)
        return tensor

    def constant(self, array: np.ndarray[Any, Any], hint: str = "const") -> Tensor:
        contiguous = np.ascontiguousarray(array).reshape(array.shape)
        tensor = Tensor(self.unique(hint), array.shape, dtypes.from_numpy(array.dtype))
        self.constants[tensor.name] = contiguous
        return tensor

    def add(self, compute: Compute) -> Tensor:
        """Append a compute whose output name is already unique (see `unique`); returns its output."""
        self.nodes.append(compute)
        return compute.output

    def finish(self, outputs: list[Tensor]) -> Graph:
        return Graph(tuple(self.inputs), tuple(outputs), tuple(self.nodes), dict(self.constants), self.name)
