"""What kernels take of a device, as LLVM writes it into the metadata of a code object."""

from __future__ import annotations

import yaml

from tilewright.dataclass import dataclass

# The fields of `Resources`, in order. LLVM, AMDGPUUsage, "Code Object V5 Metadata".
_KEYS = (
    ".vgpr_count", ".agpr_count", ".sgpr_count", ".vgpr_spill_count", ".sgpr_spill_count", ".group_segment_fixed_size",
    ".private_segment_fixed_size", ".kernarg_segment_size", ".wavefront_size",
)  # fmt: skip
_BEGIN, _END = ".amdgpu_metadata", ".end_amdgpu_metadata"


@dataclass(frozen=True)
class Resources:
    """Vector, accumulation and scalar registers of a thread (a wave), registers spilled, and bytes.

    `private_bytes` are the stack of a thread, `argument_bytes` what a launch passes. `lanes` are the threads of a wave.
    """

    vector_registers: int
    accumulation_registers: int
    scalar_registers: int
    vector_spills: int
    scalar_spills: int
    shared_bytes: int
    private_bytes: int
    argument_bytes: int
    lanes: int


def resources_of(assembly: str) -> dict[str, Resources]:
    """Resources of every kernel in an assembly text, by its name there."""
    begin, end = assembly.index(_BEGIN) + len(_BEGIN), assembly.index(_END)
    stated = yaml.load(assembly[begin:end].strip(), Loader=yaml.BaseLoader)  # of texts: LLVM marks some with tags
    return {each[".name"]: Resources(*(int(each.get(key, 0)) for key in _KEYS)) for each in stated["amdhsa.kernels"]}
