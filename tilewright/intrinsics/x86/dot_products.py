"""Instructions of x86 that multiply neighbours along k and add them into one 32-bit lane."""

from __future__ import annotations

from dataclasses import replace

from tilewright.intrinsics.composite import family
from tilewright.intrinsics.intrinsic import WIDTH, Cost, Intrinsic, Movement, Numerics
from tilewright.intrinsics.shapes import DOT, FULL_DOT, types_of, vector

X86 = "x86"

_COST = Cost(0.5, 5.0)
_PAIRS_SOURCE = "Intel SDM vol. 2, VDPBF16PS: odd product first, then even, each addition rounded; denormals are zero"
_QUADS_SOURCE = "Intel SDM vol. 2, VPDPBUSD: exact products, sums wrap in 32 bits"
_WORDS_SOURCE = "Intel SDM vol. 2, VPMADDWD, then VPADDD: exact products, sums wrap in 32 bits"


def dot(
    family: str,
    lanes: int,
    group: int,
    dtypes: tuple[str, str, str],
    features: tuple[str, ...],
    numerics: Numerics,
    source: str,
    *,
    full: bool = False,
    llvm: str = "",
    emitter: str = "",
    aliases: tuple[str, ...] = (),
    cost: Cost = _COST,
) -> Intrinsic:
    """``Dst[i] += Src1[r] * Src2[i, r]``, Src1 broadcast to all lanes; `full`: ``Src1[i, r]``."""
    a, b, c = dtypes
    whole = f"{group} * i + r"
    loops: tuple[str, ...] = ("i", "r") if full else ("r",)
    word = Movement("lda", "Src1", "reg", "mem", f"addr_a + {whole}" if full else "addr_a + r",
                    "" if full else "broadcast of 4 bytes", 1 if full else 4)  # fmt: skip
    return vector(
        f"{family}{'_full' if full else ''}_{lanes}x{group}_{types_of(a, b, c)}",
        X86,
        FULL_DOT if full else DOT,
        {"i": lanes, "r": group},
        ((a, loops, whole if full else "r"), (b, ("i", "r"), whole), (c, ("i",), "i")),
        cost=cost,
        source=source,
        numerics=numerics,
        features=features,
        memory=(
            word,
            Movement("ldb", "Src2", "reg", "mem", f"addr_b + {whole}"),
            Movement("ldc", "Dst", "reg", "mem", "addr_c + i"),
            Movement("stc", "Dst", "mem", "reg", "addr_c + i"),
        ),
        llvm=llvm,
        vector_bits=(128, 256, 512) if WIDTH in llvm else (),
        emitter=emitter,
        aliases=aliases,
    )


_U8S8 = ("u8", "i8", "i32")
_WORDS = ("i16", "i16", "i32")
_BF16 = ("bf16", "bf16", "f32")
_VNNI, _BF16_PAIRS = Numerics(order="fixed"), Numerics("bf16_pairs", denormals="zero", order="fixed")
_EVEX = {16: ("avx512vnni",), 8: ("avxvnni",), 4: ("avxvnni",)}
_BF16_FEATURES = {16: ("avx512bf16",), 8: ("avx512bf16", "avx512vl"), 4: ("avx512bf16", "avx512vl")}
_SKYLAKE = "VPMADDUBSW, VPMADDWD with ones, VPADDD: pairs of products saturate in 16 bits"


def _named(lanes: int, full: bool, name: str) -> tuple[str, ...]:
    return (name,) if lanes == 16 and not full else ()


def _dots(lanes: int, full: bool) -> tuple[Intrinsic, ...]:
    return (
        dot("vdpbf16ps", lanes, 2, _BF16, _BF16_FEATURES[lanes], _BF16_PAIRS, _PAIRS_SOURCE, full=full,
            llvm="llvm.x86.avx512bf16.dpbf16ps.{bits}", emitter="words", aliases=_named(lanes, full, "vdpbf16ps")),
        dot("vpdpbusd", lanes, 4, _U8S8, _EVEX[lanes], _VNNI, _QUADS_SOURCE, full=full,
            llvm="llvm.x86.avx512.vpdpbusd.{bits}", emitter="words", aliases=_named(lanes, full, "vpdpbusd")),
        dot("vpdpbusds", lanes, 4, _U8S8, _EVEX[lanes], replace(_VNNI, saturate=True),
            "Intel SDM vol. 2, VPDPBUSDS: exact products, the sum saturates in 32 bits", full=full,
            llvm="llvm.x86.avx512.vpdpbusds.{bits}", aliases=_named(lanes, full, "vpdpbusds")),
    )  # fmt: skip


#: Two instructions, of which sums wait for the addition alone. With 512 bits they are of AVX-512BW, with 256 of AVX2.
_PAIRS_OF_WORDS = {
    16: ("llvm.x86.avx512.pmaddw.d.512", ("avx512bw",)),
    8: ("llvm.x86.avx2.pmadd.wd", ("avx2",)),
    4: ("llvm.x86.sse2.pmadd.wd", ("sse2",)),
}


def _words(lanes: int, full: bool) -> Intrinsic:
    llvm, features = _PAIRS_OF_WORDS[lanes]
    return dot("vpmaddwd", lanes, 2, _WORDS, features, _VNNI, _WORDS_SOURCE, full=full, llvm=llvm,
               emitter="added_words", cost=Cost(0.75, 1.0))  # fmt: skip


def _family(record: Intrinsic) -> tuple[Intrinsic, ...]:
    """The micro-kernels of an instruction: AVX-512 has 32 registers, SSE and AVX have 16."""
    return family(record, 32 if any(feature.startswith("avx512") for feature in record.features) else 16)


_BROADCAST = tuple(
    record for lanes in _PAIRS_OF_WORDS for record in (*_dots(lanes, full=False), _words(lanes, full=False))
)
_FULL = tuple(record for lanes in _PAIRS_OF_WORDS for record in (*_dots(lanes, full=True), _words(lanes, full=True)))
_SATURATED = replace(
    dot("gemv", 16, 4, _U8S8, ("avx512bw",), Numerics("saturated_pairs_i16", order="fixed"), _SKYLAKE),
    name="gemv_16x4_sat16",
    cost=Cost(2.0, 11.0),
)
INTRINSICS = (
    *(kernel for record in _BROADCAST if not record.numerics.saturate for kernel in _family(record)),
    *_BROADCAST,
    *_FULL,
    _SATURATED,
)
