"""The distributed form: kernels whose blocks start while the kernel before them in the stream still runs.

A kernel lets the next one start with `launch_dependents`. The next one waits with `wait_for_launches` before it
touches global memory: `verify` refuses an access before that. CUDA C++ Programming Guide, "Programmatic Dependent
Launch and Synchronization".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Operation
from xdsl.irdl import irdl_op_definition, traits_def
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from tilewright.kernel.dialect import AllocOp, FuncOp
from tilewright.kernel.simt import InBlock, block_of, is_shared


@irdl_op_definition
class LaunchDependentsOp(InBlock):
    """The next kernel of the stream may start once every block of this one has come here or has ended."""

    name = "simt.launch_dependents"
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "attr-dict"


@irdl_op_definition
class WaitForLaunchesOp(InBlock):
    """Wait until all kernels before this one have ended, and see all that they wrote to global memory.

    It stands in the body of the kernel itself, so that all threads of all blocks come to it.
    """

    name = "simt.wait_for_launches"
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "attr-dict"

    def verify_(self) -> None:
        if self.parent_op() is not block_of(self):
            raise VerifyException("inside of a loop or branch: all threads of a kernel wait, whichever way they take")


OPERATIONS: Final[tuple[type[Operation], ...]] = (LaunchDependentsOp, WaitForLaunchesOp)
"""All of these, for the dialect."""


def touches_global(op: Operation) -> bool:
    """Whether an operation, or one inside of it, takes a view of global memory, which neither block nor thread owns."""
    return any(
        type(operand.type) is MemRefType and not is_shared(operand) and type(operand.owner) is not AllocOp
        for each in op.walk()
        for operand in each.operands
    )


def launch_operations(kernel: FuncOp) -> Iterator[Operation]:
    """The operations of a kernel that order it with other kernels; all of them are in its body itself."""
    return (op for op in kernel.body.block.ops if type(op) in OPERATIONS)


def waits(kernel: FuncOp) -> bool:
    """Whether a kernel waits by itself for those before it."""
    return any(type(op) is WaitForLaunchesOp for op in kernel.body.block.ops)


def verify_wait(kernel: FuncOp) -> None:
    """VerifyException where a kernel touches global memory before it has waited for other kernels."""
    before: list[Operation] = []
    for op in kernel.body.block.ops:
        if type(op) is WaitForLaunchesOp:
            early = next(filter(touches_global, before), None)
            if early is not None:
                raise VerifyException(f"{early.name} touches global memory before {op.name}")
            return
        before.append(op)
