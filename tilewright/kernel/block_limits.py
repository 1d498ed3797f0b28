"""What a block may have, whatever made its kernel: the rules of configurations that hold of all, for its machine.

The other rules are those of configurations that are neither padded nor held twice; kernels may be either.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.errors import InvalidProgram
from tilewright.instruction.mma.tensor_core_config import Violation, too_many_threads, too_much_memory
from tilewright.kernel.attributes import registers_of
from tilewright.kernel.facts import Facts
from tilewright.kernel.programs import FuncOp


def check_threads(kernel: FuncOp, block: tuple[int, int, int], facts: Facts) -> None:
    """Refuse a kernel with more threads along x, y and z, or registers for each, than the machine has."""
    _refuse(kernel, too_many_threads(block, facts.threads))
    registers = registers_of(kernel)
    if registers is not None and registers > facts.registers:
        fact = f"kernel {kernel.sym_name.data}: registers = {registers}"
        raise InvalidProgram(fact, help=f"a thread of this machine has {facts.registers} at most")


def check_shared(kernel: FuncOp, shared_bytes: int, facts: Facts) -> None:
    """Refuse a kernel with more shared memory than a block of the machine may have, where that is known."""
    if facts.shared_bytes:
        _refuse(kernel, too_much_memory(shared_bytes, facts.shared_bytes))


def _refuse(kernel: FuncOp, violations: Iterable[Violation]) -> None:
    for violation in violations:
        raise InvalidProgram(f"kernel {kernel.sym_name.data}: {violation}", help=violation.help)
