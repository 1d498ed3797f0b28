"""What names stand for in one graph or function body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from tilewright.dataclass import dataclass
from tilewright.frontend.onnx.registry import Value
from tilewright.frontend.onnx.weights import Weights


class Failed:
    """Stands for the outputs of a node that was not imported, where no tensor can (`Importer.stand_in`)."""


FAILED = Failed()


@dataclass
class Scope:
    """Names of one graph or function body, inside those of `outer`."""

    opsets: Mapping[str, int]
    outer: Scope | None = None
    values: dict[str, Value | Failed] = field(default_factory=dict)
    initializers: dict[str, Any] = field(default_factory=dict)
    weights: Weights = field(default_factory=dict)  # elements of initializers that are without them
    attributes: Mapping[str, Any] = field(default_factory=dict)  # of the function that this is the body of
    renamed: Mapping[str, str] = field(default_factory=dict)  # results that keep their names or have better ones
    prefix: str = ""
