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

    A statement that reads its own element and then writes it goes on with the same value: it adds to a sum. What is
    copied is the same value at another place.
    """

    def __init__(self) -> None:
        self.count = 0
        self.states: dict[object, dict[str, Array]] = {}
        self.copied: dict[str, Array] = {}

    def touched(
        self, view: object, program: int | None, places: Array, writes: Array, own: Array, begins: Array, known: Array
    ) -> tuple[Array, Array]:
        """The numbers of the values at these places of a view, after a write, and which are the first values of sums.

        One row for each element that is touched, in the order of time. `program` is the one that a scratch view is of.
        `own`: the statement that the view holds touches it; `begins`: a write of what its sums begin with. Values that
        are written may have numbers that are `known`, below zero, and have other ones where that is 0.
        """
        state = self._state(view, program, int(places.max()) + 1)
        if not (writes | own).any():
            return state["number"][places], state["ready"][places]
        history = _History(places)
        written = history.rows(writes, True)
        last_write = history.last(written)
        last_read = history.last(history.rows(own & ~writes, state["read"]))
        adds = np.zeros(len(written), np.bool_)  # to what the statement has read since the write before
        adds[1:] = history.rows(own, False)[1:] & (last_read[:-1] >= last_write[:-1])
        replaced = written & ~adds
        numbers = history.rows(np.where(known < 0, known, self._new(len(known))), state["number"])
        numbers = numbers[history.last(replaced)]
        ready = history.rows(begins, state["ready"])[last_write]
        history.keep(state, {"number": numbers, "read": last_read >= last_write, "ready": ready})
        return history.in_time(numbers), history.in_time(ready)

    def copy(self, view: object, program: int | None, places: Array, writes: bool) -> None:
        """A read of values that the next write, of as many places, copies."""
        state = self._state(view, program, int(places.max()) + 1)
        if not writes:
            self.copied = {name: values[places] for name, values in state.items()}
            return
        for name, values in state.items():
            values[places] = self.copied[name]

    def _state(self, view: object, program: int | None, size: int) -> dict[str, Array]:
        """What is known of each of so many elements of a view, and of more."""
        state = self.states.setdefault((view, program), {})
        old = len(state["number"]) if state else 0
        if old < size:
            added = {"number": self._new(2 * size - old), "read": False, "ready": False}
            for name, values in added.items():
                more = np.broadcast_to(np.asarray(values), (2 * size - old,))
                state[name] = np.concatenate([state[name], more]) if old else more.copy()
        return state

    def _new(self, count: int) -> Array:
        """So many numbers that no value has."""
        self.count += count
        return np.arange(self.count - count, self.count)


class _History:
    """What happens at each place: rows by place, of each first what it held before, then what touches it, by time."""

    def __init__(self, places: Array) -> None:
        elements, count = np.unique(places), len(places) + 1
        rows = np.concatenate([elements * count, places * count + np.arange(1, count)])
        rows.sort()
        self.places, times = np.divmod(rows, count)
        self.before = times == 0
        self.times = times - 1

    def rows(self, touched: Array, before: Array | bool) -> Array:
        """For each row what is given of what touches the place, or of what places held before."""
        held = before[self.places] if isinstance(before, np.ndarray) else before
        return np.where(self.before, held, touched[self.times])

    def last(self, marked: Array) -> Array:
        """For each row the last one up to it that is marked; -1 where there is none."""
        return np.maximum.accumulate(np.where(marked, np.arange(len(marked)), -1))

    def keep(self, state: Mapping[str, Array], rows: Mapping[str, Array]) -> None:
        """Let places hold what their last rows say."""
        last = np.append(self.before[1:], True)
        for name, values in rows.items():
            state[name][self.places[last]] = values[last]

    def in_time(self, rows: Array) -> Array:
        """The rows of what touches places, in the order of time."""
        found = np.empty(len(rows) - np.count_nonzero(self.before), rows.dtype)
        found[self.times[~self.before]] = rows[~self.before]
        return found


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
