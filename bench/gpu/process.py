"""A process that answers in lines of JSON, and may die or hang without ending the one that asks."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

END_SECONDS = 10.0  # for a process to go, when it is ended


class Lost(Exception):
    """The process is gone; the text says how."""


class Process:
    """`python -m` with these arguments, and with these variables added to the environment."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, message: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise Lost("the process had ended") from error

    def answer(self, limit: float) -> dict[str, Any]:
        """The next line; raises Lost where the process dies or takes longer than `limit` seconds."""
        try:
            line = self._lines.get(timeout=max(0.0, limit))
        except queue.Empty:
            raise Lost(f"took longer than {limit:.0f} s") from None
        if not line:
            raise Lost(f"the process ended with status {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> None:
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # the driver may take its time to stop a kernel that hangs
            self._process.wait(END_SECONDS)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")
