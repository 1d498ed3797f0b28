"""Machine code in memory: from object code, or from LLVM IR of the runtime itself, to addresses of functions.

No user needs a compiler or a linker: LLVM's own loader places the sections and resolves names in this process.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Mapping

import llvmlite.binding as llvm

from tilewright.errors import InvalidFile
from tilewright.machine.detect import host
from tilewright.runtime.manifest import Manifest

_ELF_HEADER = struct.Struct(
    "<6s10xHH20xQ10xHH2x"
)  # Elf64_Ehdr: e_ident, e_type, e_machine, e_shoff, e_shentsize, e_shnum
_ELF_RELOCATABLE = 1
_ELF_MACHINE = {"x86_64": 62, "aarch64": 183}


class Code:
    """Loaded machine code. The addresses stay valid while this object lives."""

    def __init__(self, engine: llvm.ExecutionEngine) -> None:
        self._engine = engine

    def address(self, function: str) -> int:
        """The address of an exported function. Raises KeyError if there is none of that name."""
        address = int(self._engine.get_function_address(function))
        if not address:
            raise KeyError(function)
        return address


def load_object(code: bytes, manifest: Manifest) -> Code:
    """Load object code that exports `tw_main`; nothing is compiled.

    Raises InvalidFile where the bytes are no object for this kind of machine, or where the manifest asks for CPU
    features that this machine lacks.
    """
    lacking = missing_features(manifest.features)
    if not same_platform(manifest.triple) or lacking:
        what = f"the CPU features {', '.join(lacking)}" if lacking else f"a machine of kind {manifest.triple}"
        here = f"{host_triple()}, {llvm.get_host_cpu_name()}"
        raise InvalidFile(
            f"the machine code of {manifest.name!r} needs {what}; this machine is {here}",
            help="`--rebuild` compiles it for this machine from the program that is stored beside the code",
        )
    if not _is_object(code):
        raise InvalidFile(f"the machine code of {manifest.name!r} is not an ELF object for {host_triple()}")
    _initialize()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    loaded = Code(engine)
    try:
        loaded.address("tw_main")
    except KeyError:
        raise InvalidFile(f"the machine code of {manifest.name!r} exports no tw_main") from None
    return loaded


def load_ir(text: str, symbols: Mapping[str, int] | None = None) -> Code:
    """Compile LLVM IR of the runtime for this machine. `symbols` are addresses of functions that it declares."""
    _initialize()
    for name, address in (symbols or {}).items():
        llvm.add_symbol(name, address)
    module = llvm.parse_assembly(text)
    module.verify()
    machine = _target_machine()
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return Code(engine)


def missing_features(required: Iterable[str]) -> list[str]:
    """The CPU features among `required` that this machine lacks."""
    return sorted(set(required).difference(host().features))


def same_platform(triple: str) -> bool:
    """Whether code for `triple` has this machine's instruction set and operating system."""
    return _platform(triple) == _platform(host_triple())


def host_triple() -> str:
    return str(llvm.get_process_triple())


def _is_object(code: bytes) -> bool:
    """Whether this is a whole relocatable ELF file for this machine: LLVM's loader does not check that itself."""
    if len(code) < _ELF_HEADER.size:
        return False
    magic, kind, machine, sections, section_bytes, section_count = _ELF_HEADER.unpack_from(code)
    expected = _ELF_MACHINE.get(_platform(host_triple())[0], machine)
    whole = bool(sections + section_bytes * section_count <= len(code))
    return whole and magic == b"\x7fELF\x02\x01" and kind == _ELF_RELOCATABLE and machine == expected


def _target_machine() -> llvm.TargetMachine:
    return llvm.Target.from_triple(host_triple()).create_target_machine(opt=2, jit=True)


def _platform(triple: str) -> tuple[str, str]:
    parts = llvm.get_triple_parts(triple)
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(parts.Arch, parts.Arch)
    return arch, parts.OS


@functools.cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
