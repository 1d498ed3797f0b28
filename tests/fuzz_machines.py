"""Random machine files for `tests.fuzz`: code for them, or a `CompileError`. LLVM must not end the process.

A case is one of our machine files with one or two facts replaced, often by what does not fit: processors, triples and
features of all targets, intrinsics and units of other machines, figures at the ends of what they may be. A product, a
map and a row reduction are compiled for it, down to machine code, PTX or assembly. Some cases are tile programs of
GPUs whose processor and intrinsics are replaced.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tilewright.compiler import gpu
from tilewright.compiler.compile import build, plan_graph, resolve_target
from tilewright.compiler.program import Placement
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import elementwise, linalg, norm
from tilewright.kernel.text import parse_module, print_module
from tilewright.machine import Cpu, Gpu, names, resolve, targets
from tilewright.machine.features import BY_ARCHITECTURE
from tilewright.options import Options

Random = random.Random

_TRIPLES = (
    "x86_64-linux", "x86_64-unknown-unknown-coff", "x86_64-unknown-linux-xcoff", "aarch64-unknown-unknown-wasm",
    "aarch64-apple-macosx14.0.0", "x86_64-pc-windows-msvc", "nvptx-nvidia-cuda", "amdgcn-amd-amdpal", "r600--",
    "aarch64-unknown-linux-musl", "x86_64-unknown-freebsd14", "riscv64-unknown-linux-gnu", "wasm32-unknown-wasi", "x",
)  # fmt: skip
_PROCESSORS = ("sm_20", "sm_999a", "gfx600", "gfx900", "gfx1250", "generic", "i386", "help", "native")
_FEATURES = (
    "", "+", "+foo", "+ptx99", "+ptx60", "+ptx90", "-ptx80", "+sm_80", "+ptx78,+ptx80", "+wavefrontsize32", "+xnack",
    "-wavefrontsize64", "-sramecc", "+tgsplit", "-gfx9-insts", "+cumode", "-flat-for-global", "+avx512f", "-sse2",
)  # fmt: skip
_FIGURES: dict[str, tuple[dict[str, Any], ...]] = {
    "cpu": (
        {"cores": 1 << 40}, {"vector_registers": 1}, {"vector_registers": 1000}, {"vector_bits": 128},
        {"vector_bits": 512}, {"fma_units": 64}, {"loads_per_cycle": 1 << 40}, {"clock_hz": 1e-300},
        {"caches": [{"name": "L1", "bytes": 1, "line_bytes": 1, "shared_by": 1}]},
    ),
    "gpu": (
        {"warp_sizes": [64]}, {"warp_sizes": [32]}, {"warp_sizes": [16]}, {"max_threads_per_block": 64},
        {"registers_per_multiprocessor": 64}, {"max_registers_per_thread": 8}, {"max_registers_per_thread": 100_000},
        {"shared_bytes_per_block": 1, "shared_bytes_per_block_default": 1}, {"multiprocessors": 1 << 40},
        {"load_bits": 8}, {"load_bits": 64}, {"subcores": 1000}, {"shared_banks": 1}, {"clock_hz": 1e-300},
        {"shared_bytes_per_block": 1 << 40, "shared_bytes_per_multiprocessor": 1 << 40},
    ),
}  # fmt: skip


def try_target(rng: Random) -> None:
    """Compile for a random machine file, or a tile program of a GPU for another processor than it was made for."""
    if rng.random() < 0.3:
        _retarget(rng)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machine.yaml"
        path.write_text(json.dumps(machine_file(rng)))  # JSON is YAML
        with heard(Path(folder) / "stderr") as said:
            compiled(resolve_target(path), sample(rng.choice(("f16", "f32"))))
    assert not said, f"LLVM does not know what it was told: {said[0]}"


def _retarget(rng: Random) -> None:
    """Processor and intrinsics of a tile program replaced by others of the same vendor."""
    machine = rng.choice(("sm_75", "sm_80", "sm_90a", "sm_100a", "gfx1100", "gfx1201", "gfx942", "gfx908"))
    processors = [name for name in _pool("cpu") if name[:2] == machine[:2]]
    text = re.sub('cpu = "[^"]*"', f'cpu = "{rng.choice(processors)}"', _program(machine, rng.choice(("f16", "f32"))))
    if rng.random() < 0.5:
        product = re.compile('(tile.dot|simt.mma) "[^"]*"')
        text = product.sub(lambda found: f'{found[1]} "{rng.choice(_pool("intrinsics"))}"', text)
    gpu.form(parse_module(text), "asm" if machine.startswith("gfx") else "ptx", Options())


@cache
def _program(machine: str, dtype: str) -> str:
    """The sample for a machine, in distributed form."""
    found, options = resolve(machine), Options(cache=False)
    assert isinstance(found, Gpu)
    plan = plan_graph(sample(dtype), found, 1, options)
    program = gpu.tile_program(plan, Placement(plan), found)
    gpu.distribute(program, options)
    return print_module(program)


@contextmanager
def heard(file: Path) -> Iterator[list[str]]:
    """What LLVM prints in the meantime that it does not recognise: it goes on without it."""
    said: list[str] = []
    before = os.dup(2)
    with file.open("wb") as errors:
        os.dup2(errors.fileno(), 2)
    try:
        yield said
    finally:
        os.dup2(before, 2)
        os.close(before)
        text = file.read_text(errors="replace")
        said += [line for line in text.splitlines() if "not a recognized" in line]
        sys.stderr.write(text)


def machine_file(rng: Random) -> dict[str, Any]:
    """One of our machines with some of its facts replaced."""
    base = resolve(rng.choice([name for name in names() if name != "host"]))
    facts: dict[str, Any] = {"name": "random", "extends": base.name}
    fields = ("cpu", "triple", "llvm", "features", "intrinsics", "figures")
    for field in rng.sample(fields, rng.randint(1, 2)):
        if field == "cpu" and isinstance(base, Cpu | Gpu) and rng.random() < 0.7:
            like = [name for name in _pool("cpu") if targets.misfit(base.llvm.triple, name, ()) is None]
            facts.setdefault("llvm", {})["cpu"] = rng.choice(like)
        elif field in ("cpu", "triple"):
            facts.setdefault("llvm", {})[field] = rng.choice(_pool(field))
        elif field == "llvm":
            facts.setdefault("llvm", {})["features"] = rng.choice(_FEATURES)
        elif field == "intrinsics":
            facts["intrinsics"] = rng.sample(_pool(field), rng.randint(0, 4))
        elif field == "features" and isinstance(base, Cpu):
            known = BY_ARCHITECTURE[base.architecture]
            edit, listed = rng.choice((("add", known - base.features), ("remove", base.features)))
            facts["features"] = {edit: rng.sample(sorted(listed), min(rng.randint(1, 5), len(listed)))}
        elif field == "features":
            facts["features"] = rng.sample(_pool("units"), rng.randint(0, 4))
        elif base.kind in _FIGURES:
            facts |= rng.choice(_FIGURES[base.kind])
    return facts


@cache
def _pool(field: str) -> list[str]:
    machines = [each for each in map(resolve, names()) if isinstance(each, Cpu | Gpu) and each.name != "host"]
    if field == "cpu":
        return sorted(
            {
                *_PROCESSORS,
                *targets.PTX_SINCE,
                *targets.AMD_MODES,
                *targets.X86,
                *targets.AARCH64,
                *(each.llvm.cpu for each in machines),
            }
        )
    if field == "triple":
        return sorted({*_TRIPLES, *(each.llvm.triple for each in machines)})
    if field == "intrinsics":
        return sorted({name for each in machines for name in each.intrinsics})
    return sorted({unit for each in machines if isinstance(each, Gpu) for unit in each.features})


@cache
def sample(dtype: str) -> Graph:
    """A ragged product, and a row reduction behind a map."""
    b = GraphBuilder("sample")
    x, w = b.input("x", (33, 48), dtype), b.input("w", (48, 40), dtype)
    z = elementwise.gelu(b.input("z", (5, 37), "f32"))
    return b.finish([linalg.matmul(x, w), norm.softmax(z)])


def compiled(machine: Cpu | Gpu, graph: Graph) -> None:
    """Code for a machine, down to the last form that it has."""
    options = Options(cache=False)
    if isinstance(machine, Cpu):
        build(graph, machine, 1, options)
        return
    plan = plan_graph(graph, machine, 1, options)
    program = gpu.tile_program(plan, Placement(plan), machine)
    gpu.form(program, "asm" if machine.llvm.triple == targets.AMD else "ptx", options)
