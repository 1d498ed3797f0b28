"""Which value each element of memory holds while a program runs, and which elements the points of loops read at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.expr.core import Apply, Axis, Const, Expr, Read, walk
from tilewright.tiles.kernel import Kernel

Array = np.ndarray[Any, Any]


class HeldValues:
    """Numbers of the values that memory holds: an element that is written again holds another value.

    A statement that reads its own element and then writes it goes on with the same value: it adds to a sum.
    """

    def __init__(self) -> None:
        self.numbers: dict[object, int] = {}
        self.states: dict[object, dict[str, Array]] = {}

    def touched(
        self, view: object, program: int | None, places: Array, writes: bool, own: bool, begins: bool
    ) -> tuple[Array, Array]:
        """The numbers of the values at these places of a view, after a write, and which are the first values of sums.

        `program` is the one that a scratch view is of. `own`: the statement that the view holds touches it; `begins`: a
        write of what its sums begin with.
        """
        number = self.numbers.setdefault(view, len(self.numbers))
        state = self.states.setdefault((view, program), {})
        size = int(places.max()) + 1
        for name in ("version", "read", "ready"):
            old = state.get(name)
            if old is None or len(old) < size:
                grown: Array = np.zeros(2 * size, np.int64 if name == "version" else np.bool_)
                if old is not None:
                    grown[: len(old)] = old
                state[name] = grown
        version, read, ready = state["version"], state["read"], state["ready"]
        if writes:
            version[places] += ~read[places] if own else 1
            read[places], ready[places] = False, begins
        elif own:
            read[places] = True
        return (version[places] << 40 | places) << 8 | number, ready[places]


def read_by_points(kernel: Kernel, tensor: str, size: int) -> Array | None:
    """Which of so many elements of a tensor's memory some point of the loops reads; None where data says which."""
    reads = {
        node.indices[0]
        for statement in kernel.statements
        for node in walk(statement.body)
        if isinstance(node, Read) and node.indices and node.tensor.name == tensor
    }
    found = np.zeros(size, np.bool_)
    for index in reads:
        axes = list(dict.fromkeys(node for node in walk(index) if isinstance(node, Axis)))
        grid = {
            axis: np.arange(axis.size).reshape([-1 if n == number else 1 for n in range(len(axes))])
            for number, axis in enumerate(axes)
        }
        places = _addresses(index, grid)
        if places is None:
            return None
        places = np.asarray(places).reshape(-1)
        found[places[(places >= 0) & (places < size)]] = True
    return found if reads else None


_ARITHMETIC = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide, "mod": np.mod,
    "neg": np.negative, "min": np.minimum, "max": np.maximum,
}  # fmt: skip


def _addresses(index: Expr, grid: Mapping[Axis, Array]) -> Array | None:
    """The values of an index at all points of a grid; None where it reads a tensor."""
    if isinstance(index, Axis):
        return grid[index]
    if isinstance(index, Const):
        return np.asarray(int(index.value))
    if not isinstance(index, Apply) or index.function not in _ARITHMETIC:
        return None
    values = [_addresses(each, grid) for each in index.args]
    return None if any(each is None for each in values) else np.asarray(_ARITHMETIC[index.function](*values))
