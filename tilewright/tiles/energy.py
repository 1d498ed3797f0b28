"""Energy of accesses and operations, in units of one 16-bit multiply-add (spec 1, section 5.9).

The table is that of Timeloop's built-in model: DRAM, and a straight line for on-chip memory through 0.5 KB and 100 KB.
Beyond 100 KB the line would exceed DRAM for some megabytes, so that memory follows a square root from there on.
"""

from __future__ import annotations

from math import sqrt

from tilewright.expr import dtypes
from tilewright.expr.core import Compute
from tilewright.tiles.rescaling import Rescaled
from tilewright.tiles.resources import Level, Resources

DRAM_MACS = 200.0
LINE_END_KILOBYTES = 100.0
LINE_END_MACS = 6.0


def mac_energy(bits_a: int, bits_b: int) -> float:
    """Energy of one multiply-add of operands with these widths.

    >>> mac_energy(8, 16)
    0.5
    """
    return bits_a / 16 * bits_b / 16


def dram_energy(bits: int) -> float:
    """Energy of one access to a DRAM word."""
    return DRAM_MACS * bits / 16


def sram_energy(capacity_bytes: float, bits: int, *, line: bool = False) -> float:
    """Energy of one access to a word of on-chip memory or of a register file.

    With `line`, the straight line of Timeloop's model for every size.

    >>> round(sram_energy(256 * 1024, 16, line=True), 4), round(sram_energy(256 * 1024, 16), 4)
    (13.8392, 9.6)
    """
    kilobytes = capacity_bytes / 1024
    if kilobytes > LINE_END_KILOBYTES and not line:
        return LINE_END_MACS * sqrt(kilobytes / LINE_END_KILOBYTES) * bits / 16
    return (1 + (LINE_END_MACS - 1) / (LINE_END_KILOBYTES - 0.5) * (kilobytes - 0.5)) * bits / 16


def access_energies(level: Level) -> tuple[float, float, str]:
    """Energy of a read and of a write of one word of a level, and their source.

    The source is "machine" where the machine file states both, or the part of the table: "dram", "line" or "root".
    """
    if level.technology == "dram":
        by_table, source = dram_energy(level.word_bits), "dram"
    else:
        capacity = level.capacity_bytes or 0
        by_table = sram_energy(capacity, level.word_bits)
        source = "root" if capacity > LINE_END_KILOBYTES * 1024 else "line"
    read = by_table if level.read_energy_macs is None else level.read_energy_macs
    write = by_table if level.write_energy_macs is None else level.write_energy_macs
    stated = level.read_energy_macs is not None and level.write_energy_macs is not None
    return read, write, "machine" if stated else source


def energy_of_operation(compute: Compute, resources: Resources) -> float:
    """Energy of one evaluation of an expression: what the machine states, or a multiply-add of its first two operands.

    An expression that reads one tensor has both operands of its width, one that reads none of its result's.
    """
    stated = resources.units_of(compute).operation_energy_macs
    if stated is not None:
        return stated
    bits = [8 * dtypes.size_bytes(read.tensor.dtype) for read in compute.reads()][:2]
    bits = bits or [8 * dtypes.size_bytes(compute.output.dtype)]
    return mac_energy(bits[0], bits[-1])


def energy_of_multiplication(one: Rescaled, resources: Resources, total: Compute) -> float:
    """Energy of one multiplication of a rescaled sum: as `energy_of_operation`, of the sum by the running value."""
    stated = resources.units_of(total).operation_energy_macs
    if stated is not None:
        return stated
    return mac_energy(8 * dtypes.size_bytes(total.output.dtype), 8 * dtypes.size_bytes(one.value.dtype))
