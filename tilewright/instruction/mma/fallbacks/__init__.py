"""Strategies without matrix intrinsics, for what no intrinsic takes; tried in the order of `FALLBACKS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tilewright.instruction.mma.config import KernelConfig
from tilewright.instruction.mma.fallbacks.generic import generic
from tilewright.instruction.mma.fallbacks.simt import simt
from tilewright.instruction.mma.fallbacks.warp_reduction import warp_reduction
from tilewright.instruction.mma.policy import Path
from tilewright.instruction.mma.problem import MmaProblem
from tilewright.instruction.mma.reasons import Reason
from tilewright.instruction.mma.target import MmaTarget
from tilewright.instruction.mma.trace import Trace

Fallback = Callable[[MmaProblem, MmaTarget, Trace], KernelConfig | Reason]

FALLBACKS: Final[tuple[tuple[Path, Fallback], ...]] = (("SIMT", simt), ("WR", warp_reduction), ("GTF", generic))

__all__ = ["FALLBACKS", "Fallback", "generic", "simt", "warp_reduction"]
