"""The forms that a kernel for a GPU goes through: phases of passes, each with what holds from its first pass on."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram
from tilewright.kernel.dialect import FuncOp, operations, shape
from tilewright.kernel.passes.gpu.distribution.layout import layout_of
from tilewright.layouts.bits import is_power_of_two

TILE, LAYOUTS, DISTRIBUTED = range(3)
NAMES = ("tile form without layouts", "tile form with layouts", "distributed form")


@dataclass(frozen=True)
class Phase:
    """Passes that work on kernels in one form. The first one makes the form; `invariant` holds after each of them.

    `broken` says where the invariant does not hold for a kernel, "" where it holds.
    """

    form: int
    invariant: str
    broken: Callable[[FuncOp], str]
    passes: tuple[ModulePass, ...]

    @property
    def name(self) -> str:
        """The form that the passes work on."""
        return NAMES[self.form]

    @property
    def maker(self) -> str:
        """The name of the pass that makes the form."""
        return self.passes[0].name

    def check(self, module: ModuleOp) -> None:
        """Raise InvalidProgram for the first kernel for which the invariant does not hold."""
        for kernel in _kernels(module):
            broken = self.broken(kernel)
            if broken:
                fact = f"kernel {kernel.sym_name.data}: {broken}, but in this phase {self.invariant}"
                raise InvalidProgram(fact, help=f"the phase of the {self.name}")


def odd_extents(kernel: FuncOp) -> str:
    """Where an extent of a tile is no power of two."""
    for op in operations(kernel.body):
        for result in op.results:
            extents = shape(result)
            if not all(map(is_power_of_two, extents)):
                return f"{op.name} gives a tile of {'x'.join(map(str, extents))}"
    return ""


def without_layout(kernel: FuncOp) -> str:
    """Where a tile has no layout; kernels that are distributed already have none."""
    if kernel.block:
        return "it is in distributed form"
    for op in operations(kernel.body):
        for result in op.results:
            if shape(result) and layout_of(result) is None:
                return f"{op.name} gives a tile without a layout"
    return ""


def not_distributed(kernel: FuncOp) -> str:
    """Why a kernel is not in distributed form."""
    return "" if kernel.block else "it has no threads"


def form_of(kernel: FuncOp) -> int | None:
    """The form of a kernel; None for one without tiles, which is in any tile form."""
    if kernel.block:
        return DISTRIBUTED
    if not any(shape(result) for op in operations(kernel.body) for result in op.results):
        return None
    return TILE if without_layout(kernel) else LAYOUTS


def check_form(module: ModuleOp, name: str, first: int, last: int, makers: tuple[str, ...]) -> None:
    """Refuse to run a pass on a module none of whose kernels is in a form, `first` to `last`, that it works on.

    `makers` are the passes that make the forms.
    """
    kernels = _kernels(module)
    if not kernels:
        return
    forms = [form_of(kernel) for kernel in kernels]
    if any((form is None and first < DISTRIBUTED) or (form is not None and first <= form <= last) for form in forms):
        return
    form = TILE if forms[0] is None else forms[0]
    fact = f"pass {name!r} works on {NAMES[first]}; kernel {kernels[0].sym_name.data} is in {NAMES[form]}"
    advice = f"run {makers[form + 1]} first" if form < first else f"run it before {makers[last + 1]}"
    raise InvalidProgram(fact, help=advice)


def _kernels(module: ModuleOp) -> list[FuncOp]:
    return [op for op in module.body.ops if isinstance(op, FuncOp)]
