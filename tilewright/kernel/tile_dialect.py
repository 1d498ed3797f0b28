"""The dialect `tile` of the text form: the operations of `dialect`, and those that only copy engines have."""

from __future__ import annotations

from xdsl.ir import Dialect

from tilewright.kernel import bulk_stores, circular_buffer
from tilewright.kernel.dialect import OPERATIONS
from tilewright.kernel.operation import with_direct_access

OF_COPY_ENGINES = (*circular_buffer.OPERATIONS, *bulk_stores.OPERATIONS)
Tile = Dialect("tile", [*OPERATIONS, *OF_COPY_ENGINES])
with_direct_access(*OF_COPY_ENGINES)
