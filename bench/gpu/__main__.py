"""Command line of the GPU benchmarks."""

from __future__ import annotations

import argparse
import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

DESCRIPTION = """\
Check every family of kernels on a GPU against torch in float64, then time it beside torch, torch.compile and Triton.
"""

EPILOG = """\
The run ends in --seconds whatever happens; what there was no time for is named. torch comes from the environment,
and what tilewright needs too, or from --wheels: a folder, installed from without network.
--compile and --compiled divide the work: a machine without a GPU compiles, the one with it runs.
example: python -m bench.gpu --wheels wheels --out gpu.json --table gpu.md
exit status: 0 done, 1 tilewright was wrong or failed in some case, 2 bad usage
"""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.worker:
        from bench.gpu import worker

        worker.main(options.device, options.compiled)
        return 0
    if options.compile is not None:
        return _compile(options.compile, options.machine, options.device, _selection(options))
    begin = time.perf_counter()
    if options.wheels is not None and not _install(options.wheels):
        return 2
    from bench.gpu import runner
    from bench.gpu.cases import WEIGHTS
    from bench.gpu.contenders import MINE
    from bench.gpu.results import table
    from bench.gpu.runs import keeper
    from bench.gpu.worker import all_cases

    keep = keeper(options.out, options.table, table)
    done = runner.run(
        all_cases(options.device),
        options.seconds - (time.perf_counter() - begin) - 2,  # writing takes moments
        WEIGHTS,
        lambda limit: runner.Process(options.device, limit, options.compiled),
        time.perf_counter,
        keep,
        _selection(options),
    )
    keep(done, "")
    print(table(done), end="")
    return int(any(row.contender in MINE and row.status in ("wrong", "failed") for row in done.rows))


def _selection(options: argparse.Namespace) -> Any:
    from bench.gpu.runner import Selection

    return Selection(options.families, options.cases, options.without)


def _compile(folder: Path, machine: str, device: str, selection: Any) -> int:
    """Compile every chosen case of ours into a folder; the exit status."""
    from bench.gpu.contenders import compile_ahead
    from bench.gpu.worker import all_cases
    from tilewright.errors import CompileError

    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for case in all_cases(device):
        if case.build is None or not selection.takes(case):
            continue
        try:
            compile_ahead(case, folder, "sm_80" if device == "cpu" else machine, selection.without)
        except CompileError as error:
            failed += 1
            print(f"failed: {case.family} {case.name} {case.dtype}: {error}", file=sys.stderr)
    return int(failed > 0)


def _install(folder: Path) -> bool:
    """Install all wheels of a folder for this run and its processes; whether that worked."""
    site = tempfile.mkdtemp(prefix="bench-gpu-")
    atexit.register(shutil.rmtree, site, ignore_errors=True)
    wheels = [str(path) for path in sorted(folder.glob("*.whl"))]
    if not wheels:
        print(f"error: {folder} has no wheels", file=sys.stderr)
        return False
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--find-links", str(folder), "--no-deps",
               "--target", site, *wheels]  # fmt: skip
    if subprocess.run(command, check=False).returncode:
        print(f"error: the wheels in {folder} do not install here", file=sys.stderr)
        return False
    sys.path.insert(0, site)
    os.environ["PYTHONPATH"] = os.pathsep.join([site, *filter(None, [os.environ.get("PYTHONPATH")])])
    return True


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu", description=DESCRIPTION, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=480.0, help="when the run ends (default: 480)")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install first, offline")
    parser.add_argument("--compile", type=Path, metavar="FOLDER", help="only compile, into this folder: needs no GPU")
    parser.add_argument("--machine", default="sm_90a", help="what --compile compiles for (default: sm_90a)")
    parser.add_argument("--compiled", type=Path, metavar="FOLDER", help="run what --compile wrote")
    parser.add_argument("--out", type=Path, help="write everything as JSON")
    parser.add_argument("--table", type=Path, help="write the table, which is printed too")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda",
                        help="cpu: tiny cases in the emulator, to try the script out")  # fmt: skip
    parser.add_argument(
        "--families",
        type=_names,
        default=(),
        metavar="NAME,...",
        help="run the cases of these families only, such as check,gemm",
    )
    parser.add_argument(
        "--cases",
        type=_names,
        default=(),
        metavar="TEXT,...",
        help="run the cases only that have one of these in name and type, such as 4096,f64",
    )
    parser.add_argument(
        "--without",
        type=_names,
        default=(),
        metavar="NAME,...",
        help="leave these contenders out, such as torch.compile,triton",
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
