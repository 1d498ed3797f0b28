"""`tilewright emulate`: run a PTX kernel without a GPU, and report what it does wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.arguments import AsJson, refuse
from tilewright.cli.arrays import read_npz, write_npz
from tilewright.cli.console import NEGATIVE, progress, show_json
from tilewright.cli.printing import say
from tilewright.errors import InvalidArgument, InvalidFile
from tilewright.files import read_text, require_writable

if TYPE_CHECKING:
    from tilewright.emulator import Result

EPILOG = """\
\b
example: tilewright emulate add.ptx --entry add --grid 4,1,1 --block 128,1,1 \\
             --args in.npz -o out.npz
         tilewright emulate ~/.triton/cache/…/add.json --grid 4 --args in.npz
The arguments are p0, p1, … in the order of the parameters: arrays become
buffers of the device, 0-d arrays scalars; missing pointers are null. The
output holds the buffers afterwards, under the same names. Use random inputs:
threads that store equal values in one place do not race, and wrong places may
hold the right zeros.
exit status: 0 ran clean, 1 something was found,
             2 bad usage, PTX that does not parse, arguments that do not fit
"""

Kernel = Annotated[
    Path,
    typer.Argument(
        metavar="KERNEL.ptx", show_default=False,
        help="PTX text; or KERNEL.json, the metadata that Triton writes beside KERNEL.ptx",
    ),
]  # fmt: skip
Entry = Annotated[str, typer.Option("--entry", metavar="NAME", help="kernel to run (default: the only one)")]
Extents = Annotated[str, typer.Option(metavar="X,Y,Z", help="extents; missing ones are 1")]
Block = Annotated[str, typer.Option(metavar="X,Y,Z", help="extents (default: what the kernel requires, or 1,1,1)")]
Shared = Annotated[
    int | None, typer.Option("--shared", metavar="BYTES", min=0, help="dynamic shared memory of a block (default: 0)")
]
Args = Annotated[Path | None, typer.Option("--args", metavar="IN.npz", help="arguments p0, p1, …")]
Output = Annotated[Path | None, typer.Option("-o", metavar="OUT.npz", help="where the buffers go afterwards")]
Fresh = Annotated[
    str, typer.Option("--uninitialised", metavar="p2,…", help="buffers whose contents count as never written")
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="instructions that blocks may execute")]

_NAME = re.compile("p(0|[1-9][0-9]*)")
_WRITE_IT = "np.savez(path, p0=array, p1=…) writes arguments"


def emulate(
    kernel: Kernel,
    entry: Entry = "",
    grid: Extents = "1,1,1",
    block: Block = "",
    cluster: Extents = "",
    shared: Shared = None,
    args: Args = None,
    output: Output = None,
    uninitialised: Fresh = "",
    limit: Limit = 4_000_000,
    as_json: AsJson = False,
) -> None:
    """Run a PTX kernel on the CPU; report races, bad accesses and waits that come too early, and count what it does."""
    from tilewright.emulator import load_compiled, parse, run

    require_writable(output, "-o")
    text = kernel.with_suffix(".ptx") if kernel.suffix == ".json" else kernel
    with _named(text):
        made = load_compiled(kernel) if kernel.suffix == ".json" else parse(read_text(kernel))
    arguments = _arguments(args, uninitialised)
    with progress(f"emulating {entry or kernel.stem}"), _named(text):
        result = run(
            made, entry, _extents(grid, "--grid"), _extents(block, "--block") if block else (), arguments, shared,
            cluster=_extents(cluster, "--cluster") if cluster else (), limit=limit,
        )  # fmt: skip
    if output is not None:
        write_npz(output, {f"p{number}": array for number, array in result.buffers.items()})
    if as_json:
        show_json(result.to_json())
    else:
        _print(result, text)
    if result.diagnostics:
        raise typer.Exit(NEGATIVE)


@contextmanager
def _named(kernel: Path) -> Iterator[None]:
    """What is wrong with the text is said with the name of its file."""
    from tilewright.emulator import InvalidPtx

    try:
        yield
    except InvalidPtx as error:
        if error.where.startswith("PTX:"):
            error.where = f"{kernel}{error.where.removeprefix('PTX')}"
        raise


def _extents(text: str, where: str) -> tuple[int, int, int]:
    """Read extents.

    >>> _extents("4,2", "--grid")
    (4, 2, 1)
    """
    parts = [part.strip() for part in text.split(",")]
    if not 1 <= len(parts) <= 3 or not all(part.isascii() and part.isdigit() and len(part) < 11 for part in parts):
        raise InvalidArgument(f"{text!r} is not a list of extents", where=where, help="write 4,2,1")
    x, y, z = (*map(int, parts), 1, 1)[:3]
    return x, y, z


def _arguments(path: Path | None, uninitialised: str) -> list[Any]:
    """Arguments of a file in order; what is missing between them is null."""
    from tilewright.emulator import Uninitialised

    if path is None:
        refuse({"--uninitialised": bool(uninitialised)}, f"there are no buffers: {uninitialised}", "add --args")
        return []
    stored = read_npz(path, InvalidFile, help=_WRITE_IT)
    arrays = {name: _mapped(stored, name) for name in stored if _NAME.fullmatch(name)}
    if stored and not arrays:
        raise InvalidArgument(f"holds {', '.join(list(stored)[:5])}, no p0", where=str(path), help=_WRITE_IT)
    fresh = {name.strip() for name in uninitialised.split(",") if name.strip()}
    if unknown := fresh - set(arrays):
        raise InvalidArgument(f"{sorted(unknown)[0]!r} is not in {path}", where="--uninitialised")
    count = max((int(name[1:]) + 1 for name in arrays), default=0)
    if count > 4096:
        raise InvalidArgument(f"{count} parameters", where=str(path))
    found = [arrays.get(f"p{number}") for number in range(count)]
    return [
        Uninitialised(value) if value is not None and f"p{number}" in fresh else value
        for number, value in enumerate(found)
    ]


def _mapped(stored: Mapping[str, Any], name: str) -> Any:
    """An array; with `NAME.box` (and `NAME.swizzle`) beside it a tensor map."""
    from tilewright.emulator import TensorMap

    if f"{name}.box" not in stored:
        return stored[name]
    swizzle = _integers(stored, f"{name}.swizzle") if f"{name}.swizzle" in stored else (0,)
    if len(swizzle) != 1:
        raise InvalidArgument(f"{len(swizzle)} values", where=f"{name}.swizzle", help="one number of bytes")
    return TensorMap(stored[name], _integers(stored, f"{name}.box"), swizzle[0])


def _integers(stored: Mapping[str, Any], name: str) -> tuple[int, ...]:
    values = stored[name].reshape(-1)
    if values.dtype.kind not in "iu":
        raise InvalidArgument(f"elements of type {values.dtype}", where=name, help="whole numbers")
    return tuple(values.tolist())


def _print(result: Result, kernel: Path) -> None:
    for diagnostic in result.diagnostics:
        print(diagnostic.within(str(kernel)))  # a line each, for tools
    counts = result.counts.to_json()
    for group in ("warp_instructions", "bytes"):
        say(f"{group.replace('_', ' ')}: " + ", ".join(f"{name} {count}" for name, count in counts[group].items()))
    for name in ("global_requests", "global_transactions", "shared_requests", "shared_wavefronts", "bank_conflicts"):
        say(f"{name.replace('_', ' ')}: {counts[name]}")
    say(f"{len(result.diagnostics)} diagnostics")
