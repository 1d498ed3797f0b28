"""ONNX models as graphs of tensor expressions."""

from typing import TYPE_CHECKING

from tilewright.lazy import on_demand

if TYPE_CHECKING:
    from tilewright.frontend.onnx.importer import import_model
    from tilewright.frontend.onnx.problems import Problem, UnsupportedModel

__all__ = ["Problem", "UnsupportedModel", "import_model"]

__getattr__, __dir__ = on_demand(
    __name__,
    {
        "Problem": "tilewright.frontend.onnx.problems",
        "UnsupportedModel": "tilewright.frontend.onnx.problems",
        "import_model": "tilewright.frontend.onnx.importer",
    },
)
