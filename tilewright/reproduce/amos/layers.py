"""ResNet-18's convolutions C0 to C11: the mappings that were published as chosen (Table 5.4), and the A100 logs.

Loops: n batch, k filters, p and q rows and columns of the output, c channels, r and s rows and columns of the window.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.expr.core import Compute
from tilewright.instruction.mapping import Mapping, mapping_of
from tilewright.instruction.matching import match
from tilewright.instruction.physical import PhysicalMapping, physical
from tilewright.intrinsics.intrinsic import Intrinsic
from tilewright.reproduce.amos.operators import Configuration, resnet18

LOOPS = "nkpqcrs"  # of a 2-D convolution, in the order of the expression
BATCH = 16  # of Table 5.4


@dataclass(frozen=True)
class Chosen:
    """A row of Table 5.4 (fact): the mapping ``(i1|i2|r1)`` that was chosen at batch 16."""

    name: str
    mapping: str

    @property
    def configuration(self) -> Configuration:
        return resnet18(BATCH)[int(self.name[1:])]


#: Table 5.4. The 12 rows have 8 kinds of mapping.
CHOSEN: tuple[Chosen, ...] = tuple(
    Chosen(f"C{number}", mapping)
    for number, mapping in enumerate((
        "(nq|k|crs)", "(nq|k|cr)", "(pq|k|c)", "(npq|k|cs)", "(pq|k|c)", "(pq|k|c)",
        "(n|k|cs)", "(npq|k|c)", "(pq|k|c)", "(npq|k|crs)", "(npq|k|c)", "(n|k|crs)",
    ))
)  # fmt: skip


@dataclass(frozen=True)
class Logged:
    """What AMOS's logs say of a layer on an A100, batch 1, NCHW, f16 (fact): k is on i2 throughout.

    `mappings` were kept, those whose fused extents are at least the tile's; `worst_over_best` compares the best
    schedules of the mappings.
    """

    name: str
    mappings: int
    best_seconds: float
    best: str
    worst_over_best: float


#: 250 to 750 measured schedules per layer.
LOGS: tuple[Logged, ...] = tuple(
    Logged(f"C{number}", count, round(milliseconds * 1e-3, 7), best, ratio)
    for number, (count, milliseconds, best, ratio) in enumerate((
        (18, 0.0352, "(np|k|crs)", 2.6), (20, 0.0331, "(npq|k|crs)", 3.9), (20, 0.0114, "(pq|k|crs)", 1.9),
        (20, 0.0254, "(npq|k|crs)", 3.6), (20, 0.0096, "(q|k|c)", 1.9), (20, 0.0462, "(p|k|c)", 4.4),
        (20, 0.0304, "(npq|k|cs)", 8.0), (20, 0.0128, "(q|k|c)", 1.5), (20, 0.0500, "(nq|k|cs)", 14.0),
        (8, 0.0432, "(npq|k|cs)", 3.3), (8, 0.0139, "(pq|k|c)", 1.3), (8, 0.1116, "(npq|k|c)", 3.5),
    ))
)  # fmt: skip


def named_layers(names: Sequence[str] = (), batch: int = 1) -> dict[str, Configuration]:
    """The layers with these names, C0 to C11; all without names. Raises InvalidArgument for another name."""
    known = {f"C{number}": each for number, each in enumerate(resnet18(batch))}
    for name in names:
        if name not in known:
            raise InvalidArgument(f"there is no layer {name!r}", where="--layers", help=f"some of {', '.join(known)}")
    return {name: each for name, each in known.items() if not names or name in names}


def convolution(configuration: Configuration) -> Compute:
    """The node of a configuration that sums products."""
    return [node for node in configuration.graph().nodes if node.accum == "sum"][-1]


def letters(node: Compute) -> dict[str, str]:
    """The letters of `LOOPS` by name of the loops of a 2-D convolution."""
    return {axis.name: letter for axis, letter in zip(node.loops, LOOPS, strict=True)}


def short(mapping: Mapping) -> str:
    """A mapping of a 2-D convolution in the letters of `LOOPS`: ``(npq|k|crs)``."""
    names = letters(mapping.match.compute)
    return f"({'|'.join(''.join(names[axis.name] for axis in axes) for axes in mapping.sets)})"


def place(configuration: Configuration, text: str, record: Intrinsic) -> PhysicalMapping:
    """The mapping that `text` writes in the letters of `LOOPS`, of a 2-D convolution onto `record`."""
    (found,) = match(convolution(configuration), record)
    names = {letter: name for name, letter in letters(found.compute).items()}
    sets = [[names[letter] for letter in part] for part in text.strip("()").split("|")]
    return physical(mapping_of(found, sets))
