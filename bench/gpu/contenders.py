"""Who computes a case: Tilewright, torch as it is, torch.compile, its attention by back end, Triton."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gpu.cases import Case
from bench.gpu.inputs import inputs, unwritten
from tilewright.errors import CompileError

OURS = "tilewright"
TUNED = "tilewright tuned"  # the fastest of some tiles, most of which the model finds best
CLUSTERED = "tilewright clusters"  # blocks in pairs bring together what both read
ONE_WARP = "tilewright mma.sync"  # on matrix instructions of one warp
FUSED, APART = "tilewright fused", "tilewright apart"  # products as one kernel, or a kernel each, whatever pays
MINE = (OURS, TUNED, CLUSTERED, ONE_WARP, FUSED, APART)
_SUFFIXES = {
    OURS: "", CLUSTERED: ".clusters", ONE_WARP: ".mma-sync", FUSED: ".fused", APART: ".apart"
}  # of code compiled ahead # fmt: skip
CLUSTER = 2
RANKS = (0, 1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45)  # of the tiles that are timed, in the order of the model
TRIALS, ROUNDS = 5, 3  # calls of a tile in a sample; samples, of which the fastest counts
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
    products = [CLUSTERED, ONE_WARP] if case.family == "gemm" and case.triton else []
    products += [FUSED, APART] if case.family == "chain" else []
    return ["torch", *compiled, *others, OURS, *([TUNED] if case.tuned else []), *products]


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
        return _sdpa(BACKENDS[name], torch, case.causal)
    if name == TUNED:
        return _tuned(case, torch, device, compiled)
    if name == CLUSTERED and (device != "cuda" or not _has_clusters(machine_of(torch))):
        raise Missing("blocks in clusters are those of an sm_90a")
    if compiled is not None:
        return _compiled(_path(name, case, compiled), device)
    return _ours(name, case, torch, device)


def _sdpa(backend: str, torch: Any, causal: bool) -> Callable[..., Any]:
    try:
        attention = importlib.import_module("torch.nn.attention")
        chosen = getattr(attention.SDPBackend, backend)
    except (ImportError, AttributeError) as error:
        raise Missing(f"torch {torch.__version__} has no back end {backend}") from error

    def run(q: Any, k: Any, v: Any) -> Any:
        with attention.sdpa_kernel([chosen]):
            try:
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
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
class Tile:
    """A tile that a product was compiled with: its name, predicted cycles, measured seconds, and the error."""

    name: str
    cycles: float
    seconds: float
    error: float


@dataclass(frozen=True)
class Tuned:
    """The module with the fastest tile, and every tile that was timed."""

    module: Any
    tile: str
    tiles: tuple[Tile, ...] = ()

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        return self.module(*arrays, **named)

    def resources(self) -> Any:
        return self.module.resources()


def _tuned(case: Case, torch: Any, device: str, compiled: Path | None) -> Tuned:
    """The fastest of our modules whose tiles differ, among those that are right."""
    if device != "cuda":
        raise Missing("tiles are measured on a device")
    if compiled is None:
        raise Missing("tiles are compiled ahead: --compile")
    from bench.gpu.clock import CudaClock
    from tilewright.runtime.artifact import Artifact
    from tilewright.runtime.cuda.measure import load_many

    paths = sorted(compiled.glob(f"{case.file_name}.tile*.json"))
    if not paths:
        raise Missing("there is no choice of tiles")
    arrays, clock = inputs(case, torch, device, seed=0), CudaClock(torch)
    wanted = case.torch(*arrays).float()
    modules = load_many([Artifact.read(path.with_suffix("")) for path in paths], "cuda")
    timed: list[tuple[Any, Tile]] = []
    for path, module in zip(paths, modules, strict=True):
        if isinstance(module, CompileError):
            raise module
        out = unwritten(case, torch, device)

        def work(module: Any = module, out: Any = out) -> None:
            for _ in range(TRIALS):
                module(*arrays, out=out)

        recorded = clock.recorded(work)
        error = float((out.float() - wanted).norm() / wanted.norm())
        clock.seconds(recorded)
        seconds = min(clock.seconds(recorded) for _ in range(ROUNDS)) / TRIALS
        timed.append((module, Tile(**json.loads(path.read_text()), seconds=seconds, error=error)))
    tiles = tuple(tile for _, tile in timed)
    best = fastest(tiles, 2 * case.bound)  # torch's result, which is the reference here, has an error too
    return Tuned(timed[best][0], tiles[best].name, tiles)


def fastest(tiles: Sequence[Tile], bound: float) -> int:
    """The number of the fastest tile whose error is within the bound. Raises Missing where none is."""
    right = [(tile.seconds, number) for number, tile in enumerate(tiles) if tile.error <= bound]
    if not right:
        raise Missing("no tile gives the right result")
    return min(right)[1]


def _options(name: str, case: Case) -> Any:
    """Of a contender of ours."""
    import tilewright

    settings: dict[str, dict[str, Any]] = {
        CLUSTERED: {"cluster": CLUSTER}, ONE_WARP: {"mma": "mma.sync"}, FUSED: {"fuse": "always"},
        APART: {"fuse": "never"},
    }  # fmt: skip
    chosen = settings.get(name, {})
    return tilewright.Options(input_precision=case.input_precision, **chosen)


def _path(name: str, case: Case, folder: Path) -> Path:
    """Of the code of a contender of ours, compiled ahead."""
    return folder / f"{case.file_name}{_SUFFIXES[name]}"


def _has_clusters(machine: str) -> bool:
    from tilewright.machine.registry import resolve
    from tilewright.machine.units import CLUSTERS

    return CLUSTERS in resolve(machine).features


def compile_ahead(case: Case, folder: Path, machine: str, without: Sequence[str] = ()) -> None:
    """Write the code of a case to a folder, and of its tiles, beside their names; no GPU and no torch are needed."""
    import tilewright
    from tilewright.compiler.gpu_tiles import variants
    from tilewright.machine.description import Gpu
    from tilewright.machine.registry import resolve

    wanted = [name for name in names(case) if name not in without]
    for name in wanted:
        if name in _SUFFIXES and (name != CLUSTERED or _has_clusters(machine)):
            module = tilewright.compile(case.graph(), machine=machine, options=_options(name, case), device="emulator")
            module.save(_path(name, case, folder))
    if TUNED in wanted:
        found = resolve(machine)
        assert isinstance(found, Gpu)
        for number, each in enumerate(variants(case.graph(), found, _options(OURS, case), RANKS)):
            path = folder / f"{case.file_name}.tile{number:02}"
            each.artifact.save(path)
            path.with_name(f"{path.name}.json").write_text(json.dumps({"name": each.tile, "cycles": each.cycles}))


def _ours(name: str, case: Case, torch: Any, device: str) -> Callable[..., Any]:
    import tilewright

    machine, place = (machine_of(torch), "cuda") if device == "cuda" else ("sm_80", "emulator")
    return tilewright.compile(case.graph(), machine=machine, options=_options(name, case), device=place)


def machine_of(torch: Any) -> str:
    """The machine that code for this GPU is made for: its own, or an older one whose code newer GPUs run."""
    capability = torch.cuda.get_device_capability(0)
    older = [name for key, name in MACHINES.items() if key <= capability and not name.endswith("a")]
    return MACHINES.get(capability) or older[-1]
