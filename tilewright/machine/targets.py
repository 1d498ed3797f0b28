"""What LLVM may be told of a target: its triple, its processor, its features. Tables, and the check against them.

LLVM ignores a name that it does not know, and ends the process for a PTX version that is older than the processor, for
a processor that has no code of this kind, and for an object format without an emitter. So the tables are closed, and
machine files and the targets of tile programs are held against them before LLVM sees them. They list what LLVM 22
prints for the processor `help`, without what Tilewright has no code for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from tilewright.dataclass import dataclass
from tilewright.errors import nearest
from tilewright.machine.features import BY_ARCHITECTURE, words

NVIDIA: Final = "nvptx64-nvidia-cuda"
AMD: Final = "amdgcn-amd-amdhsa"
GPUS: Final = (NVIDIA, AMD)
LEAST: Final = 75  # compute capability of NVIDIA processors, times ten, for which there is code

X86: Final = words(  # processors with 64-bit code
    """alderlake amdfam10 arrowlake arrowlake-s arrowlake_s athlon-fx athlon64 athlon64-sse3 atom atom_sse4_2
    atom_sse4_2_movbe barcelona bdver1 bdver2 bdver3 bdver4 bonnell broadwell btver1 btver2 cannonlake cascadelake
    clearwaterforest cooperlake core-avx-i core-avx2 core2 core_2_duo_sse4_1 core_2_duo_ssse3 core_2nd_gen_avx
    core_3rd_gen_avx core_4th_gen_avx core_4th_gen_avx_tsx core_5th_gen_avx core_5th_gen_avx_tsx
    core_aes_pclmulqdq core_i7_sse4_2 corei7 corei7-avx diamondrapids emeraldrapids generic goldmont goldmont-plus
    goldmont_plus gracemont grandridge graniterapids graniterapids-d graniterapids_d haswell icelake-client
    icelake-server icelake_client icelake_server ivybridge k8 k8-sse3 knl knm lunarlake meteorlake mic_avx512
    nehalem nocona novalake opteron opteron-sse3 pantherlake penryn raptorlake rocketlake sandybridge
    sapphirerapids sierraforest silvermont skx skylake skylake-avx512 skylake_avx512 slm tigerlake tremont
    westmere wildcatlake x86-64 x86-64-v2 x86-64-v3 x86-64-v4 znver1 znver2 znver3 znver4 znver5"""
)
AARCH64: Final = words(
    """a64fx ampere1 ampere1a ampere1b ampere1c apple-a10 apple-a11 apple-a12 apple-a13 apple-a14 apple-a15
    apple-a16 apple-a17 apple-a18 apple-a19 apple-a7 apple-a8 apple-a9 apple-m1 apple-m2 apple-m3 apple-m4
    apple-m5 apple-s10 apple-s4 apple-s5 apple-s6 apple-s7 apple-s8 apple-s9 c1-nano c1-premium c1-pro c1-ultra
    carmel cobalt-100 cortex-a320 cortex-a34 cortex-a35 cortex-a510 cortex-a520 cortex-a520ae cortex-a53
    cortex-a55 cortex-a57 cortex-a65 cortex-a65ae cortex-a710 cortex-a715 cortex-a72 cortex-a720 cortex-a720ae
    cortex-a725 cortex-a73 cortex-a75 cortex-a76 cortex-a76ae cortex-a77 cortex-a78 cortex-a78ae cortex-a78c
    cortex-r82 cortex-r82ae cortex-x1 cortex-x1c cortex-x2 cortex-x3 cortex-x4 cortex-x925 cyclone exynos-m3
    exynos-m4 exynos-m5 falkor fujitsu-monaka gb10 generic grace kryo neoverse-512tvb neoverse-e1 neoverse-n1
    neoverse-n2 neoverse-n3 neoverse-v1 neoverse-v2 neoverse-v3 neoverse-v3ae olympus oryon-1 saphira thunderx
    thunderx2t99 thunderx3t110 thunderxt81 thunderxt83 thunderxt88 tsv110"""
)
_CPUS: Final = {"x86_64": X86, "aarch64": AARCH64}
# Systems whose object format LLVM writes for both architectures. The name of a system may end in its version.
_CPU_TRIPLE: Final = re.compile(
    r"(x86_64|aarch64)-[a-z0-9_]+-(linux|darwin|macosx|freebsd|windows)[0-9.]*(-(gnu|musl|msvc))?"
)

# The least PTX version of each processor, times ten. PTX ISA 9.0, "Release Notes", as LLVM enforces it.
PTX_SINCE: Final = {
    "sm_70": 60, "sm_72": 61, "sm_75": 63, "sm_80": 70, "sm_86": 71, "sm_87": 74, "sm_88": 90, "sm_89": 78,
    "sm_90": 78, "sm_90a": 80, "sm_100": 86, "sm_100a": 86, "sm_100f": 88, "sm_101": 86, "sm_101a": 86, "sm_101f": 88,
    "sm_103": 88, "sm_103a": 88, "sm_103f": 88, "sm_110": 90, "sm_110a": 90, "sm_110f": 90, "sm_120": 87,
    "sm_120a": 87, "sm_120f": 88, "sm_121": 88, "sm_121a": 88, "sm_121f": 88,
}  # fmt: skip
PTX_VERSIONS: Final = (
    60, 61, 62, 63, 64, 65, 70, 71, 72, 73, 74, 75, 76, 77, 78, 80, 81, 82, 83, 84, 85, 86, 87, 88, 90,
)  # fmt: skip

# AMD processors with code, and their modes that leave the code right: LLVM, AMDGPUUsage, "Processors". Sizes of waves
# are not among them: code is for waves of 64 on CDNA and of 32 on RDNA.
_CDNA, _RDNA = frozenset({"sramecc", "xnack"}), frozenset({"cumode"})
AMD_MODES: Final = {
    **dict.fromkeys(("gfx90a", "gfx908", "gfx942", "gfx950"), _CDNA),
    **dict.fromkeys(("gfx1010", "gfx1011", "gfx1012", "gfx1013"), _RDNA | {"xnack"}),
    **dict.fromkeys((f"gfx103{number}" for number in range(7)), _RDNA),
    **dict.fromkeys(("gfx1100", "gfx1101", "gfx1102", "gfx1103"), _RDNA),
    **dict.fromkeys((f"gfx115{number}" for number in range(4)), _RDNA),
    **dict.fromkeys(("gfx1200", "gfx1201"), _RDNA),
}

# Units that machine files name, with the compute capability that has them first, times ten. PTX ISA, "Target ISA Notes"
# of ldmatrix, mma, wmma, cp.async, mbarrier.try_wait, cp.async.bulk.tensor, setmaxnreg, wgmma and griddepcontrol.
NVIDIA_UNITS: Final = {
    "wmma": 70, "ldmatrix": 75, "mma": 75, "cp_async": 80, "cluster": 90, "mbarrier": 90, "tma": 90, "setmaxnreg": 90,
    "wgmma": 90, "griddepcontrol": 90,
}  # fmt: skip
_SPECIFIC_UNITS: Final = {"setmaxnreg": re.compile(r"sm_\d+[af]"), "wgmma": re.compile("sm_90a")}
_AMD_UNITS: Final = {"mfma": re.compile("gfx9.*"), "wmma": re.compile("gfx1[12].*")}


def capability(cpu: str) -> int:
    """The compute capability of an NVIDIA processor, times ten: 90 for sm_90a."""
    return int(re.sub(r"\D", "", cpu))


def without_code(triple: str, cpu: str) -> str:
    """What would be legal instead of a processor of the tables that no code is generated for; "" for all others."""
    return f"sm_{LEAST} or newer" if triple == NVIDIA and capability(cpu) < LEAST else ""


def lanes(cpu: str) -> int:
    """Threads of a warp (wave) in code for a GPU of the tables: 64 of CDNA, else 32."""
    return 64 if cpu.startswith("gfx9") else 32


def lacks(cpu: str, unit: str) -> bool:
    """Whether a GPU of the tables has no such unit.

    >>> lacks("sm_100a", "wgmma"), lacks("sm_100a", "tma")
    (True, False)
    """
    if cpu not in PTX_SINCE:
        return unit not in _AMD_UNITS or not _AMD_UNITS[unit].fullmatch(cpu)
    specific = _SPECIFIC_UNITS.get(unit)
    return NVIDIA_UNITS.get(unit, 1000) > capability(cpu) or (specific is not None and not specific.fullmatch(cpu))


def units(cpu: str) -> list[str]:
    """The units of a GPU of the tables."""
    return [unit for unit in (*NVIDIA_UNITS, "mfma") if not lacks(cpu, unit)]


@dataclass(frozen=True)
class Misfit:
    """Why a target is refused: the field ("triple", "cpu", "features"), what is wrong with it, what would be legal."""

    field: str
    message: str
    help: str


def misfit(triple: str, cpu: str, features: Sequence[str]) -> Misfit | None:
    """The first reason against a target, or None. `features` are signed: ``+ptx80``, ``-avx512f``.

    >>> misfit("nvptx64-nvidia-cuda", "sm_90a", ["+ptx78"]).message
    "has '+ptx78', a PTX version older than sm_90a"
    """
    return next(_misfits(triple, cpu, features), None)


def _misfits(triple: str, cpu: str, features: Sequence[str]) -> Iterator[Misfit]:
    architecture = triple.partition("-")[0]
    if triple in GPUS:
        processors: Collection[str] = PTX_SINCE if triple == NVIDIA else AMD_MODES
    elif architecture in _CPUS and _CPU_TRIPLE.fullmatch(triple):
        processors = _CPUS[architecture]
    elif architecture in _CPUS:
        system = "linux, darwin, macosx, freebsd or windows"
        legal = f"{architecture}-VENDOR-SYSTEM, or with -gnu, -musl or -msvc behind it; SYSTEM is {system}"
        yield Misfit("triple", f"is {triple!r}, which is no system with code", legal)
        return
    else:
        legal = ", ".join(sorted(_CPUS))
        help = f"{_nearest(triple, GPUS)}; or a triple of {legal}"
        message = f"is {triple!r}, which starts with none of {legal}, and is none of {', '.join(GPUS)}"
        yield Misfit("triple", message, help)
        return
    if cpu not in processors:
        yield Misfit(
            "cpu", f"is {cpu!r}, which is no processor of {architecture} that is known here", _nearest(cpu, processors)
        )
        return
    if triple == NVIDIA:
        yield from _ptx_misfits(cpu, features)
    elif triple == AMD:
        yield from _mode_misfits(cpu, features)
    else:
        yield from _cpu_misfits(architecture, features)


def _ptx_misfits(cpu: str, features: Sequence[str]) -> Iterator[Misfit]:
    least = PTX_SINCE[cpu]
    legal = [f"+ptx{version}" for version in PTX_VERSIONS if version >= least]
    for name in features:
        if name not in legal:
            known = re.fullmatch(r"\+ptx(\d+)", name) and int(name[4:]) in PTX_VERSIONS
            reason = f"a PTX version older than {cpu}" if known else "which is no PTX version that LLVM writes"
            help = f"{legal[0]}, or a newer one up to {legal[-1]}"
            yield Misfit("features", f"has {name!r}, {reason}", help)
    if len(features) > 1:
        yield Misfit("features", f"has several PTX versions: {', '.join(features)}", "the newest of them alone")


def _mode_misfits(cpu: str, features: Sequence[str]) -> Iterator[Misfit]:
    modes = AMD_MODES[cpu]
    for name in features:
        if name[:1] not in ("+", "-") or name[1:] not in modes:
            legal = sorted(sign + mode for mode in modes for sign in "+-")
            message = f"has {name!r}, which is no mode of {cpu} that code is made for"
            yield Misfit("features", message, _nearest(name, legal))


def _cpu_misfits(architecture: str, features: Sequence[str]) -> Iterator[Misfit]:
    known = BY_ARCHITECTURE[architecture]
    for name in features:
        if name[:1] not in ("+", "-") or name[1:] not in known:
            message = f"has {name!r}, which is no feature of {architecture}"
            yield Misfit("features", message, _nearest(name[1:], known))


def _nearest(name: str, legal: Collection[str]) -> str:
    """The names most like one that is not among them; all where there are few."""
    close = nearest(name, sorted(legal), 3)
    if close:
        return f"did you mean {', '.join(close)}?"
    return f"one of {', '.join(sorted(legal))}" if len(legal) <= 40 else "see `tilewright machines NAME` of a like one"
