"""Matrix instructions of NVIDIA GPUs by record, under the names that schedules use: accumulator first, inputs last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LANES: Final[Mapping[str, int]] = {"MMA": 32, "NV": 32, "WGMMA": 128}  # that execute one together

_WARPGROUP_INPUTS = {  # by the inputs' name in records: name here, accumulator in records and here, extent of K
    "f16": ("F16", "f32", "F32", 16), "bf16": ("BF16", "f32", "F32", 16), "tf32": ("TF32", "f32", "F32", 8),
    "s8": ("I8", "s32", "I32", 32), "f8e4m3fn": ("F8E4M3FN", "f32", "F32", 32), "f8e5m2": ("F8E5M2", "f32", "F32", 32),
}  # fmt: skip

NAMES: Final[Mapping[str, str]] = {
    "mma_m16n8k8_f16_f32": "MMA_SYNC_F32_16x8x8_F16",
    "mma_m16n8k8_f16_f16": "MMA_SYNC_F16_16x8x8_F16",
    "mma_m8n8k16_s8_s32": "MMA_SYNC_I32_8x8x16_I8",
    "mma_m16n8k16_f16_f32": "MMA_SYNC_F32_16x8x16_F16",
    "mma_m16n8k16_f16_f16": "MMA_SYNC_F16_16x8x16_F16",
    "mma_m16n8k16_bf16_f32": "MMA_SYNC_F32_16x8x16_BF16",
    "mma_m16n8k8_tf32_f32": "MMA_SYNC_F32_16x8x8_TF32",
    "mma_m16n8k32_s8_s32": "MMA_SYNC_I32_16x8x32_I8",
    "mma_m8n8k4_f64_f64": "MMA_SYNC_F64_8x8x4_F64",
    "mma_m16n8k32_f8e4m3fn_f32": "MMA_SYNC_F32_16x8x32_F8E4M3FN",
    "mma_m16n8k32_f8e5m2_f32": "MMA_SYNC_F32_16x8x32_F8E5M2",
    "mma_m16n8k32_f8e4m3fnf8e5m2_f32": "MMA_SYNC_F32_16x8x32_F8E4M3FN_F8E5M2",
    "mma_m16n8k32_f8e5m2f8e4m3fn_f32": "MMA_SYNC_F32_16x8x32_F8E5M2_F8E4M3FN",
    "wmma_16x16x16_f16_f32": "NV_WMMA_F32_16x16x16_F16",
    "wmma_16x16x16_f16_f16": "NV_WMMA_F16_16x16x16_F16",
} | {
    f"wgmma_m64n{n}k{k}_{inputs}_{result}": f"WGMMA_{accumulator}_64x{n}x{k}_{name}"
    for inputs, (name, result, accumulator, k) in _WARPGROUP_INPUTS.items()
    for n in (256, 128, 64)
}

VIRTUAL: Final[Mapping[str, tuple[str, ...]]] = {}

#: PTX leaves open which lane holds which element of a `wmma` fragment.
WITHOUT_LAYOUT: Final[frozenset[str]] = frozenset({"NV_WMMA_F32_16x16x16_F16", "NV_WMMA_F16_16x16x16_F16"})
