"""Machine code in memory: from object code, or from LLVM IR of the runtime itself, to addresses of functions.

No user needs a compiler or a linker: LLVM's own loader places the sections and resolves names in this process.
"""

from __future__ import annotations

import functools
import struct
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress

import llvmlite.binding as llvm

from tilewright.codegen.optimise import inline
from tilewright.codegen.unlocked import emit_object, llvm_lock
from tilewright.errors import InvalidFile
from tilewright.machine.detect import host
from tilewright.runtime.manifest import Manifest

# Elf64_Ehdr, elf(5): e_ident, e_type, e_machine, e_shoff, e_shentsize, e_shnum
_ELF_HEADER = struct.Struct("<6s10xHH20xQ10xHH2x")
_ELF_RELOCATABLE = 1
_ELF_MACHINE = {"x86_64": 62, "aarch64": 183}


class Code:
    """Loaded machine code. The addresses stay valid while this object lives.

    Each has a linker of its own, which frees with it what a shared one keeps of every object it has linked: 9 kB. It is
    LLVM's newer one, which places code and constants next to each other; the older one asks the system for each, and
    ends the process where they come to lie more than 2 GB apart.
    """

    def __init__(self, code: bytes, functions: Iterable[str], symbols: Mapping[str, int] | None = None) -> None:
        """Link an object that exports `functions`; what it calls is among `symbols` or in this process.

        Raises RuntimeError where a name is missing on either side.
        """
        _unload_pending(wait=True)
        builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        for name, address in (symbols or {}).items():
            builder.import_symbol(name, address)
        for name in functions:
            builder.export_symbol(name)
        _initialize()
        linker = llvm.create_lljit_compiler(use_jit_link=True)
        self._library = builder.link(linker, "object")
        weakref.finalize(self, _unload, self._library, linker).atexit = False

    def address(self, function: str) -> int:
        """The address of one of the exported functions."""
        return int(self._library[function])


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
    if not is_object(code, host_triple()):
        raise InvalidFile(f"the machine code of {manifest.name!r} is not an ELF object for {host_triple()}")
    try:
        return Code(code, ["tw_main"])
    except RuntimeError as error:
        raise InvalidFile(f"the machine code of {manifest.name!r} cannot be loaded: {error}") from error


def load_ir(text: str, functions: Iterable[str], symbols: Mapping[str, int] | None = None) -> Code:
    """Compile and load LLVM IR of the runtime. `symbols` are addresses of functions that it declares."""
    _initialize()
    module = llvm.parse_assembly(text, context=llvm.create_context())
    module.verify()
    machine = llvm.Target.from_triple(host_triple()).create_target_machine(opt=2, reloc="pic", codemodel="small")
    inline(module, machine)
    return Code(emit_object(machine, module), functions, symbols)


def missing_features(required: Iterable[str]) -> list[str]:
    """The CPU features among `required` that this machine lacks."""
    return sorted(set(required).difference(host().features))


def same_platform(triple: str) -> bool:
    """Whether code for `triple` has this machine's instruction set and operating system."""
    return _platform(triple) == _platform(host_triple())


def host_triple() -> str:
    return str(llvm.get_process_triple())


def is_object(code: bytes, triple: str) -> bool:
    """Whether this is a whole relocatable ELF file for a machine: LLVM's loader does not check that itself."""
    if len(code) < _ELF_HEADER.size:
        return False
    magic, kind, machine, sections, section_bytes, section_count = _ELF_HEADER.unpack_from(code)
    expected = _ELF_MACHINE.get(_platform(triple)[0], machine)
    whole = bool(sections + section_bytes * section_count <= len(code))
    return whole and magic == b"\x7fELF\x02\x01" and kind == _ELF_RELOCATABLE and machine == expected


def _platform(triple: str) -> tuple[str, str]:
    parts = llvm.get_triple_parts(triple)
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(parts.Arch, parts.Arch)
    return arch, parts.OS


def _unload(library: llvm.ResourceTracker, linker: llvm.LLJIT) -> None:
    """Unload now if no other thread is in LLVM, else at the next load.

    Garbage collection calls this in any thread, whatever locks that thread holds. If it waited here for a thread that
    forks, and the fork for one of these locks, both would wait forever.
    """
    _pending.append((library, linker))
    _unload_pending(wait=False)


def _unload_pending(wait: bool) -> None:
    if _pending and (llvm_lock is None or llvm_lock.acquire(blocking=wait)):
        try:
            while _pending:
                with suppress(IndexError):  # the handler of a signal has unloaded the last
                    library, linker = _pending.popleft()
                    library.close()
                    linker.close()
        finally:
            if llvm_lock is not None:
                llvm_lock.release()


@functools.cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


# Code to unload once no other thread is in LLVM.
_pending: deque[tuple[llvm.ResourceTracker, llvm.LLJIT]] = deque()
