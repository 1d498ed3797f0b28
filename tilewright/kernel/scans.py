"""Tile program: the prefix scan of a tile."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr, TensorType, UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from tilewright.kernel.operation import KernelOp, verify_word
from tilewright.kernel.tile_types import I1, element, shape

KINDS = ("sum", "prod", "max", "min")


@irdl_op_definition
class ScanOp(KernelOp):
    """Prefixes of a tile of one dimension: ``prefix[j] = kind of value[k] for k <= j``, with `reverse` for k >= j.

    `total` is the prefix of all elements, and has the bits of the last one. `kind` is sum, prod, max or min (NaN wins).
    In which order pairs are combined is open. Of i1 there are unsigned max and min only.
    """

    name = "tile.scan"
    kind = prop_def(StringAttr)
    reverse = opt_prop_def(UnitAttr)
    unsigned = opt_prop_def(UnitAttr)
    value = operand_def(TensorType)
    prefix = result_def(TensorType)
    total = result_def()
    traits = traits_def(Pure())
    assembly_format = (
        "$kind $value (`reverse` $reverse^)? (`unsigned` $unsigned^)? attr-dict `:` type($value) `->` type($prefix) "
        "`,` type($total)"
    )

    def __init__(self, kind: str, value: SSAValue, reverse: bool = False, unsigned: bool = False) -> None:
        super().__init__(value, results=[value.type, element(value)], kind=kind, reverse=reverse, unsigned=unsigned)

    def verify_(self) -> None:
        verify_word(self.kind, KINDS, "scan")
        if element(self.value) == I1 and (self.kind.data not in ("max", "min") or not self.unsigned):
            raise VerifyException(f"scans flags by {self.kind.data}, not by unsigned max or min")
        if len(shape(self.value)) != 1:
            raise VerifyException(f"scans {self.value.type}, which has not one dimension")
        if self.prefix.type != self.value.type or self.total.type != element(self.value):
            raise VerifyException(f"scans {self.value.type} to {self.prefix.type} and {self.total.type}")
