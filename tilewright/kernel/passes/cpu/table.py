"""The passes of CPUs, in order, and how passes run. Nothing of GPUs is imported for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from tilewright.errors import InvalidProgram
from tilewright.kernel.passes.common.canonicalise import CanonicalisePass
from tilewright.kernel.passes.common.cse import CsePass
from tilewright.kernel.passes.common.dce import DcePass
from tilewright.kernel.passes.common.licm import LicmPass
from tilewright.kernel.passes.common.ranges import RangesPass
from tilewright.kernel.passes.cpu.order_sums import OrderSumsPass

if TYPE_CHECKING:
    from tilewright.kernel.verify import Checked

CPU: tuple[ModulePass, ...] = (
    RangesPass(),  # before canonicalise, which finishes what a decided condition leaves
    CanonicalisePass(),
    LicmPass(),
    OrderSumsPass(),
    CsePass(),  # after licm: what two loops computed alike is now in one block
    DcePass(),
)


def run_passes(
    module: ModuleOp,
    passes: Iterable[ModulePass],
    verify_each: bool = False,
    invariant: Callable[[ModuleOp], None] | None = None,
    checked: Checked | None = None,
) -> None:
    """Run passes in place, one after the other.

    With `verify_each`, the program must be valid after each; `invariant` raises InvalidProgram for what it is not.
    `checked` is what earlier passes over the program left valid.
    """
    if not verify_each:
        for each in passes:
            each.apply(Context(), module)
        return
    from tilewright.kernel.verify import Checked, verify

    checked = checked or Checked()
    for each in passes:
        each.apply(Context(), module)
        try:
            verify(module, checked=checked)
            if invariant is not None:
                invariant(module)
        except InvalidProgram as error:
            raise AssertionError(f"bug in pass {each.name}: {error}") from error
