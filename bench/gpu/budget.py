"""Who gets how much of the time: sections by weight, items of a section alike; what is left over passes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence


class Budget:
    """Divides `seconds` from now among items, given as the names of their sections in the order in which they run."""

    def __init__(
        self, seconds: float, weights: Mapping[str, float], order: Sequence[str], now: Callable[[], float]
    ) -> None:
        self._now, self._end = now, now() + seconds
        self._weights, self._left = weights, list(order)

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._end - self._now())

    def next_share(self) -> float:
        """Seconds for the next item: its part of its section, which has its part of the time that is left."""
        section = self._left[0]
        open_sections = dict.fromkeys(self._left)
        part = self._weights[section] / sum(self._weights[name] for name in open_sections)
        share = self.seconds_left * part / self._left.count(section)
        self._left.pop(0)
        return share
