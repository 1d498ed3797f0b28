"""The peers, one per file. Each runs in worker processes of its own; importing this package imports none of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from bench.peers import onnxruntime, openvino, tilewright, torch, torch_lifted
from bench.problem import Loaded, Task


class Peer(Protocol):
    """A way to run a task."""

    @property
    def name(self) -> str: ...

    def missing(self) -> str:
        """Why this peer can't run on this machine; empty if it can. Called in the runner, so it imports nothing big."""
        ...

    def environment(self, cores: Sequence[int], scratch: Path) -> dict[str, str]:
        """Variables for a worker that may use `cores`, one thread each; files they name may be made in `scratch`."""
        ...

    def load(self, task: Task) -> Loaded:
        """Compile a task, in the worker. Raises `SkippedError` for what this peer can't do."""
        ...

    def version(self) -> str:
        """In the worker: what exactly was measured."""
        ...


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        tilewright.Tilewright(),
        torch.Torch(),
        torch_lifted.TorchLifted(),
        onnxruntime.OnnxRuntime(),
        openvino.OpenVino(),
    )
}

OURS = "tilewright"
EARLIER = tilewright.Tilewright("earlier")  # another version of this project, from its own source tree


def select(names: list[str]) -> list[Peer]:
    """The peers of `names` ("all": every one). Raises ValueError for an unknown name."""
    unknown = [name for name in names if name != "all" and name not in PEERS]
    if unknown:
        raise ValueError(f"no peer {unknown[0]!r}; there are {', '.join(PEERS)}")
    return [peer for peer in PEERS.values() if "all" in names or peer.name in names]
