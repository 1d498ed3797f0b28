"""Targets: what the compiler has for each kind of machine, as a manifest of three entries.

`rules` make scheduled kernels of the groups of a graph. `passes` are the pipeline of the tile program. `codegen` makes
code. No other file of the compiler chooses by the kind of a machine: it asks the machine's target.

An entry is imported when it is used: a product for a CPU needs no module of GPUs, a cached module no entry at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from tilewright.codegen.host_program import HostProgram
from tilewright.collection import imports
from tilewright.dataclass import dataclass
from tilewright.machine import targets
from tilewright.machine.description import Cpu, Gpu
from tilewright.options import Options

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.passes import ModulePass

    from tilewright.compiler.planning import Plan, Planning
    from tilewright.compiler.program import Placement
    from tilewright.compiler.search import Searched
    from tilewright.decision import Decision
    from tilewright.expr.core import Compute, Tensor
    from tilewright.expr.graph import Graph, Loop
    from tilewright.graph.groups import Group
    from tilewright.instruction.products import Target as ProductTarget
    from tilewright.intrinsics.registry import Registry
    from tilewright.operator.statements import Statements
    from tilewright.tiles.kernel import Kernel


class Rules(Protocol):
    """A module of rules. `machine` is of the kind that they are for."""

    @property
    def ORDERED(self) -> bool:  # noqa: N802
        """Whether there are kernels for ordered accumulations; else they become reductions."""

    @property
    def TRANSPOSED_COPIES(self) -> bool:  # noqa: N802
        """Whether a map that writes along another loop than it reads takes two kernels, the second a copy."""

    @property
    def ZERO_BORDER_BYTES(self) -> int:  # noqa: N802
        """Bytes of the largest tensor whose border of zeros is never written.

        Such a tensor shares memory with fewer others. Writing the border of a larger one takes a small part of the time
        in which the tensor is written.
        """

    def leave_border(self, planning: Planning, tensor: Tensor, order: Sequence[int], machine: Any) -> bool:
        """Whether the border of a tensor stored in `order` need not be in memory; adds a decision where it may not."""

    def combined_cycles(self, planning: Planning, node: Compute, machine: Any) -> float | None:
        """Predicted cycles of a kernel of a product, for whether one product takes the place of several that share a
        factor; None where none does.
        """

    def records(self, machine: Any) -> Registry:
        """The records of intrinsics that a plan may use where the user gives none."""

    def mappings(self, planning: Planning, machine: Any) -> ProductTarget:
        """How products are mapped to the intrinsics of a machine."""

    def add_rows(self, planning: Planning, group: Group, statements: Statements, flops: int, machine: Any) -> None:
        """Add the kernels of the statements of a row group or pointwise group, whose results are placed."""

    def schedule_rows(
        self, statements: Statements, machine: Any, threads: int, subject: str, lanes: int = 0
    ) -> tuple[Kernel, Decision]:
        """The kernel of statements; vectors have `lanes` lanes where an instruction was chosen."""

    def row_cycles(self, machine: Any, scheduled: Kernel, decision: Decision) -> Callable[[Kernel], float]:
        """What predicts the cycles of a kernel of rows, of which `scheduled` is the rule's, chosen by `decision`."""

    def join_products(self, planning: Planning, steps: Sequence[Group | Loop], machine: Any) -> Sequence[Group | Loop]:
        """The steps of a plan with products that are to run in one kernel as one group."""

    def plan_product(self, planning: Planning, group: Group, machine: Any) -> None:
        """Place the result of a product with its epilogue, and add its kernels."""

    def plan_ordered(self, planning: Planning, group: Group, machine: Any) -> None:
        """Place the result of an ordered accumulation, and add its kernels."""

    def search_products(self, graph: Graph, machine: Any, threads: int, options: Options) -> Searched:
        """Choose how every product of a graph runs by measurements; raises InvalidArgument where that is not done."""


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

    `code` names the form of the code in an artifact. Code that is `on_host` runs in the caller's process, on threads.
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


def target_of(machine: Cpu | Gpu) -> Target:
    """The target of a machine."""
    return TARGETS[machine.kind]


def target_of_program(program: ModuleOp) -> Target:
    """The target that a tile program names; that of CPUs where it names none."""
    from tilewright.kernel.target import triple_of

    return TARGETS["gpu" if triple_of(program) in targets.GPUS else "cpu"]


def _cpu_rules() -> Rules:
    from tilewright.compiler import cpu_rules

    return cpu_rules


def _cpu_codegen() -> Codegen:
    from tilewright.compiler import cpu

    return cpu


def _gpu_rules() -> Rules:
    from tilewright.compiler import gpu_rules

    return gpu_rules


def _gpu_codegen() -> Codegen:
    from tilewright.compiler import gpu

    return gpu


TARGETS = {
    "cpu": Target("cpu", "object", True, _cpu_rules, _cpu_codegen),
    "gpu": Target("gpu", "ptx", False, _gpu_rules, _gpu_codegen),
}
