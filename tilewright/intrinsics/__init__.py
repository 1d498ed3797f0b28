"""Hardware instructions as data: records per vendor, the registry, fragments, and what a record computes (`execute`).

Each name below is imported when it is first asked for:

>>> from tilewright.intrinsics import standard
>>> record = standard().find("mma_m16n8k16_f16_f32")
>>> dict(record.extents)
{'i1': 16, 'i2': 8, 'r1': 16}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.lazy import on_demand

if TYPE_CHECKING:
    from tilewright.intrinsics.files import load_records
    from tilewright.intrinsics.intrinsic import Intrinsic
    from tilewright.intrinsics.registry import Registry, standard

__all__ = ["Intrinsic", "Registry", "load_records", "standard"]

__getattr__, __dir__ = on_demand(
    __name__,
    {
        "Intrinsic": "tilewright.intrinsics.intrinsic",
        "Registry": "tilewright.intrinsics.registry",
        "load_records": "tilewright.intrinsics.files",
        "standard": "tilewright.intrinsics.registry",
    },
)
