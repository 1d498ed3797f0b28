"""Where the time of a product goes: its best tiles in all numbers of stages, and the best with one pass left out each.

    python -m bench.gpu.ablation --compile FOLDER --only 4096x4096x4096 --mma mma.sync      (no GPU needed)
    python -m bench.gpu.ablation --compiled FOLDER --out ablation.json

Every variant is checked against torch, then timed in turns with it. Ratios are torch's time by the variant's.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.gpu.cases import CASES, Case
from bench.gpu.clock import CudaClock
from bench.gpu.inputs import inputs, unwritten
from bench.gpu.timing import input_sets, record, sample
from tilewright.compiler import gpu_fused
from tilewright.compiler.compile import build
from tilewright.compiler.gpu_tiles import distinct
from tilewright.compiler.plan import ChooseProduct
from tilewright.errors import CompileError
from tilewright.instruction.block_tiles import Candidate, Ranking
from tilewright.instruction.fused_tiles import FusedTile, all_tiles, choose_tile
from tilewright.kernel.passes.table import OPTIMISATIONS, PIPELINES
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.options import Options
from tilewright.runtime.artifact import Artifact

PASSES = tuple(dict.fromkeys(each.name for each in PIPELINES["gpu"] if each.name in OPTIMISATIONS))
SECONDS = 0.15  # of timing, for each variant


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.ablation", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--compile", type=Path, metavar="FOLDER", help="compile the variants into this folder")
    parser.add_argument("--machine", default="sm_90a", help="what --compile compiles for (default: sm_90a)")
    parser.add_argument("--only", default="4096x4096x4096 nn", help="the cases whose names have this in them")
    parser.add_argument("--family", default="gemm", choices=("gemm", "attention"), help="of cases (default: gemm)")
    parser.add_argument("--dtype", default="bf16", help="their type (default: bf16)")
    parser.add_argument("--mma", default="auto", help="that of `Options` (default: auto)")
    parser.add_argument("--tiles", type=int, default=4, help="how many tiles, the best first (default: 4)")
    parser.add_argument("--stages", type=int, default=8, help="of each tile, how many numbers of stages (default: 8)")
    parser.add_argument("--keep-passes", action="store_true", help="leave no pass out, compare tiles only")
    parser.add_argument("--compiled", type=Path, metavar="FOLDER", help="time what --compile wrote")
    parser.add_argument("--out", type=Path, help="write the times as JSON")
    options = parser.parse_args(arguments)
    if options.compile is not None:
        chosen = Options(mma=options.mma) if options.mma != "auto" else Options()
        for case in _cases(options.family, options.only, options.dtype):
            variants = Variants(case, options.machine, chosen, options.tiles, options.stages, not options.keep_passes)
            variants.save(options.compile)
    if options.compiled is not None:
        _time(options.compiled, options.out)
    return 0


def _cases(family: str, only: str, dtype: str) -> list[Case]:
    return [case for case in CASES if case.family == family and only in case.name and case.dtype == dtype]


@dataclass(frozen=True)
class Variants:
    """Code of a product: as the rule makes it, without each pass in turn, and with other tiles."""

    case: Case
    machine: str
    options: Options
    tiles: int
    stages: int
    passes: bool

    def save(self, folder: Path) -> None:
        """Write every variant whose code no other has, beside what it is."""
        folder.mkdir(parents=True, exist_ok=True)
        known: set[bytes] = set()
        for number, (what, artifact) in enumerate(self):
            code = artifact.code
            if code in known:
                continue
            known.add(code)
            path = folder / f"{self.case.file_name}.{self.options.mma}.{number:03}.twm"
            artifact.save(path)
            about = {
                "family": self.case.family,
                "case": self.case.name,
                "dtype": self.case.dtype,
                "mma": self.options.mma,
                "what": what,
            }
            path.with_suffix(".json").write_text(json.dumps(about))

    def __iter__(self) -> Iterator[tuple[str, Artifact]]:
        found: list[Candidate] = []

        def look(ranking: Ranking, node: str) -> Any:
            for best in distinct(ranking)[: self.tiles]:
                same = [each for each in ranking.candidates if _tile(each) == _tile(best)]
                found.extend(same[: self.stages])

        if self.case.family == "attention":
            yield from self._fused()
            return
        yield "rule", self._built(self.options, look)
        for name in PASSES if self.passes else ():
            yield f"without {name}", self._built(replace(self.options, disable=(name,)), lambda ranking, node: None)
        for each in found:
            yield str(each), self._built(self.options, lambda ranking, node, each=each: each)

    def _fused(self) -> Iterator[tuple[str, Artifact]]:
        """Every tile of a kernel of two products, with its predicted cycles."""
        found: list[tuple[FusedTile, float]] = []

        def look(*given: Any) -> Any:
            found[:] = all_tiles(*given)
            return choose_tile(*given)

        def built(choose: Any) -> Artifact:
            with patch.object(gpu_fused, "choose_tile", choose):
                return build(self.case.graph(), machine, 1, replace(self.options, cache=False))

        machine = resolve(self.machine)
        assert isinstance(machine, Gpu)
        built(look)
        for tile, cycles in found:
            for stages in dict.fromkeys((tile.shape.stages, 3)):
                other = replace(tile, shape=replace(tile.shape, stages=stages))
                yield f"{other}; {cycles:.0f} cycles", built(lambda *_, one=other, price=cycles: (one, price, ()))

    def _built(self, options: Options, tile: Any) -> Artifact:
        machine = resolve(self.machine)
        return build(self.case.graph(), machine, 1, options, choose=ChooseProduct(tile=tile))  # type: ignore[arg-type]


def _tile(each: Candidate) -> tuple[Any, ...]:
    return each.shape.m, each.shape.n, each.shape.k, each.shape.intrinsic, each.shape.splits


def _time(folder: Path, out: Path | None) -> None:
    import torch

    from tilewright.runtime.cuda.measure import load_many

    clock, rows = CudaClock(torch), []
    paths = sorted(folder.glob("*.json"))
    modules = load_many([Artifact.read(path.with_suffix(".twm")) for path in paths], "cuda", workers=16)
    for path, module in zip(paths, modules, strict=True):
        row = json.loads(path.read_text())
        (case,) = [each for each in _cases(row["family"], row["case"], row["dtype"]) if each.name == row["case"]]
        row |= _row(case, module, clock, torch)
        rows.append(row)
        print(row["case"], row["dtype"], row["what"], row.get("failed") or _summary(row), flush=True)
        if out is not None:
            commit = os.environ.get("TILEWRIGHT_BENCH_COMMIT", "")
            found = {"device": torch.cuda.get_device_name(0), "commit": commit, "rows": rows}
            out.write_text(json.dumps(found, indent=1) + "\n")


def _summary(row: dict[str, Any]) -> str:
    return f"{row['ratio']:.3f} of torch, {row['tflops']:.1f} TFLOP/s; {row['kernels']}"


def _row(case: Case, module: Any, clock: CudaClock, torch: Any) -> dict[str, Any]:
    if isinstance(module, CompileError):
        return {"failed": str(module)}
    sets = input_sets(sum(tensor.nbytes for tensor in inputs(case, torch, "cuda", 2)), clock)
    given = [inputs(case, torch, "cuda", 2 + number) for number in range(sets)]
    result = unwritten(case, torch, "cuda")
    module(*given[0], out=result)
    wanted = case.torch(*given[0]).double()
    error = float((result.double() - wanted).norm() / wanted.norm())
    if not error <= 2 * case.bound:
        return {"failed": f"the error is {error:g}"}
    ours = record(lambda number: module(*given[number], out=result), sets, clock)
    theirs = record(lambda number: case.torch(*given[number]), sets, clock)
    mine, beside = sample(ours, clock, SECONDS, theirs)
    taken = {name: str(resources) for name, resources in module.resources().items()}
    return {
        "seconds": mine.seconds, "low": mine.low, "high": mine.high, "torch": beside.seconds, "kernels": taken,
        "ratio": beside.seconds / mine.seconds, "tflops": case.flops / mine.seconds * 1e-12,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
