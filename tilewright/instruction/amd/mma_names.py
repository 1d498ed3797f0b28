"""Matrix instructions of AMD GPUs by record, under the names that schedules use: accumulator first, inputs last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LANES: Final[Mapping[str, int]] = {"WMMAR3": 32, "WMMAR4": 32, "MFMA": 64}  # that execute one together

NAMES: Final[Mapping[str, str]] = {
    "wmmar3_16x16x16_f16_f32": "WMMAR3_F32_16x16x16_F16",
    "wmmar3_16x16x16_f16_f16": "WMMAR3_F16_16x16x16_F16",
    "wmmar3_16x16x16_bf16_f32": "WMMAR3_F32_16x16x16_BF16",
    "wmmar3_16x16x16_bf16_bf16": "WMMAR3_BF16_16x16x16_BF16",
    "wmmar3_16x16x16_s8_s32": "WMMAR3_I32_16x16x16_I8",
    "wmmar4_16x16x16_f16_f32": "WMMAR4_F32_16x16x16_F16",
    "wmmar4_16x16x16_f16_f16": "WMMAR4_F16_16x16x16_F16",
    "wmmar4_16x16x16_bf16_f32": "WMMAR4_F32_16x16x16_BF16",
    "wmmar4_16x16x16_bf16_bf16": "WMMAR4_BF16_16x16x16_BF16",
    "wmmar4_16x16x16_f8e5m2_f32": "WMMAR4_F32_16x16x16_F8E5M2",
    "wmmar4_16x16x16_f8e5m2f8e4m3fn_f32": "WMMAR4_F32_16x16x16_F8E5M2_F8E4M3FN",
    "wmmar4_16x16x16_f8e4m3fn_f32": "WMMAR4_F32_16x16x16_F8E4M3FN",
    "wmmar4_16x16x16_f8e4m3fnf8e5m2_f32": "WMMAR4_F32_16x16x16_F8E4M3FN_F8E5M2",
    "wmmar4_16x16x16_s8_s32": "WMMAR4_I32_16x16x16_I8",
    "mfma_16x16x16_bf16_f32": "MFMA_F32_16x16x16_BF16",
    "mfma_32x32x8_bf16_f32": "MFMA_F32_32x32x8_BF16",
    "mfma_16x16x32_f8e5m2fnuz_f32": "MFMA_F32_16x16x32_F8E5M2FNUZ",
    "mfma_16x16x32_f8e5m2fnuzf8e4m3fnuz_f32": "MFMA_F32_16x16x32_F8E5M2FNUZ_F8E4M3FNUZ",
    "mfma_16x16x32_f8e4m3fnuz_f32": "MFMA_F32_16x16x32_F8E4M3FNUZ",
    "mfma_16x16x32_f8e4m3fnuzf8e5m2fnuz_f32": "MFMA_F32_16x16x32_F8E4M3FNUZ_F8E5M2FNUZ",
    "mfma_32x32x16_f8e5m2fnuz_f32": "MFMA_F32_32x32x16_F8E5M2FNUZ",
    "mfma_32x32x16_f8e5m2fnuzf8e4m3fnuz_f32": "MFMA_F32_32x32x16_F8E5M2FNUZ_F8E4M3FNUZ",
    "mfma_32x32x16_f8e4m3fnuz_f32": "MFMA_F32_32x32x16_F8E4M3FNUZ",
    "mfma_32x32x16_f8e4m3fnuzf8e5m2fnuz_f32": "MFMA_F32_32x32x16_F8E4M3FNUZ_F8E5M2FNUZ",
    "mfma_16x16x32_s8_s32": "MFMA_I32_16x16x32_I8",
    "mfma_32x32x16_s8_s32": "MFMA_I32_32x32x16_I8",
    "mfma_16x16x4_f64_f64": "MFMA_F64_16x16x4_F64",
    "mfma_16x16x4_f32_f32": "MFMA_F32_16x16x4_F32",
    "mfma_16x16x16_f16_f32": "MFMA_F32_16x16x16_F16",
    "mfma_32x32x8_f16_f32": "MFMA_F32_32x32x8_F16",
}

#: Two calls of an instruction, with the operands of both from one wider read in a permuted order of K.
VIRTUAL: Final[Mapping[str, tuple[str, ...]]] = {
    "MFMA_F32_16x16x16_F16": ("VMFMA_F32_16x16x32_F16",),
    "MFMA_F32_32x32x8_F16": ("VMFMA_F32_32x32x16_F16",),
    "MFMA_F32_16x16x32_F8E4M3FNUZ": ("VMFMA_F32_16x16x32_F8E4M3FNUZ",),
    "MFMA_F32_32x32x16_F8E4M3FNUZ": ("VMFMA_F32_32x32x16_F8E4M3FNUZ",),
}

WITHOUT_LAYOUT: Final[frozenset[str]] = frozenset()
