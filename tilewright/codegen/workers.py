"""Work that threads do beside the caller, as it comes: for calls that release Python's lock, as those of LLVM do."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers(Generic[Item, Result]):
    """Applies `work` to items on up to `threads` threads, of which the caller of `results` is one.

    A thread starts with an item and ends when no item waits, so none outlives the `with` statement. Where the system
    refuses a thread, and in the child of a fork, the caller does all that is left.
    """

    def __init__(self, work: Callable[[Item], Result], threads: int) -> None:
        self._work = work
        self._most = threads - 1
        self._items: list[Item] = []
        self._waiting: deque[int] = deque()
        self._threads: list[threading.Thread] = []
        self._done: dict[int, Result] = {}
        self._failed: dict[int, BaseException] = {}

    def __enter__(self) -> Workers[Item, Result]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._waiting.clear()
        self._join()

    def give(self, item: Item) -> None:
        """Let a thread work on an item."""
        self._waiting.append(len(self._items))
        self._items.append(item)
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) < self._most:
            thread = threading.Thread(target=self._work_on)
            try:
                thread.start()
            except RuntimeError:  # no thread to be had, or the interpreter is shutting down
                return
            self._threads.append(thread)

    def results(self) -> list[Result]:
        """The results in the order of their items. Raises the error of the first item that has one."""
        self._work_on()
        self._join()
        for number, item in enumerate(self._items):
            if number in self._failed:
                raise self._failed[number]
            if number not in self._done:  # in the hands of a thread that a fork has left behind
                self._done[number] = self._work(item)
        return [self._done[number] for number in range(len(self._items))]

    def _work_on(self) -> None:
        while True:
            try:
                number = self._waiting.popleft()
            except IndexError:
                return
            try:
                self._done[number] = self._work(self._items[number])
            except Exception as error:
                self._failed[number] = error

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()
        self._threads = []
