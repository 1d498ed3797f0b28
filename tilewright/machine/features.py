"""Names of CPU features, what each needs, and which features an intrinsic of a CPU needs.

The names are LLVM's. The tables are closed so that a misspelt feature is found, and so that a feature a machine
does not list can be switched off in LLVM by name.
"""

from __future__ import annotations

from typing import Final


def words(text: str) -> frozenset[str]:
    """The words of a table."""
    return frozenset(text.split())


X86: Final = words(  # what LLVM 22 tells of an x86-64 host
    """64bit adx aes amx-avx512 amx-bf16 amx-complex amx-fp16 amx-fp8 amx-int8 amx-movrs amx-tf32 amx-tile avx
    avx10.1 avx10.2 avx2 avx512bf16 avx512bitalg avx512bw avx512cd avx512dq avx512f avx512fp16 avx512ifma avx512vbmi
    avx512vbmi2 avx512vl avx512vnni avx512vp2intersect avx512vpopcntdq avxifma avxneconvert avxvnni avxvnniint16
    avxvnniint8 bmi bmi2 ccmp cf cldemote clflushopt clwb clzero cmov cmpccxadd crc32 cx16 cx8 egpr enqcmd f16c fma
    fma4 fsgsbase fxsr gfni hreset invpcid kl lwp lzcnt mmx movbe movdir64b movdiri movrs mwaitx ndd nf pclmul
    pconfig pku popcnt ppx prefetchi prfchw ptwrite push2pop2 raoint rdpid rdpru rdrnd rdseed rtm sahf serialize sgx
    sha sha512 shstk sm3 sm4 sse sse2 sse3 sse4.1 sse4.2 sse4a ssse3 tbm tsxldtrk uintr usermsr vaes vpclmulqdq
    waitpkg wbnoinvd widekl xop xsave xsavec xsaveopt xsaves zu"""
)
AARCH64: Final = words(  # the user-space part of LLVM's AArch64 features
    """aes bf16 complxnum crc dotprod f32mm f64mm flagm fp-armv8 fp16fml fullfp16 i8mm jsconv lse neon pauth rcpc
    rdm sb sha2 sha3 sm4 sme sme2 ssbs sve sve2 sve2-aes sve2-bitperm sve2-sha3 sve2-sm4"""
)
BY_ARCHITECTURE: Final = {"x86_64": X86, "aarch64": AARCH64}

BASELINE: Final = {  # without these LLVM cannot compile floating-point code for the triple
    "x86_64": frozenset({"64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2"}),
    "aarch64": frozenset({"fp-armv8", "neon"}),
}

# What a feature needs, as LLVM has it: it switches a feature off with any of these. Intel SDM volume 1, chapters 14 and
# 15; Arm ARM, chapter A2.
_X86_NEEDS: Final = {
    "sse2": ("sse",),
    "sse3": ("sse2",),
    "ssse3": ("sse3",),
    "sse4.1": ("ssse3",),
    "sse4.2": ("sse4.1",),
    "sse4a": ("sse3",),
    **dict.fromkeys(("aes", "gfni", "kl", "pclmul", "sha"), ("sse2",)),
    "avx": ("sse4.2",),
    **dict.fromkeys(("avx2", "f16c", "fma", "sm3"), ("avx",)),
    "vpclmulqdq": ("avx", "pclmul"),
    "fma4": ("avx", "sse4a"),
    "xop": ("fma4",),
    "vaes": ("avx2", "aes"),
    **dict.fromkeys(
        ("avxifma", "avxneconvert", "avxvnni", "avxvnniint16", "avxvnniint8", "sha512", "sm4"), ("avx2",)
    ),
    "avx512f": ("avx2", "fma", "f16c"),
    **dict.fromkeys(
        ("avx512bw", "avx512cd", "avx512dq", "avx512ifma", "avx512vl", "avx512vnni", "avx512vp2intersect",
         "avx512vpopcntdq"),
        ("avx512f",),
    ),
    **dict.fromkeys(("avx512bf16", "avx512bitalg", "avx512vbmi", "avx512vbmi2"), ("avx512bw",)),
    "avx512fp16": ("avx512bw", "avx512dq", "avx512vl"),
    "avx10.1": (
        "avx512bf16", "avx512bitalg", "avx512cd", "avx512fp16", "avx512ifma", "avx512vbmi", "avx512vbmi2",
        "avx512vnni", "avx512vpopcntdq",
    ),
    "avx10.2": ("avx10.1",),
    **dict.fromkeys(
        ("amx-avx512", "amx-bf16", "amx-complex", "amx-fp16", "amx-fp8", "amx-int8", "amx-movrs", "amx-tf32"),
        ("amx-tile",),
    ),
    "cx16": ("cx8",),
    **dict.fromkeys(("xsavec", "xsaveopt", "xsaves"), ("xsave",)),
    "widekl": ("kl",),
}  # fmt: skip
_AARCH64_NEEDS: Final = {
    "neon": ("fp-armv8",),
    **dict.fromkeys(("aes", "bf16", "complxnum", "dotprod", "i8mm", "rdm", "sha2", "sm4"), ("neon",)),
    **dict.fromkeys(("fullfp16", "jsconv"), ("fp-armv8",)),
    "fp16fml": ("fullfp16",),
    "sha3": ("sha2",),
    "sve": ("neon", "fullfp16"),
    **dict.fromkeys(("f32mm", "f64mm", "sve2"), ("sve",)),
    "sve2-aes": ("sve2", "aes"),
    "sve2-bitperm": ("sve2",),
    "sve2-sha3": ("sve2", "sha3"),
    "sve2-sm4": ("sve2", "sm4"),
    "sme": ("bf16", "fullfp16"),
    "sme2": ("sme",),
}
NEEDS: Final = {"x86_64": _X86_NEEDS, "aarch64": _AARCH64_NEEDS}

INTRINSICS: Final = {  # CPU intrinsics and the features without which a machine cannot list them
    "fma_4_f32_f32": frozenset[str](),
    "fma_2_f64_f64": frozenset[str](),
    "fma_8_f32_f32": frozenset({"avx2", "fma"}),
    "fma_4_f64_f64": frozenset({"avx2", "fma"}),
    "fma_16_f32_f32": frozenset({"avx512f"}),
    "fma_8_f64_f64": frozenset({"avx512f"}),
    "vpdpbusd_16x4_u8s8_s32": frozenset({"avx512vnni"}),
    "vpdpbusd_8x4_u8s8_s32": frozenset({"avxvnni"}),
    "vdpbf16ps_16x2_bf16_f32": frozenset({"avx512bf16"}),
    "sdot_4x4_s8s8_s32": frozenset({"dotprod"}),
}
