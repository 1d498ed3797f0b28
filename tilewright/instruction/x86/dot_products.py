"""AVX-512 instructions that multiply neighbours along k and add them into one 32-bit lane."""

from tilewright.instruction.multiply import Multiply

RECORDS = (
    Multiply(
        name="vdpbf16ps_16x2_bf16_f32",
        inputs=(("bf16", "bf16"),),
        accumulator="f32",
        group=2,
        emitter="vdpbf16ps",
        features=("avx512bf16",),
        source="Intel SDM vol. 2, VDPBF16PS: odd product first, then even, each addition rounded; denormals are zero",
    ),
    Multiply(
        name="vpdpbusd_16x4_u8s8_s32",
        inputs=(("u8", "i8"),),
        accumulator="i32",
        group=4,
        emitter="vpdpbusd",
        features=("avx512vnni",),
        source="Intel SDM vol. 2, VPDPBUSD: exact products, sums wrap in 32 bits",
    ),
)
