"""Which loops of a statement an intrinsic executes, by name: the value that leaves of tile trees carry."""

from __future__ import annotations

from tilewright.dataclass import dataclass
from tilewright.fields import Readable, optional, required, several, string, whole


@dataclass(frozen=True)
class ProductMapping(Readable):
    """Which loops of a product an intrinsic executes, by name: `rows` and `columns` of sums, `depth` innermost last.

    On a CPU a register of the intrinsic holds `lanes` columns, and one instruction takes `group` neighbours of the
    innermost depth loop. Loops in `padded` may be read up to the end of the last tile: the storage of the second
    operand has zeros there. `precision` is that in which factors are multiplied, where it is not their own.
    """

    intrinsic: str = required(string)
    rows: tuple[str, ...] = required(several(string))
    columns: str = required(string)
    depth: tuple[str, ...] = required(several(string))
    lanes: int = optional(whole(0, 31), 0)
    group: int = optional(whole(0, 31), 1)
    padded: tuple[str, ...] = optional(several(string), ())
    precision: str = optional(string, "")
