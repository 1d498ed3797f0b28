"""What the shell offers for values of options and arguments that are from a known set.

A command asks for a set by its name; the modules that know it are imported when the shell asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Values = Callable[[], Iterable[str]]


def among(values: Values, *, several: bool = False) -> Callable[[str], list[str]]:
    """The completion of a value that is one of `values`; with `several` of the last in a list with commas.

    >>> among(lambda: ("cpu", "cuda", "emulator"))("c")
    ['cpu', 'cuda']
    >>> among(lambda: ("G1", "G2"), several=True)("G2,G")
    ['G2,G1', 'G2,G2']
    """

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        return [f"{before}{comma}{value}" for value in values() if value.startswith(last)]

    return complete


# Machines and how code is made for them


def machines() -> Iterable[str]:
    from tilewright.machine import names

    return names()


def devices() -> Iterable[str]:
    from tilewright.runtime.cuda.devices import DEVICES

    return DEVICES


def fusions() -> Iterable[str]:
    from tilewright.options import FUSIONS

    return FUSIONS


def clusters() -> Iterable[str]:
    from tilewright.options import CLUSTER_SIZES

    return map(str, CLUSTER_SIZES)


def tile_passes() -> Iterable[str]:
    """The passes on tile programs."""
    from tilewright.kernel.passes.table import PASSES

    return PASSES


def optional_passes() -> Iterable[str]:
    """The passes on graphs and on tile programs that can be switched off."""
    from tilewright.graph.passes.table import NAMES
    from tilewright.kernel.passes.table import OPTIMISATIONS

    return dict.fromkeys((*NAMES, *OPTIMISATIONS))


# Operators, element types and intrinsics


def operators() -> Iterable[str]:
    from tilewright.expr.ops.catalogue import OPERATORS

    return OPERATORS


def dtypes() -> Iterable[str]:
    from tilewright.expr.dtypes import DTYPES

    return DTYPES


def float_dtypes() -> Iterable[str]:
    from tilewright.expr.dtypes import DTYPES, is_float

    return filter(is_float, DTYPES)


def operand_types() -> Iterable[str]:
    """The element types of operands of matrix intrinsics."""
    from tilewright.instruction.mma.problem import TYPES

    return TYPES


def intrinsics() -> Iterable[str]:
    from tilewright.intrinsics.registry import standard

    return (record.name for record in standard())


def intrinsic_targets() -> Iterable[str]:
    from tilewright.intrinsics.registry import standard

    return standard().targets


def mapping_modes() -> Iterable[str]:
    from tilewright.instruction.mapping import MODES

    return MODES


def schedule_policies() -> Iterable[str]:
    from tilewright.instruction.mma.policy import POLICIES

    return POLICIES


def schedule_paths() -> Iterable[str]:
    """The paths of the deduction of a matrix schedule, and the intrinsics."""
    from tilewright.instruction.mma.policy import PATHS

    return *PATHS, *intrinsics()


# Published workloads and experiments


def workloads() -> Iterable[str]:
    from tilewright.graph.chain.workloads import NAMES

    return NAMES


def workload_kinds() -> Iterable[str]:
    from tilewright.graph.chain.workloads import KINDS

    return KINDS


def workload_shapes() -> Iterable[str]:
    """The networks, and the numbers of chains: G1 to G12, C1 to C8."""
    from tilewright.graph.chain.workloads import CONV_CHAINS, GEMM_CHAINS, NETWORKS

    gemms = (f"G{number}" for number, _ in enumerate(GEMM_CHAINS, 1))
    return *NETWORKS, *gemms, *(f"C{number}" for number, _ in enumerate(CONV_CHAINS, 1))


def dataflows() -> Iterable[str]:
    from tilewright.cli.search_workload import ANY
    from tilewright.graph.dataflows.table import ATTENTION, CONVOLUTIONS

    return "all", ANY, *dict.fromkeys(name.lower() for name in (*ATTENTION, *CONVOLUTIONS))


def experiments() -> Iterable[str]:
    from tilewright.reproduce.experiment import EXPERIMENTS

    return (each.name for each in EXPERIMENTS)


def experiment_layers() -> Iterable[str]:
    """The layers of ResNet-18 and the shapes of workloads: each experiment has some of them."""
    from tilewright.reproduce.amos.layers import named_layers

    return dict.fromkeys((*named_layers(), *workload_shapes()))


def optimisations() -> Iterable[str]:
    """What `reproduce` can leave out of products on a GPU."""
    from tilewright.reproduce.matmul.switches import SWITCHES

    return SWITCHES


def matrix_instructions() -> Iterable[str]:
    """The kinds of matrix instructions that `reproduce` compares."""
    from tilewright.reproduce.matmul.switches import INTRINSICS

    return INTRINSICS


def worked_cases() -> Iterable[str]:
    from tilewright.reproduce.matmul.worked_cases import CASES

    return (each.name for each in CASES)
