"""Each architecture in a process of its own, with bounds of time and memory."""

from __future__ import annotations

import multiprocessing
import resource
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from tests.models.definition import Architecture
from tests.models.outcome import Outcome, Way

PRELOADED = ("torch", "torch.onnx", "onnxscript", "torchvision", "timm", "transformers", "tests.models.measure")
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Limits:
    """Bounds of one process. Processor time counts, since a machine may be shared; elapsed time is four times that."""

    cpu_seconds: int = 300
    resident_bytes: int = 8 << 30


def outcomes(entries: list[tuple[Architecture, Way]], limits: Limits) -> Iterator[Outcome]:
    """What comes of each, one after the other."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    for architecture, way in entries:
        if missing := architecture.missing():
            yield Outcome(architecture.name, architecture.family, way, "skipped", reason=missing)
            continue
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(architecture, way, limits, send))
        process.start()
        send.close()
        with receive:
            yield _awaited(process, receive, limits) or Outcome(
                architecture.name, architecture.family, way, "failed", "limit", _end(process, limits)
            )


def _work(architecture: Architecture, way: Way, limits: Limits, send: Connection) -> None:
    from tests.models.measure import measure

    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_seconds, limits.cpu_seconds + 5))
    try:
        send.send(measure(architecture, way))
    except Exception:
        reason = traceback.format_exc().strip().splitlines()[-1]
        send.send(Outcome(architecture.name, architecture.family, way, "failed", "run", reason))


def _awaited(process: multiprocessing.process.BaseProcess, receive: Connection, limits: Limits) -> Outcome | None:
    """What the process sends; None where it ends or is ended before."""
    end = time.monotonic() + 4 * limits.cpu_seconds
    while time.monotonic() < end and _resident_bytes(process.pid) <= limits.resident_bytes:
        if receive.poll(POLL_SECONDS):
            try:
                outcome: Outcome = receive.recv()
            except EOFError:
                return None
            process.join()
            return outcome
    return None


def _end(process: multiprocessing.process.BaseProcess, limits: Limits) -> str:
    """End the process; why it sent nothing."""
    process.join(1)
    resident = _resident_bytes(process.pid)
    if process.exitcode is not None:
        return f"the process ended with exit status {process.exitcode}"
    process.kill()
    process.join()
    if resident > limits.resident_bytes:
        return f"more than {limits.resident_bytes >> 20} MiB"
    return f"more than {4 * limits.cpu_seconds} s"


def _resident_bytes(pid: int | None) -> int:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()
