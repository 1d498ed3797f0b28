"""The process of one contender on one network: it prepares, says so, waits for its turn, and is timed.

Each line of standard output is what is known so far, so that a process that dies or hangs loses only the rest.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from bench.gpu.clock import Clock, CudaClock, WallClock
from bench.gpu.networks.cases import networks
from bench.gpu.networks.contenders import Compiled, Contender, Eager, Ours
from bench.gpu.networks.results import COMPILED, EAGER, OURS


def main(network: str, batch: int, contender: str, device: str, mode: str, machine: str | None = None) -> None:
    """Only answers go to standard output, whatever libraries and compilers print."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    torch.set_num_threads(2)  # many such processes prepare at once
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # f32 means f32
    clock: Clock = CudaClock(torch) if device == "cuda" else WallClock()
    facts = _machine(torch, device)

    stages: list[str] = []

    def say(stage: str, turn: bool = False) -> None:
        stages.append(stage)
        rows = [asdict(row) for row in found.rows]
        print(json.dumps({"machine": facts, "rows": rows, "stage": stage, "turn": turn}), file=answers, flush=True)

    (chosen,) = [each for each in networks(device) if each.name == network]
    makers: dict[str, Callable[..., Contender]] = {
        OURS: partial(Ours, machine=machine),
        EAGER: Eager,
        COMPILED: partial(Compiled, mode=mode),
    }
    found: Contender = makers[contender](chosen, batch, device, torch, clock, say)
    try:
        found.prepare()
        say("its turn", turn=True)
        found.measure(json.loads(sys.stdin.readline())["seconds"])
    except Exception as error:  # whatever a contender does is a fact about it
        row = found.rows[-1]
        reason = f"{type(error).__name__} at {stages[-1]}: {str(error).strip()[:600]}"
        row.note = "; ".join(filter(None, [row.note, reason]))
        row.status = row.status if row.seconds is not None else "failed"
    say("nothing", turn=True)


def _machine(torch: Any, device: str) -> dict[str, Any]:
    cuda = device == "cuda"
    return {
        "device": torch.cuda.get_device_name(0) if cuda else "none: the emulator on the CPU",
        "torch": torch.__version__, "cuda": torch.version.cuda, "cores": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }  # fmt: skip
