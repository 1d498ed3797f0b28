"""ONNX models as graphs of tensor expressions."""

from tilewright.frontend.onnx.importer import import_model
from tilewright.frontend.onnx.problems import Problem, UnsupportedModel

__all__ = ["Problem", "UnsupportedModel", "import_model"]
