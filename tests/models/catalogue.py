"""The list: every architecture of the four families by its name."""

from __future__ import annotations

from tests.models import networks, of_timm, of_torchvision, of_transformers
from tests.models.definition import Architecture

MODULES = (networks, of_torchvision, of_timm, of_transformers)

ARCHITECTURES: dict[str, Architecture] = {entry.name: entry for module in MODULES for entry in module.ARCHITECTURES}
assert len(ARCHITECTURES) == sum(len(module.ARCHITECTURES) for module in MODULES), "two entries have one name"
