"""What a worker process does with one graph: its programs for every machine, recorded or compared."""

from __future__ import annotations

import gc
from dataclasses import dataclass

from tests.replay.corpus import entries
from tests.replay.programs import REFUSED, kernels, program
from tests.replay.store import Store


@dataclass(frozen=True)
class Outcome:
    """What came of one graph on one machine."""

    name: str
    machine: str
    kernels: int
    refused: bool
    difference: str = ""


@dataclass(frozen=True)
class Job:
    """What a worker does with a graph."""

    store: Store
    machines: tuple[str, ...]
    threads: int
    records: bool
    patterns: tuple[str, ...]
    lowered: bool = False

    def __call__(self, number: int) -> list[Outcome]:
        entry = entries(list(self.patterns))[number]
        graph = entry.build()
        found = []
        for machine in self.machines:
            text = program(graph, machine, self.threads, self.lowered)
            difference = ""
            if self.records:
                self.store.put(entry.name, machine, text)
            else:
                difference = self.store.difference(entry.name, machine, text)
            found.append(Outcome(entry.name, machine, kernels(text), text.startswith(REFUSED), difference))
        gc.collect()
        return found
