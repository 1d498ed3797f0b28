"""Instructions that `ptxas` makes of PTX for sm_90a, where it is found."""

from __future__ import annotations

import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tilewright.codegen.nvptx import ptxas

# Opcodes as `ptxas` 13.0 writes them, the low 12 bits of an instruction; their names are those of nvdisasm.
LDSM, HGMMA_OF_REGISTERS, ACQBULK = 0x83B, 0xDF0, 0x82E


@dataclass(frozen=True)
class Instruction:
    """The opcode, and the numbers of the registers that are written and read first."""

    opcode: int
    written: int
    read: int


def machine_code(ptx: str) -> dict[str, list[Instruction]]:
    """The instructions of every kernel in order."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        subprocess.run([str(ptxas.find()), "-arch=sm_90a", str(source), "-o", str(target)], check=True)
        raw = target.read_bytes()
    (table,), (size, count, names) = struct.unpack_from("<Q", raw, 0x28), struct.unpack_from("<HHH", raw, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", raw, table + number * size) for number in range(count)]
    start = sections[names][4]
    found = {}
    for section in sections:
        name = raw[start + section[0] :].partition(b"\0")[0].decode()
        if name.startswith(".text."):
            code = raw[section[4] : section[4] + section[5]]
            words = [struct.unpack_from("<I", code, at)[0] for at in range(0, len(code), 16)]
            found[name[6:]] = [Instruction(word & 0xFFF, word >> 16 & 0xFF, word >> 24) for word in words]
    return found
