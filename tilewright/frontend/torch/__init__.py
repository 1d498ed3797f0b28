"""PyTorch modules as graphs of tensor expressions, through torch.export."""

from tilewright.frontend.torch.importer import import_fx, import_module

__all__ = ["import_fx", "import_module"]
