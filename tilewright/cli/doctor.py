"""`tilewright doctor`: what is installed, what this machine is, and whether compiling and running works here."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata, util

import numpy as np
import typer

from tilewright.cli.arguments import AsJson
from tilewright.cli.console import NEGATIVE, show_json
from tilewright.cli.printing import say
from tilewright.dataclass import dataclass
from tilewright.errors import CompileError
from tilewright.files import reason
from tilewright.options import Options

EPILOG = """\
\b
example: tilewright doctor --json
exit status: 0 all is well, 1 something needs attention: a line marked with !
"""

_PACKAGES = ("numpy", "llvmlite", "xdsl", "ml_dtypes")
_EXTRAS = {"onnx": ("onnx",), "torch": ("torch",), "cuda": ("cuda.bindings",), "distributed": ("distributed",),
           "report": ("matplotlib",)}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One fact; `ok` is False where it needs attention."""

    subject: str
    fact: str
    ok: bool = True


def doctor(as_json: AsJson = False) -> None:
    """Print what a bug report needs, and compile, run and check a small program."""
    findings = [found for check in (_versions, _extras, _machine, _threads, _cache, _trial) for found in check()]
    if as_json:
        show_json({"findings": [asdict(found) for found in findings], "ok": all(found.ok for found in findings)})
    else:
        for found in findings:
            say(f"{' ' if found.ok else '!'} {found.subject:12} {found.fact}", indent=15)
    if not all(found.ok for found in findings):
        raise typer.Exit(NEGATIVE)


def version_of(package: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _versions() -> list[Finding]:
    import llvmlite.binding as llvm

    found = ", ".join(f"{name} {version_of(name) or 'without metadata'}" for name in _PACKAGES)
    return [
        Finding("tilewright", version_of("tilewright") or "run from a source tree that is not installed"),
        Finding("python", f"{platform.python_version()} at {sys.executable}"),
        Finding("packages", found),
        Finding("LLVM", ".".join(map(str, llvm.llvm_version_info))),
    ]


def _extras() -> list[Finding]:
    return [Finding(f"[{extra}]", _extra(extra, modules)) for extra, modules in _EXTRAS.items()]


def _extra(extra: str, modules: tuple[str, ...]) -> str:
    missing = [name for name in modules if not _is_installed(name)]
    if missing:
        return f"{', '.join(missing)} not installed: pip install 'tilewright[{extra}]'"
    return ", ".join(f"{name} {version_of(name) or ''}".strip() for name in modules)


def _is_installed(module: str) -> bool:
    try:
        return util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def _machine() -> list[Finding]:
    from tilewright.machine import host

    here = host()
    caches = ", ".join(f"{cache.name} {cache.bytes >> 10} KiB" for cache in here.caches)
    return [
        Finding("system", f"{platform.system()} {platform.release()}, {here.llvm.triple}"),
        Finding("processor", f"{here.llvm.cpu}, {here.cores} cores, {here.vector_bits}-bit vectors, {caches}"),
        Finding("intrinsics", ", ".join(here.intrinsics) or "none"),
        Finding("features", " ".join(sorted(here.features))),
    ]


def _threads() -> list[Finding]:
    from tilewright.runtime.pool import default_threads, find_openmp
    from tilewright.runtime.quota import affinity

    threads, mask = default_threads(), affinity()
    openmp = find_openmp()
    over = f", more than the {len(mask)} cores that this process may use" if threads > len(mask) else ""
    return [
        Finding("threads", f"{threads} by default{over}, pinned: {'yes' if Options().pin else 'no'}", ok=not over),
        Finding("affinity", f"{len(mask)} of {os.cpu_count()} cores: {_ranges(mask)}"),
        Finding("OpenMP", openmp.path if openmp else "no runtime is loaded in this process: the pool of tilewright"),
    ]


def _ranges(numbers: tuple[int, ...]) -> str:
    """Sorted numbers as ranges: 0-3, 8."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)


def _cache() -> list[Finding]:
    from tilewright.runtime.cache import Cache

    store = Cache.from_options(Options())
    if not store.enabled:
        return [Finding("cache", f"{store.directory}, switched off")]
    found = store.statistics()
    filled = f"{found.entries} entries, {found.bytes:,} of {store.capacity_bytes:,} bytes"
    try:
        with tempfile.TemporaryFile(dir=store.prepare("machines")):
            return [Finding("cache", f"{store.directory}, {filled}")]
    except OSError as error:
        return [Finding("cache", f"{store.directory} is not used: {reason(error)}", ok=False)]


def _trial() -> list[Finding]:
    """Compile, run and check a small program; whatever goes wrong is a finding, not the end of the report."""
    trial: Callable[[], float] = _trial_error
    try:
        error = trial()
    except (CompileError, RuntimeError, OSError, AssertionError, ImportError) as failure:
        return [Finding("trial", f"compiling and running failed: {failure}", ok=False)]
    return [Finding("trial", f"compiled, ran, largest error {error:.1e}", ok=error < 1e-5)]


def _trial_error() -> float:
    from tilewright.cli.sample import perceptron
    from tilewright.compiler.compile import compile_graph
    from tilewright.expr.evaluate import evaluate

    graph = perceptron(rows=5, widths=(33, 17, 3))
    module = compile_graph(graph, "host", None, Options(cache=False))
    x = np.random.default_rng(0).standard_normal((5, 33), np.float32)
    (expected,) = evaluate(graph, [x], precise=True, wide=True)
    return float(np.abs(module(x) - expected).max())
