"""What the results of nodes are called: as in the model, or after their operator where the model only numbers them."""

from __future__ import annotations

import re

from tilewright.frontend.onnx.scope import Scope

#: A number alone or behind a prefix that says nothing of the operator: `35`, `val_35`, `onnx::MatMul_35` (the operator
#: that exporters write there is one that reads the tensor).
_NUMBERED = re.compile(r"(?:(?:val|value|var|tensor|tmp|t|v|x|out|output|node)_?|onnx::\w+_)?([0-9]+)")


def result_name(name: str, operator: str, scope: Scope) -> str:
    """The hint for the name of a tensor that a node of type `operator` computes.

    `val_35`, a result of MatMul, is called `matmul_35`. Names that the scope gives, those of outputs, are kept.
    """
    if name in scope.renamed:
        return scope.renamed[name]
    name = name or "unused"
    number = _NUMBERED.fullmatch(name)
    hint = f"{operator.lower()}_{number[1]}" if number else name
    return scope.prefix + (name if hint in scope.renamed else hint)
