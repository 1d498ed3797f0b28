"""Layouts: where the element of a logical index lives.

`Packed` describes storage of any extents (CPU, relayouts). On GPUs a layout is a linear map over bits: `LinearLayout`,
with named forms (`Blocked`, `Mma`, `Shared`, …) that become one for a tile of a given shape.
"""

from typing import TYPE_CHECKING

from tilewright.layouts.linear import LinearLayout, along, linear, named, product, repeated
from tilewright.layouts.packed import Packed, packed, permuted, row_major
from tilewright.layouts.reduction import Reduction, reduction
from tilewright.lazy import on_demand

if TYPE_CHECKING:
    from tilewright.layouts.access import (
        GlobalAccess,
        MatrixLoad,
        SharedAccess,
        contiguity,
        elements_per_thread,
        global_access,
        matrix_load,
        replication,
        row_major_memory,
        shared_access,
        vector_width,
        wavefronts,
    )
    from tilewright.layouts.blocked import (
        Blocked,
        Slice,
        coalesced_blocked,
        default_blocked,
        initial_blocked,
        widest_access,
    )
    from tilewright.layouts.conversion import Conversion, PaddedScratch, arrows, convert, padded_scratch
    from tilewright.layouts.form import Distributed, InShared
    from tilewright.layouts.mma import AmdWmma, DotOperand, Matrix, Mfma, Mma, Wmma, mma_warps, warpgroup_n
    from tilewright.layouts.shared import (
        NvmmaShared,
        Padded,
        Shared,
        nvmma_for,
        padding_for,
        row_degree,
        swizzle_for_dot,
    )
    from tilewright.layouts.shuffle import Shuffles
    from tilewright.layouts.swizzle import shared_for_pair
    from tilewright.layouts.text import Layout, parse

__all__ = [
    "AmdWmma",
    "Blocked",
    "Conversion",
    "Distributed",
    "DotOperand",
    "GlobalAccess",
    "InShared",
    "Layout",
    "LinearLayout",
    "Matrix",
    "MatrixLoad",
    "Mfma",
    "Mma",
    "NvmmaShared",
    "Packed",
    "Padded",
    "PaddedScratch",
    "Reduction",
    "Shared",
    "SharedAccess",
    "Shuffles",
    "Slice",
    "Wmma",
    "along",
    "arrows",
    "coalesced_blocked",
    "contiguity",
    "convert",
    "default_blocked",
    "elements_per_thread",
    "global_access",
    "initial_blocked",
    "linear",
    "matrix_load",
    "mma_warps",
    "named",
    "nvmma_for",
    "packed",
    "padded_scratch",
    "padding_for",
    "parse",
    "permuted",
    "product",
    "reduction",
    "repeated",
    "replication",
    "row_degree",
    "row_major",
    "row_major_memory",
    "shared_access",
    "shared_for_pair",
    "swizzle_for_dot",
    "vector_width",
    "warpgroup_n",
    "wavefronts",
    "widest_access",
]

__getattr__, __dir__ = on_demand(
    __name__,
    {
        "GlobalAccess": "tilewright.layouts.access",
        "MatrixLoad": "tilewright.layouts.access",
        "SharedAccess": "tilewright.layouts.access",
        "contiguity": "tilewright.layouts.access",
        "elements_per_thread": "tilewright.layouts.access",
        "global_access": "tilewright.layouts.access",
        "matrix_load": "tilewright.layouts.access",
        "replication": "tilewright.layouts.access",
        "row_major_memory": "tilewright.layouts.access",
        "shared_access": "tilewright.layouts.access",
        "vector_width": "tilewright.layouts.access",
        "wavefronts": "tilewright.layouts.access",
        "Blocked": "tilewright.layouts.blocked",
        "Slice": "tilewright.layouts.blocked",
        "coalesced_blocked": "tilewright.layouts.blocked",
        "default_blocked": "tilewright.layouts.blocked",
        "initial_blocked": "tilewright.layouts.blocked",
        "widest_access": "tilewright.layouts.blocked",
        "Conversion": "tilewright.layouts.conversion",
        "PaddedScratch": "tilewright.layouts.conversion",
        "arrows": "tilewright.layouts.conversion",
        "convert": "tilewright.layouts.conversion",
        "padded_scratch": "tilewright.layouts.conversion",
        "Distributed": "tilewright.layouts.form",
        "InShared": "tilewright.layouts.form",
        "AmdWmma": "tilewright.layouts.mma",
        "DotOperand": "tilewright.layouts.mma",
        "Matrix": "tilewright.layouts.mma",
        "Mfma": "tilewright.layouts.mma",
        "Mma": "tilewright.layouts.mma",
        "Wmma": "tilewright.layouts.mma",
        "mma_warps": "tilewright.layouts.mma",
        "warpgroup_n": "tilewright.layouts.mma",
        "NvmmaShared": "tilewright.layouts.shared",
        "Padded": "tilewright.layouts.shared",
        "Shared": "tilewright.layouts.shared",
        "nvmma_for": "tilewright.layouts.shared",
        "padding_for": "tilewright.layouts.shared",
        "row_degree": "tilewright.layouts.shared",
        "swizzle_for_dot": "tilewright.layouts.shared",
        "Shuffles": "tilewright.layouts.shuffle",
        "shared_for_pair": "tilewright.layouts.swizzle",
        "Layout": "tilewright.layouts.text",
        "parse": "tilewright.layouts.text",
    },
)
