"""The dialect `tile` of the text form: the operations of `dialect`, and those that only copy engines have."""

from __future__ import annotations

from xdsl.ir import Dialect

from tilewright.kernel import box_stores, rings
from tilewright.kernel.dialect import OPERATIONS

Tile = Dialect("tile", [*OPERATIONS, *rings.OPERATIONS, *box_stores.OPERATIONS])
