"""Targets: what the compiler has for each kind of machine, as a manifest of three entries.

`rules` make scheduled kernels of the groups of a graph. `passes` are the pipeline of the tile program. `codegen` makes
code. No other file of the compiler chooses by the kind of a machine: it asks the machine's target.

An entry is imported when it is used: a product for a CPU needs no module of GPUs, a cached module no entry at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from tilewright.codegen.host_program import HostProgram
from tilewright.collection import imports
from tilewright.dataclass import dataclass
from tilewright.options import Options

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.passes import ModulePass

    from tilewright.compiler.plan import Plan
    from tilewright.compiler.planning import Rules
    from tilewright.compiler.program import Placement


class Generated(NamedTuple):
    """What code generation leaves of a plan: `tiles` is the program of whole tiles where `program` is another one."""

    code: bytes
    constants: np.ndarray[Any, Any]
    program: str
    tiles: str
    host_program: HostProgram


class Codegen(Protocol):
    """A module of code generation. `machine` is of the kind that it is for."""

    def tile_program(self, plan: Plan, placement: Placement, machine: Any, options: Options) -> ModuleOp:
        """The tile program of a plan, as it is stored and as `--emit tile` shows it."""

    def generate(self, plan: Plan, placement: Placement, machine: Any, options: Options) -> Generated:
        """The code of a plan, to be stored and run."""

    def form(self, program: ModuleOp, name: str, options: Options, where: str) -> str | bytes:
        """A form that follows a tile program ("llvm", "asm", …); raises InvalidArgument for one that it has not."""


@dataclass(frozen=True)
class Target:
    """What there is for one kind of machine.

    `code` names the form of the code in an artifact. Code that is `on_host` runs in the caller's process, on threads:
    its products can be searched by measurements.
    """

    kind: str
    code: str
    on_host: bool
    _rules: Callable[[], Rules]
    _codegen: Callable[[], Codegen]

    @property
    def rules(self) -> Rules:
        """How groups of a graph become scheduled kernels."""
        with imports():
            return self._rules()

    @property
    def passes(self) -> tuple[ModulePass, ...]:
        """The pipeline of the tile program."""
        from tilewright.kernel.passes.table import PIPELINES

        return PIPELINES[self.kind]

    @property
    def codegen(self) -> Codegen:
        """How the tile program becomes code."""
        with imports():
            return self._codegen()

    def threads(self, count: int) -> int:
        """The threads that a plan is made for, where a caller has `count`."""
        return count if self.on_host else 1
