"""Operations that are started now and waited for in groups, at the level of tiles and of threads alike."""

from __future__ import annotations

from xdsl.irdl import prop_def, traits_def
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from tilewright.kernel.operation import NUMBER, KernelOp


class Commit(KernelOp):
    """What has been started since the last commit of this kind is a group, perhaps an empty one."""

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "attr-dict"


class Wait(KernelOp):
    """Wait for all groups of this kind but the `pending` latest."""

    pending = prop_def(NUMBER)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$pending attr-dict"

    def __init__(self, pending: int) -> None:
        super().__init__(pending=pending)

    def verify_(self) -> None:
        super().verify_()
        if self.pending.value.data < 0:
            raise VerifyException(f"waits for {self.pending.value.data} groups")
