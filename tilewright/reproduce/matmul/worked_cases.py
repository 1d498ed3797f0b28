"""Products on GPUs worked out: a document per case, with what the case is known to be and its program pass by pass."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import groupby
from typing import Any, Final

from tilewright.codegen.amdgpu import target as amdgpu
from tilewright.codegen.nvptx import target as nvptx
from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.kernel.passes.table import pipeline, run_pass
from tilewright.kernel.text import parse_module, print_module
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.reproduce.claim import Claim
from tilewright.reproduce.experiment import Table
from tilewright.reproduce.matmul.switches import Sizes, Tiling, tiles
from tilewright.reproduce.pictures import Picture

_STAGE = re.compile(r'tile\.stage (%\w+)\[.*?\] to (%\w+)\[.*? memory "([^"]*)" tensor<(\d+)x(\d+)xf16')
_LAYOUT = re.compile(r'"(#[^"]*)"')
_CHANGE = 60  # lines of a change behind `distribute` that is shown; a longer one is counted only
_PROGRAM = 240  # lines of a thread's program that are shown


@dataclass(frozen=True)
class Case:
    """A product c += a b on a machine, with f16 operands; `known` are its facts, each a text and what finds it.

    `settings` are those of passes, as their text has them.
    """

    name: str
    title: str
    machine: str
    sizes: Sizes
    tiling: Tiling
    intrinsic: str
    accumulator: str
    stages: int
    known: tuple[tuple[str, str, Callable[[Stages], str]], ...]
    note: str
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """The program behind pass number `number` of the pipeline, -1 for the program as it is given."""

    number: int
    name: str
    what: str
    text: str

    def count(self, op: str) -> int:
        return len(re.findall(rf"(?<![\w.]){re.escape(op)}(?![\w.])", self.text))


@dataclass(frozen=True)
class Stages:
    """The program of a case, first as it is given, then behind every pass that changes it."""

    case: Case
    passes: tuple[Stage, ...]

    def behind(self, name: str) -> Stage:
        """The program behind the (first) pass of this name, whether it changed something or not."""
        number = [each.name for each in pipeline("gpu")].index(name)
        return [stage for stage in self.passes if stage.number <= number][-1]

    @property
    def last(self) -> Stage:
        return self.passes[-1]

    def in_loop(self, op: str, name: str = "barriers") -> int:
        """How often an operation stands in the first loop behind a pass."""
        lines = self.behind(name).text.splitlines()
        start, end = _loop(lines)
        return Stage(0, "", "", "\n".join(lines[start:end])).count(op)

    def buffers(self) -> dict[str, tuple[int, int, int]]:
        """Of a and of b the tiles, rows and elements from row to row of the buffer that `pipeline-loads` gives it."""
        text = self.circular_buffer.text
        sizes = dict(re.findall(r"(%\d+) = tile\.staging : memref<(\d+)xf16", text))
        found = {}
        for view, buffer, memory, rows, columns in re.findall(_STAGE, text):
            pad = re.search(r"pad=(\d+)", memory)
            line = int(columns) + (int(pad[1]) if pad else 0)
            found[view] = (int(sizes[buffer]) // (int(rows) * line), int(rows), line)
        return found

    def copied_ahead(self) -> int:
        """For which later trip a trip of the loop starts copies."""
        lines = self.behind("pipeline-loads").text.splitlines()
        start, end = _loop(lines)
        inside = "\n".join(lines[start:end])
        found = re.search(r"(%\w+) = arith.constant (\d+) : index\n\s*%\w+ = arith.muli %bk, \1 ", inside)
        assert found is not None
        return int(found[2])

    @property
    def circular_bytes(self) -> int:
        """Bytes of the buffers between the loads and the products of the loop."""
        found = re.findall(
            r'(?:tile\.staging|simt\.shared align 16.*) : memref<(\d+)xf16, "shared">', self.circular_buffer.text
        )
        return sum(2 * int(elements) for elements in found)

    @property
    def circular_buffer(self) -> Stage:
        """The program in which those buffers stand alone: before the last trip is known to need its own."""
        staged = self.behind("pipeline-loads")
        return staged if staged.count("tile.staging") else self.last


def _loop(lines: Sequence[str]) -> tuple[int, int]:
    """Where the first loop of a program begins and ends."""
    start = next(number for number, line in enumerate(lines) if "scf.for" in line)
    indent = " " * (len(lines[start]) - len(lines[start].lstrip()))
    return start, next(number for number in range(start, len(lines)) if lines[number] == indent + "}")


def worked(case: Case) -> Stages:
    """Run the passes of a case one after the other."""
    machine = resolve(case.machine)
    assert isinstance(machine, Gpu)
    target_for = {nvptx.TRIPLE: nvptx.target_for, amdgpu.TRIPLE: amdgpu.target_for}[machine.llvm.triple]
    stages = f", stages = {case.stages} : i64" if case.stages > 1 else ""
    module = parse_module(tiles(case.sizes, case.tiling, case.intrinsic, case.accumulator, stages))
    module.attributes["tile.target"] = target_for(machine).attribute()
    found = [Stage(-1, "", "what a block computes", _kernel(print_module(module)))]
    for number, each in enumerate(pipeline("gpu")):
        run_pass(module, f"{each.name}{{{case.settings.get(each.name, '')}}}")
        text = _kernel(print_module(module))
        if text != found[-1].text:
            what = (type(each).__doc__ or "").partition("\n")[0].rstrip(".")
            found.append(Stage(number, each.name, what[:1].lower() + what[1:], text))
    return Stages(case, tuple(found))


def _kernel(text: str) -> str:
    """The kernel of a module's text, without the module and its indent."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if "tile.func" in line)
    indent = len(lines[start]) - len(lines[start].lstrip())
    end = next(number for number in range(start, len(lines)) if lines[number] == " " * indent + "}")
    return "\n".join(line[indent:] for line in lines[start : end + 1])


# Documents ------------------------------------------------------------------------------------------------------------


def document(stages: Stages) -> str:
    """The case as Markdown: facts, a table of passes, and the program behind each pass on tiles and the last."""
    case, names = stages.case, dict[str, str]()
    (m, n, k), (bm, bn, bk) = case.sizes, case.tiling.block
    sections = list(_sections(stages, names))
    head = [
        f"# {case.title}", "",
        f"Generated by `tilewright reproduce worked-cases --case {case.name} --document FILE`; a test holds this file",
        "against the program as it is compiled now.", "", case.note, "",
        f"`c += a b`, {m}x{n}x{k} (M, N, K), for `{case.machine}`. A block of {case.tiling.threads} threads computes",
        f"{bm}x{bn} of c in slices of {bk} with `{case.intrinsic}`.", "",
        *([f"Settings: {', '.join(f'`{name}{{{given}}}`' for name, given in case.settings.items())}.", ""]
          if case.settings else []),
        "| fact | expected | found |", "| --- | --- | --- |",
        *(f"| {fact} | {expected} | {find(stages)} |" for fact, expected, find in case.known),
        "", "## What every pass leaves", "",
        "| behind | operations | barriers | buffers | accesses and copies | matrix products |",
        "| --- | --- | --- | --- | --- | --- |", *map(_row, stages.passes), "",
        "Layouts are written by name:", "", "| name | layout |", "| --- | --- |",
        *(f"| `{name}` | `{layout}` |" for layout, name in names.items()),
    ]  # fmt: skip
    return "\n".join([*head, *sections]) + "\n"


def _sections(stages: Stages, names: dict[str, str]) -> Iterator[str]:
    first, *rest = stages.passes
    before = _named(first.text, names)
    yield from ("", "## The program", "", "```text", before, "```")
    on_threads = next(number for number, each in enumerate(pipeline("gpu")) if each.name == "distribute")
    for stage in rest:
        after = _named(stage.text, names)
        what = f"{stage.what[:1].upper()}{stage.what[1:]}."
        changed = _changed(before, after)
        if stage.number < on_threads:
            yield from ("", f"## Behind `{stage.name}`", "", what, "", "```text", after, "```")
        elif stage.number > on_threads and len(changed) <= _CHANGE:
            yield from ("", f"## Changed by `{stage.name}`", "", what, "", "```diff", *changed, "```")
        before = after
    lines = _shortened(before.splitlines())
    yield from ("", "## What a thread does at last", "")
    if len(lines) > _PROGRAM:
        yield from (f"The first {_PROGRAM} lines; `tilewright reproduce worked-cases --json` has all.", "")
    yield from ("```text", *lines[:_PROGRAM], "```")


def _shortened(lines: list[str]) -> list[str]:
    """A program without all but the first two of many like operations in a row."""
    found: list[str] = []
    for kind, run in groupby(lines, _operation):
        same = list(run)
        indent = same[0][: -len(same[0].lstrip()) or None]
        found += same if len(same) < 5 else [*same[:2], f"{indent}… {len(same) - 2} more {kind}"]
    return found


def _operation(line: str) -> str:
    """The operation of a line, of those without a result its first word."""
    return line.partition(" = ")[2].strip().partition(" ")[0] or line.strip().partition(" ")[0]


def _row(stage: Stage) -> str:
    operations = sum(1 for line in stage.text.splitlines() if line.strip() not in ("", "}", "} else {"))
    moves = sum(stage.count(op) for op in ("tile.load", "tile.store", "tile.stage", "simt.async_copy"))
    memory = stage.count("simt.shared") + stage.count("tile.staging")
    name = f"`{stage.name}`" if stage.name else "the program"
    products = stage.count("simt.mma") + stage.count("tile.dot")
    barriers = sum(stage.count(op) for op in ("simt.barrier", "tile.barrier", "tile.await"))
    return f"| {name} | {operations} | {barriers} | {memory} | {moves} | {products} |"


def _named(text: str, names: dict[str, str]) -> str:
    """A program with layouts written by name."""

    def name(match: re.Match[str]) -> str:
        return names.setdefault(match[1], f"#{len(names) + 1}")

    return _LAYOUT.sub(name, text)


def _changed(before: str, after: str) -> list[str]:
    """The lines of a difference, without its head."""
    return [line for line in difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
            if not line.startswith(("---", "+++", "@@"))]  # fmt: skip


# Cases ----------------------------------------------------------------------------------------------------------------


def _times(op: str, name: str = "barriers") -> Callable[[Stages], str]:
    return lambda stages: str(stages.behind(name).count(op))


def _looped(op: str, name: str = "barriers") -> Callable[[Stages], str]:
    return lambda stages: str(stages.in_loop(op, name))


def _circular_bytes(stages: Stages) -> str:
    return str(stages.circular_bytes)


def _groups_before(stages: Stages) -> str:
    staged = stages.behind("pipeline-loads")
    return str(staged.count("tile.commit") - stages.in_loop("tile.commit", "pipeline-loads"))


def _trips(stages: Stages) -> str:
    return str(stages.case.sizes[2] // stages.case.tiling.block[2])


def _empty_trips(stages: Stages) -> str:
    """Trips whose copies would be for a trip that there is not."""
    trips = stages.case.sizes[2] // stages.case.tiling.block[2]
    return str(sum(trip + stages.copied_ahead() >= trips for trip in range(trips)))


def _buffer(name: str) -> Callable[[Stages], str]:
    return lambda stages: " x ".join(map(str, stages.buffers()[name]))


def _result_elements(stages: Stages) -> int:
    """Of the memory through which c passes."""
    found = [int(size) for size in re.findall(r"simt\.shared .*: memref<(\d+)x", stages.behind("distribute").text)]
    circular_buffer = {slots * rows * line for slots, rows, line in stages.buffers().values()}
    return next(size for size in found if size not in circular_buffer)


def _result_buffer(stages: Stages) -> str:
    rows = stages.case.tiling.block[0]
    return f"{rows} x {_result_elements(stages) // rows}"


def _sums(stages: Stages) -> str:
    """Fragments of c that are loaded, and stored, in all."""
    loads = stages.last.count("simt.load_fragment") - stages.in_loop("simt.load_fragment")
    return f"{loads}, {stages.last.count('simt.store_fragment')}"


def _lines(stages: Stages) -> str:
    """How far the rows of fragments are apart, of a, b and the results."""
    text = stages.last.text
    known = dict(re.findall(r"(%\w+) = arith.constant (\d+) : index", text))
    found = {}
    for letter, line in re.findall(r'simt\.load_fragment "\w+" "(\w)" %\w+\[%\w+, (%\w+)\]', text):
        found[letter] = known[line]
    return ", ".join(found[letter] for letter in "abc")


def _all_bytes(stages: Stages) -> str:
    return str(stages.circular_bytes + 2 * _result_elements(stages))


def _grid(stages: Stages) -> str:
    (bm, bn, _), (m, n, _) = stages.case.tiling.block, stages.case.sizes
    return f"{m // bm} x {n // bn}"


def _warp_tile(stages: Stages) -> str:
    (bm, bn, bk), (wm, wn) = stages.case.tiling.block, stages.case.tiling.warps
    return f"{bm // wm}x{bn // wn}x{bk}"


CASES: Final = (
    Case(
        "512x512x128", "A product of 512x512x128 with three buffers", "nvidia-rtx-3090", (512, 512, 128),
        Tiling((32, 32, 16), (2, 2)), "wmma_16x16x16_f16_f16", "f16", 3,
        (
            ("grid", "16 x 16", _grid), ("tile of a warp", "16x16x16", _warp_tile),
            ("groups of copies before the loop", "3", _groups_before),
            ("waits in a trip that leave two groups under way", "1", _looped("tile.await 2", "pipeline-loads")),
            ("trips", "8", _trips),
            ("trips with an empty group of copies", "3", _empty_trips),
            ("barriers in a trip", "2", _looped("simt.barrier")),
            ("copies of a thread in a trip, 8 bytes each", "2", _looped("simt.async_copy")),
            ("products of a warp in a trip", "1", _looped("simt.mma")),
            ("fragments of a, b that a warp loads in a trip", "2", _looped("simt.load_fragment")),
            ("fragments of c, before and behind the loop", "1, 1", _sums),
            ("rows of a, b, c in memory", "24, 40, 40", _lines),
            ("buffer of a", "3 x 32 x 24", _buffer("%a")),
            ("buffer of b", "3 x 16 x 40", _buffer("%b")),
            ("memory of c", "32 x 40", _result_buffer),
            ("bytes of the buffers of a and b", "8448", _circular_bytes),
            ("bytes with that of c", "11008", _all_bytes),
        ),
        "The worked case of the asynchronous route, threads (64, 2, 1), with its schedule and its padding. Copies are\n"
        "8 bytes, so that all 128 threads take part; three slices are under way, and each trip copies behind what it\n"
        "computes. Schedule and padding are what the passes do by themselves for unspecified fragment layouts. That c\n"
        "passes through memory before and behind the loop is the setting; `allocate-shared` lays that memory over\n"
        "that of a. Without it warps load and store the fragments of c where c is, with rows of 512.",
        {"assign-layouts": "stage_c=on"},
    ),
    Case(
        "128x256x512", "A product of 128x256x512 on RDNA 4", "gfx1201", (128, 256, 512),
        Tiling((64, 64, 128), (2, 2)), "wmmar4_16x16x16_f16_f32", "f32", 1,
        (
            ("grid", "2 x 4", _grid), ("tile of a warp", "32x32x128", _warp_tile),
            ("matrix instructions of a warp in a slice", "32", _looped("simt.mma")),
            ("slices in the loop and behind it", "2", _times("tile.dot", "pipeline-registers")),
            ("barriers in a trip", "2", _looped("simt.barrier")),
        ),
        "The schedule is that of `tilewright schedule-mma --m 128 --n 256 --k 512 --machine gfx1201`: 2 x 2 warps,\n"
        "2 x 2 tiles of the instruction for each, slices of 8 of them. There are no asynchronous copies: the next\n"
        "slice is on its way in registers while this one is multiplied.",
    ),
    Case(
        "16x8x16", "The smallest product of one warp, in slices of 16", "nvidia-a100-sxm4-40gb", (16, 8, 64),
        Tiling((16, 8, 16), (1, 1)), "mma_m16n8k16_f16_f32", "f32", 3,
        (
            ("grid", "1 x 1", _grid), ("tile of a warp", "16x8x16", _warp_tile),
            ("groups of copies before the loop", "2", _groups_before),
            ("copies of a lane in a trip", "2", _looped("simt.async_copy")),
            ("matrix loads in a trip", "2", _looped("simt.load_matrix")),
            ("matrix instructions in a trip", "1", _looped("simt.mma")),
            ("bytes of the buffers", "2304", _circular_bytes),
        ),
        "The walk-through of the tile language. A lane copies 16 bytes of a, and 8 of b, which is known to be aligned\n"
        "here (16 lanes would do with 16 bytes). The buffers are 3 x 16 x 16 x 2 + 3 x 16 x 8 x 2 bytes.",
    ),
)  # fmt: skip


# The experiment -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """What was found of some cases; `documents` has one text per case."""

    cases: tuple[Stages, ...]

    @property
    def tables(self) -> tuple[Table, ...]:
        heads = {"fact": "left", "expected": "right", "found": "right"}
        return tuple(
            Table(each.case.title, heads, tuple((fact, wanted, find(each)) for fact, wanted, find in each.case.known))
            for each in self.cases
        )

    @property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(
            Claim(
                stages.case.name,
                fact,
                expected,
                find(stages),
                expected,
                "=",
                f"worked out by hand for {stages.case.machine}",
            )
            for stages in self.cases
            for fact, expected, find in stages.case.known
        )

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return ()

    @property
    def documents(self) -> tuple[str, ...]:
        return tuple(map(document, self.cases))

    def to_json(self) -> dict[str, Any]:
        return {
            "cases": {
                stages.case.name: [{"pass": each.name, "program": each.text} for each in stages.passes]
                for stages in self.cases
            },
            "claims": [claim.to_json() for claim in self.claims],
        }


def report(case: str = "") -> Report:
    """All cases, or the one of that name; raises InvalidArgument for another."""
    chosen = [each for each in CASES if case in ("", each.name)]
    if not chosen:
        names = ", ".join(each.name for each in CASES)
        raise InvalidArgument(f"there is no case {case!r}", where="--case", help=f"one of {names}")
    return Report(tuple(map(worked, chosen)))
