"""torch.export without its slowest step: the list of composite operators, which it makes twice for each module."""

from __future__ import annotations

import sys
from typing import Any

IMPORTERS = ("torch._export.utils", "torch.export.decomp_utils", "torch.export.exported_program")
NAME = "_collect_all_valid_cia_ops"


def remember_operators() -> bool:
    """Let torch.export make the list again only where operators have been registered; False where it is not imported.

    The list takes half of the time to capture a small module.
    """
    modules = [sys.modules[name] for name in IMPORTERS if hasattr(sys.modules.get(name), NAME)]
    if len(modules) != len(IMPORTERS):
        return False
    import torch

    collect = getattr(modules[0], NAME)
    known: dict[Any, Any] = {}

    def collected() -> Any:
        registered = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
        key = tuple(registered), tuple(torch.ops._dir)
        if key not in known:
            known.clear()
            known[key] = collect()
        return set(known[key])

    for module in modules:
        setattr(module, NAME, collected)
    return True
