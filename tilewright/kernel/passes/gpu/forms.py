"""The forms that a kernel goes through, and which of them a pass works on."""

from __future__ import annotations

from types import MappingProxyType

from xdsl.dialects.builtin import ModuleOp

from tilewright.errors import InvalidProgram
from tilewright.kernel.dialect import FuncOp, operations, shape
from tilewright.kernel.passes.gpu.distribution.layout import layout_of

TILE, LAYOUTS, DISTRIBUTED = range(3)
NAMES = ("tile form without layouts", "tile form with layouts", "distributed form")
_MAKERS = {LAYOUTS: "assign-layouts", DISTRIBUTED: "distribute"}

WORKS_ON = MappingProxyType({
    "pad-tiles": (TILE, TILE), "hoist-accumulators": (TILE, TILE), "split-k": (TILE, TILE),
    "tensor-copies": (TILE, TILE), "tensor-stores": (TILE, TILE), "multicast": (TILE, TILE),
    "swizzle-blocks": (TILE, TILE), "persistent": (TILE, TILE), "pipeline-tensor-copies": (TILE, TILE),
    "pipeline-wgmma": (TILE, TILE),
    "warp-products": (TILE, TILE), "assign-layouts": (TILE, LAYOUTS), "remove-conversions": (LAYOUTS, LAYOUTS),
    "pipeline-loads": (LAYOUTS, LAYOUTS), "pipeline-registers": (LAYOUTS, LAYOUTS),
    "distribute": (LAYOUTS, LAYOUTS), "warp-specialize": (DISTRIBUTED, DISTRIBUTED),
    "prefetch-fragments": (DISTRIBUTED, DISTRIBUTED), "round-to-tf32": (DISTRIBUTED, DISTRIBUTED),
    "tf32x3": (DISTRIBUTED, DISTRIBUTED), "allocate-shared": (DISTRIBUTED, DISTRIBUTED),
    "barriers": (DISTRIBUTED, DISTRIBUTED),
})  # fmt: skip
"""First and last form of each; other passes work on all."""


def form_of(kernel: FuncOp) -> int | None:
    """The form of a kernel; None for one without tiles, which is in any tile form."""
    if kernel.block:
        return DISTRIBUTED
    tiles = [result for op in operations(kernel.body) for result in op.results if shape(result)]
    if not tiles:
        return None
    return LAYOUTS if all(layout_of(each) is not None for each in tiles) else TILE


def check_form(module: ModuleOp, name: str) -> None:
    """Refuse to run a pass on a module none of whose kernels is in a form that it works on."""
    kernels = [op for op in module.body.ops if isinstance(op, FuncOp)]
    if name not in WORKS_ON or not kernels:
        return
    first, last = WORKS_ON[name]
    forms = [form_of(kernel) for kernel in kernels]
    if any((form is None and first < DISTRIBUTED) or (form is not None and first <= form <= last) for form in forms):
        return
    form = TILE if forms[0] is None else forms[0]
    fact = f"pass {name!r} works on {NAMES[first]}; kernel {kernels[0].sym_name.data} is in {NAMES[form]}"
    advice = f"run {_MAKERS[first]} first" if form < first else f"run it before {_MAKERS[last + 1]}"
    raise InvalidProgram(fact, help=advice)
