"""Who computes a case: Tilewright, torch as it is, torch.compile, its attention by back end, Triton."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gpu.cases import Case

OURS = "tilewright"
TUNED = "tilewright tuned"  # the fastest of the few tiles that the model finds best
CLUSTERED = "tilewright clusters"  # blocks in pairs bring together what both read
MINE = (OURS, TUNED, CLUSTERED)
CLUSTER = 2
TRIALS = 5  # of each tile
BACKENDS = {
    "sdpa flash": "FLASH_ATTENTION", "sdpa cudnn": "CUDNN_ATTENTION", "sdpa efficient": "EFFICIENT_ATTENTION",
    "sdpa math": "MATH",
}  # fmt: skip
MACHINES = {(7, 5): "sm_75", (8, 0): "sm_80", (8, 6): "sm_86", (8, 9): "sm_89", (9, 0): "sm_90a"}


class Missing(Exception):
    """A contender that is not there, or has nothing for this case; the text says why."""


def names(case: Case) -> list[str]:
    """The contenders of a case, ours last: what a faulty kernel takes with it has been measured by then."""
    if case.family == "check":
        return [OURS]
    if case.build is None:
        return ["torch"]
    compiled = [] if case.one_call else ["torch.compile"]
    others = [*(["triton"] if case.triton else []), *(BACKENDS if case.sdpa else [])]
    return ["torch", *compiled, *others, OURS, *([TUNED, CLUSTERED] if case.family == "gemm" and case.triton else [])]


def prepare(name: str, case: Case, torch: Any, device: str, compiled: Path | None = None) -> Callable[..., Any]:
    """A function of torch tensors; ours from code in the folder `compiled`, if that is given.

    Raises Missing; other exceptions are failures of the contender.
    """
    if name == "torch":
        return case.torch
    if name == "torch.compile":
        torch._dynamo.reset()
        return torch.compile(case.torch, dynamic=False)  # type: ignore[no-any-return]
    if name == "triton":
        try:
            kernels = importlib.import_module("bench.gpu.triton_kernels")
        except ImportError as error:
            raise Missing(f"no triton: {error}") from error
        return getattr(kernels, case.triton)  # type: ignore[no-any-return]
    if name in BACKENDS:
        return _sdpa(BACKENDS[name], torch)
    if name == TUNED:
        return _tuned(case, torch, device, compiled)
    if name == CLUSTERED:
        return _clustered(case, torch, device, compiled)
    if compiled is not None:
        return _compiled(compiled / case.file_name, device)
    return _ours(case, torch, device)


def _sdpa(backend: str, torch: Any) -> Callable[..., Any]:
    try:
        attention = importlib.import_module("torch.nn.attention")
        chosen = getattr(attention.SDPBackend, backend)
    except (ImportError, AttributeError) as error:
        raise Missing(f"torch {torch.__version__} has no back end {backend}") from error

    def run(q: Any, k: Any, v: Any) -> Any:
        with attention.sdpa_kernel([chosen]):
            try:
                return torch.nn.functional.scaled_dot_product_attention(q, k, v)
            except RuntimeError as error:
                if str(error).startswith(("No viable backend", "No available kernel")):
                    raise Missing("the back end does not take this case on this machine") from error
                raise

    return run


def _compiled(path: Path, device: str) -> Callable[..., Any]:
    """Without the compiler, which the machine may lack."""
    from tilewright.runtime.artifact import Artifact
    from tilewright.runtime.cuda.module import DeviceModule

    if not path.exists():
        raise Missing(f"{path} was not compiled")
    return DeviceModule(Artifact.read(path), "cuda" if device == "cuda" else "emulator")


@dataclass(frozen=True)
class Tuned:
    """A module of ours, and its tile."""

    module: Any
    tile: str

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        return self.module(*arrays, **named)

    def resources(self) -> Any:
        return self.module.resources()


def _tuned(case: Case, torch: Any, device: str, compiled: Path | None) -> Tuned:
    """The fastest of our modules whose tiles differ."""
    if device != "cuda":
        raise Missing("tiles are measured on a device")
    if compiled is None:
        raise Missing("tiles are compiled ahead: --compile")
    from tilewright.runtime.artifact import Artifact
    from tilewright.runtime.cuda.module import DeviceModule

    tiles = sorted(compiled.glob(f"{case.file_name}.tile*.txt"))
    if not tiles:
        raise Missing("there is no choice of tiles")
    arrays = [torch.randn(shape, device=device, dtype=torch.float32).to(_type(torch, case)) for shape in case.shapes]
    timed: list[tuple[float, int, Tuned]] = []
    for tile in tiles:
        module = DeviceModule(Artifact.read(tile.with_suffix("")), "cuda")
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        module(*arrays)
        start.record()
        for _ in range(TRIALS):
            module(*arrays)
        end.record()
        end.synchronize()
        timed.append((start.elapsed_time(end), len(timed), Tuned(module, tile.read_text())))
    return min(timed)[2]


def _clustered(case: Case, torch: Any, device: str, compiled: Path | None) -> Callable[..., Any]:
    if device != "cuda" or not _has_clusters(machine_of(torch)):
        raise Missing("blocks in clusters are those of an sm_90a")
    if compiled is not None:
        return _compiled(_clustered_path(case, compiled), device)
    import tilewright

    return tilewright.compile(case.graph(), machine=machine_of(torch), options=_clusters(case), device="cuda")


def _has_clusters(machine: str) -> bool:
    from tilewright.layouts.copy_engine import CLUSTERS
    from tilewright.machine.registry import resolve

    return CLUSTERS in resolve(machine).features


def _clustered_path(case: Case, folder: Path) -> Path:
    return folder / f"{case.file_name}.clusters"


def _clusters(case: Case) -> Any:
    import tilewright

    return tilewright.Options(input_precision=case.input_precision, cluster=CLUSTER)


def _type(torch: Any, case: Case) -> Any:
    return {"f16": torch.float16, "bf16": torch.bfloat16}[case.dtype]


def _variants(case: Case, machine: str) -> Iterator[tuple[str, Any]]:
    import tilewright
    from tilewright.compiler.gpu_tiles import variants
    from tilewright.machine.description import Gpu
    from tilewright.machine.registry import resolve

    found = resolve(machine)
    assert isinstance(found, Gpu)
    return variants(case.graph(), found, tilewright.Options(input_precision=case.input_precision))


def compile_ahead(case: Case, folder: Path, machine: str) -> None:
    """Write the code of a case to a folder, and of its tiles, beside their names; no GPU and no torch are needed."""
    import tilewright

    options = tilewright.Options(input_precision=case.input_precision)
    tilewright.compile(case.graph(), machine=machine, options=options, device="emulator").save(folder / case.file_name)
    if CLUSTERED in names(case) and _has_clusters(machine):
        pairs = tilewright.compile(case.graph(), machine=machine, options=_clusters(case), device="emulator")
        pairs.save(_clustered_path(case, folder))
    if TUNED in names(case):
        for number, (tile, artifact) in enumerate(_variants(case, machine)):
            path = folder / f"{case.file_name}.tile{number}"
            artifact.save(path)
            path.with_name(f"{path.name}.txt").write_text(tile)


def _ours(case: Case, torch: Any, device: str) -> Callable[..., Any]:
    import tilewright

    options = tilewright.Options(input_precision=case.input_precision)
    if device == "cuda":
        return tilewright.compile(case.graph(), machine=machine_of(torch), options=options, device="cuda")
    return tilewright.compile(case.graph(), machine="sm_80", options=options, device="emulator")


def machine_of(torch: Any) -> str:
    """The machine that code for this GPU is made for: its own, or an older one whose code newer GPUs run."""
    capability = torch.cuda.get_device_capability(0)
    older = [name for key, name in MACHINES.items() if key <= capability and not name.endswith("a")]
    return MACHINES.get(capability) or older[-1]
