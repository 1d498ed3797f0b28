"""The dialect `tile` of the text form: the operations of `dialect`, and those that only copy engines have."""

from __future__ import annotations

from xdsl.ir import Dialect

from tilewright.kernel import bulk_stores, circular_buffer
from tilewright.kernel.dialect import OPERATIONS

Tile = Dialect("tile", [*OPERATIONS, *circular_buffer.OPERATIONS, *bulk_stores.OPERATIONS])
