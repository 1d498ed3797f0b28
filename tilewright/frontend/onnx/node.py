"""One ONNX node as its importer sees it: builder, inputs, attributes, names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidModel
from tilewright.expr.core import Tensor, static_shape
from tilewright.expr.graph import GraphBuilder
from tilewright.frontend.onnx.element_types import Array, array_of
from tilewright.frontend.onnx.problems import NeedsValue
from tilewright.frontend.onnx.registry import Value

if TYPE_CHECKING:
    from tilewright.frontend.onnx.importer import Importer
    from tilewright.frontend.onnx.scope import Scope


@dataclass(frozen=True)
class Node:
    """`version` is the opset version of the operator's domain; `names` are hints for the names of the outputs."""

    proto: Any
    version: int
    b: GraphBuilder
    inputs: Sequence[Value]
    names: Sequence[str]
    attributes: Mapping[str, Any]
    importer: Importer
    scope: Scope

    @property
    def operator(self) -> str:
        return str(self.proto.op_type)

    @property
    def name(self) -> str:
        """The hint for the first output."""
        return self.names[0] if self.names else self.operator

    def hint(self, position: int) -> str:
        """The hint for an output, of those the node has and of those it leaves out."""
        return self.names[position] if position < len(self.names) else f"{self.name}.{position}"

    def wants(self, position: int) -> bool:
        """Does the node name an output at `position`?"""
        return position < len(self.proto.output) and bool(self.proto.output[position])

    # Inputs

    def has(self, position: int) -> bool:
        """Is there an input at `position`?"""
        return position < len(self.inputs) and self.inputs[position] is not None

    def input(self, position: int = 0) -> Tensor:
        """The tensor at `position`; raises InvalidModel where there is none."""
        found = self.optional(position)
        if found is None:
            raise InvalidModel(f"input {position} is missing")
        return found

    def optional(self, position: int) -> Tensor | None:
        """The tensor at `position`, or None where the node has none."""
        value = self.inputs[position] if position < len(self.inputs) else None
        if isinstance(value, list):
            raise InvalidModel(f"input {position} is a sequence", help="a tensor")
        return value

    def sequence(self, position: int) -> list[Tensor]:
        value = self.inputs[position] if position < len(self.inputs) else None
        if not isinstance(value, list):
            raise InvalidModel(f"input {position} is not a sequence")
        return value

    def tensors(self) -> list[Tensor]:
        """All inputs."""
        return [self.input(position) for position in range(len(self.inputs))]

    def shape(self, position: int = 0) -> tuple[int, ...]:
        return static_shape(self.input(position).shape)

    def known(self, position: int) -> Array | None:
        """The value of an input where it is a constant, else None."""
        value = self.optional(position)
        return None if value is None else self.b.constants.get(value.name)

    def array(self, position: int, what: str) -> Array:
        """The value of an input that must be a constant; raises NeedsValue where it is not."""
        tensor = self.input(position)
        found = self.b.constants.get(tensor.name)
        if found is None:
            raise NeedsValue(str(self.proto.input[position]), what)
        return found

    def integers(self, position: int, what: str) -> list[int]:
        """A constant input as a list of integers."""
        return [int(v) for v in self.array(position, what).reshape(-1).tolist()]

    def integer(self, position: int, what: str) -> int:
        """A constant input of one integer."""
        found = self.integers(position, what)
        if len(found) != 1:
            raise InvalidModel(f"{what} has {len(found)} elements", help="one")
        return found[0]

    # Attributes

    def get_int(self, name: str, default: int | None = None) -> int:
        return int(self._attribute(name, default))

    def get_float(self, name: str, default: float | None = None) -> float:
        return float(self._attribute(name, default))

    def get_string(self, name: str, default: str | None = None) -> str:
        value = self._attribute(name, default)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    def get_ints(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        return [int(v) for v in self._attribute(name, default)]

    def get_tensor(self, name: str) -> Array:
        return array_of(self._attribute(name, None))

    def _attribute(self, name: str, default: Any) -> Any:
        value = self.attributes.get(name, default)
        if value is None:
            raise InvalidModel(f"attribute {name} is missing")
        return value

    def axes(self, position: int, *, since: int) -> list[int] | None:
        """Axes, an input since opset `since` and an attribute before; None where they are not given."""
        if self.version >= since:
            return self.integers(position, "the list of axes") if self.has(position) else None
        return self.get_ints("axes") if "axes" in self.attributes else None

    def constant(self, array: Array | np.generic, position: int = 0) -> Tensor:
        """A constant with the name of an output."""
        return self.b.constant(np.asarray(array), self.hint(position))
