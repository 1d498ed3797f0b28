"""Who computes a case: Tilewright, torch as it is, torch.compile, its attention by back end, Triton."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.gpu.cases import Case

OURS = "tilewright"
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
    return ["torch", *compiled, *(["triton"] if case.triton else []), *(BACKENDS if case.sdpa else []), OURS]


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


def compile_ahead(case: Case, folder: Path, machine: str) -> None:
    """Write the code of a case to a folder; no GPU and no torch are needed."""
    import tilewright

    options = tilewright.Options(tf32=case.tf32)
    tilewright.compile(case.graph(), machine=machine, options=options, device="emulator").save(folder / case.file_name)


def _ours(case: Case, torch: Any, device: str) -> Callable[..., Any]:
    import tilewright

    options = tilewright.Options(tf32=case.tf32)
    if device == "cuda":
        capability = torch.cuda.get_device_capability(0)
        machine = MACHINES.get(capability) or max(name for key, name in MACHINES.items() if key <= capability)
        return tilewright.compile(case.graph(), machine=machine, options=options, device="cuda")
    return tilewright.compile(case.graph(), machine="sm_80", options=options, device="emulator")
