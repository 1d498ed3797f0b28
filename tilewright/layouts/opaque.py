"""Layouts that hardware does not tell: tiles in fragments of which only the number of elements per lane is known.

To size tiles, to distribute them to warps and to work on elements wherever they lie, one assignment does; which lane
holds which element no program may know, and values enter and leave through memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.layouts.linear import PLACE, LinearLayout, dims
from tilewright.layouts.mma import DotOperand, Wmma

FORMS = (Wmma, DotOperand)  # that a tile in fragments may have, unspecified or not


@dataclass(frozen=True)
class Opaque(LinearLayout):
    """A tile in fragments of `form`; `bases` are one assignment. Equal to no other layout, whatever its bases are."""

    form: Wmma | DotOperand

    def __str__(self) -> str:
        return str(self.form)

    @property
    def operand(self) -> str:
        """What the fragments are of a product: "a", "b" or "c"."""
        return "ab"[self.form.index] if isinstance(self.form, DotOperand) else "c"

    @property
    def instr(self) -> tuple[int, ...]:
        """M, N and K of the instruction."""
        return self._parent.instr

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of one fragment."""
        m, n, k = self.instr
        return {"a": (m, k), "b": (k, n), "c": (m, n)}[self.operand]

    @property
    def one(self) -> LinearLayout:
        """One fragment in one warp."""
        parent = Wmma((1, 1), self.instr)
        width = self.form.width if isinstance(self.form, DotOperand) else 0
        own = DotOperand(self.form.index, parent, width) if isinstance(self.form, DotOperand) else parent
        return own.to_linear(self.tile)

    @property
    def _parent(self) -> Wmma:
        parent = self.form.parent if isinstance(self.form, DotOperand) else self.form
        assert isinstance(parent, Wmma)
        return parent


def opaque(form: Wmma | DotOperand, shape: Sequence[int]) -> Opaque:
    """The layout of a tile of `shape`; raises InvalidArgument for a form whose layout is documented.

    >>> print(opaque(Wmma((2, 2)), (32, 64)))
    #wmma<W=[2,2], instr=[16,16,16]>
    """
    if not form.opaque:
        raise InvalidArgument(f"the layout of {form} is documented", help="#wmma<...>, or an operand of one")
    told = form.to_linear(shape)
    outs = tuple(zip(dims(len(told.shape)), told.shape, strict=True))
    return Opaque(tuple((name, told.of(name)) for name in PLACE[:3]), outs, form)
