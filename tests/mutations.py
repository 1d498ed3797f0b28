"""Errors planted in the PTX of small kernels, one at a time, and what the emulator says of them.

    python -m tests.mutations [--family NAME] [--kind NAME] [--sample N --seed S] [--json]

Every kind of error is planted at every site of every family of kernels: a barrier, wait, commit, fence, copy, mbarrier
operation or mask gone, a wait that leaves one more, the other parity, an address one slot off, a swizzle without one
of its terms, another lane. An error is found if there is a finding, if the text is refused,
or if the result is not that of the kernel as it was, bit for bit. `EQUIVALENT` lists those that change nothing that
the PTX model defines, each with the reason. Exit status 1 where an error survives that is not listed.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from tilewright import emulator
from tilewright.codegen.nvptx.pipeline import PtxCode, generate
from tilewright.codegen.nvptx.target import target_for
from tilewright.errors import CompileError
from tilewright.kernel.distribute.tests import programs
from tilewright.kernel.passes.table import run_pipeline
from tilewright.kernel.text import parse_module
from tilewright.kernel.tile_types import i64s
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.runtime.emulated import with_maps

Array = np.ndarray[Any, Any]
MOST_INSTRUCTIONS = 1_000_000
PATIENCE = 20  # times the instructions of the kernel as it was, before a mutant is said not to end


# Kernels --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """One kernel: a tile program for a machine, with arguments, and the bytes from one slot to the next."""

    program: str
    machine: str
    arguments: Callable[[], list[Any]]  # those that are written hold NaN
    slot: int = 0
    disable: tuple[str, ...] = ()
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    warps: tuple[int, int] = (0, 0)  # of a block along m and n, where the passes are told
    wanted: Callable[[Sequence[Array]], Array] | None = None  # the last argument afterwards
    tolerance: float = 1e-5


def _integers(*sizes: int, dtype: Any = np.float16) -> list[Any]:
    """Small whole numbers, none of them zero: their sums are exact in any order."""
    rng = np.random.default_rng(0)
    return [(rng.integers(1, 4, size) * rng.choice([-1, 1], size)).astype(dtype) for size in sizes]


def _product(m: int, n: int, k: int, dtype: Any = np.float16, parts: int = 0) -> Callable[[], list[Any]]:
    memory = [np.full(parts * m * n, np.nan, np.float32)] if parts else []
    return lambda: [
        *_integers(m * k, k * n, dtype=dtype), *(each.copy() for each in memory), np.full(m * n, np.nan, np.float32)
    ]  # fmt: skip


def _times(m: int, n: int, k: int) -> Callable[[Sequence[Array]], Array]:
    return lambda given: (
        given[0].reshape(m, k).astype(np.float32) @ given[1].reshape(k, n).astype(np.float32)
    ).reshape(-1)


def _mapped(elements: int, results: int) -> Callable[[], list[Any]]:
    values = np.random.default_rng(0).standard_normal(elements).astype(np.float32)
    return lambda: [values.copy(), np.full(results, np.nan, np.float32)]


def _rows_of_heads(heads: int, rows: int, width: int) -> Callable[[], list[Any]]:
    size = heads * rows * width
    values = (np.random.default_rng(0).standard_normal((3, size)) * 2).astype(np.float16)
    return lambda: [*(each.copy() for each in values), np.full(size, np.nan, np.float32)]


def _attention(heads: int, rows: int, width: int) -> Callable[[Sequence[Array]], Array]:
    def wanted(given: Sequence[Array]) -> Array:
        q, k, v = (each.astype(np.float64).reshape(heads, rows, width) for each in given[:3])
        s = q @ k.transpose(0, 2, 1) / np.sqrt(width)
        e = np.exp(s - s.max(2, keepdims=True))
        return np.asarray(e / e.sum(2, keepdims=True) @ v).reshape(-1)

    return wanted


def _softmax(rows: int, columns: int) -> Callable[[Sequence[Array]], Array]:
    def wanted(given: Sequence[Array]) -> Array:
        x = given[0].reshape(rows, columns)
        e = np.exp(x - x.max(1, keepdims=True))
        return np.asarray(e / e.sum(1, keepdims=True)).reshape(-1)

    return wanted


_M8 = "mma_m16n8k8_f16_f32"
FAMILIES: dict[str, Family] = {
    "copies ahead": Family(
        programs.ragged_matmul((40, 40, 136), (32, 32, 32)), "sm_80", _product(40, 40, 136), 2048,
        wanted=_times(40, 40, 136),
    ),
    "copies ahead, whole tiles": Family(
        programs.matmul((64, 32, 128), (32, 32, 32)), "sm_80", _product(64, 32, 128), 2048, wanted=_times(64, 32, 128),
    ),
    "one buffer": Family(
        programs.matmul((32, 32, 64), (32, 32, 32)), "sm_80", _product(32, 32, 64), 2048, ("pipeline-loads",),
        wanted=_times(32, 32, 64),
    ),
    "registers ahead": Family(
        programs.ragged_matmul((40, 40, 40), (32, 32, 16), _M8), "sm_75", _product(40, 40, 40), 1024,
        wanted=_times(40, 40, 40),
    ),
    "parts of k": Family(
        programs.matmul((32, 32, 128), (32, 32, 32)), "sm_80", _product(32, 32, 128, parts=2), 2048,
        options={"split-k": {"splits": 2}}, wanted=_times(32, 32, 128),
    ),
    "multiply-adds": Family(
        programs.ragged_matmul((40, 40, 20), (32, 32, 8), "fma", "f32"), "sm_80", _product(40, 40, 20, np.float32),
        1024, wanted=_times(40, 40, 20),
    ),
    "softmax of rows": Family(
        programs.softmax(2, 4, 64), "sm_80", _mapped(512, 512), wanted=_softmax(8, 64),
    ),
    "softmax of a long row": Family(
        programs.softmax(6, 1, 256), "sm_80", _mapped(1536, 1536), 8, wanted=_softmax(6, 256),
    ),
    "column sums": Family(
        programs.counted_sum(32, 32, 16), "sm_80", _mapped(32 * 32, 32), 128,
        wanted=lambda given: given[0].reshape(32, 32).sum(0) + np.arange(32, dtype=np.float32),
    ),
    "transposition": Family(
        programs.transposition(32, 32, "f32"), "sm_80", _mapped(32 * 32, 32 * 32), 512,
        wanted=lambda given: given[0].reshape(32, 32).T.reshape(-1),
    ),
    "element-wise": Family(
        programs.add(300, 256), "sm_80", _mapped(300, 300), wanted=lambda given: np.exp(given[0] + 1),
    ),
    "attention": Family(
        programs.attention((1, 72, 16), (32, 16), (2, 1)), "sm_80", _rows_of_heads(1, 72, 16), 512,
        wanted=_attention(1, 72, 16), tolerance=5e-3,
    ),
    "boxes and four warps": Family(
        programs.ragged_matmul((72, 48, 168), (64, 32, 32)), "sm_90a", _product(72, 48, 168), 4096,
        wanted=_times(72, 48, 168),
    ),
    "boxes, all warps alike": Family(
        programs.ragged_matmul((264, 32, 200), (128, 32, 32)), "sm_90a", _product(264, 32, 200), 4096, ("warp-roles",),
        warps=(8, 1), wanted=_times(264, 32, 200),
    ),
    "boxes, a block per tile": Family(
        programs.matmul((64, 64, 288), (64, 64, 32)), "sm_90a", _product(64, 64, 288), 4096, ("persistent",),
        wanted=_times(64, 64, 288),
    ),
}  # fmt: skip


@cache
def code_of(name: str) -> PtxCode:
    """The kernel of a family, compiled once."""
    family, module = FAMILIES[name], parse_module(FAMILIES[name].program)
    machine = resolve(family.machine)
    assert isinstance(machine, Gpu)
    target = target_for(machine)
    module.attributes["tile.target"] = replace(target, facts=replace(target.facts, multiprocessors=2)).attribute()
    if family.warps != (0, 0):
        for func in module.body.block.ops:
            func.attributes["warps"] = i64s(family.warps)
    run_pipeline(module, "gpu", family.disable, options=family.options)
    return generate(module)


def run(name: str, ptx: str, limit: int = MOST_INSTRUCTIONS) -> tuple[list[emulator.Finding], list[Any], int]:
    """Findings, arguments afterwards, and the instructions of all warps."""
    code, arguments = code_of(name), FAMILIES[name].arguments()
    module, findings, instructions = emulator.parse(ptx), [], 0
    for kernel in code.kernels:
        given = arguments
        if len(code.kernels) == 2:  # one writes the parts, the other adds them up
            given = arguments[:3] if kernel is code.kernels[0] else [arguments[3], arguments[2]]
        made = emulator.run(
            module, kernel.entry, kernel.grid, kernel.block, with_maps(kernel, given), kernel.shared_bytes,
            limit=limit,
        )  # fmt: skip
        findings += made.findings
        instructions += sum(made.counts.warp_instructions.values())
    return findings, arguments, instructions


# Errors ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """One error: its kind, the line (from 1) and the text that stands there instead."""

    family: str
    kind: str
    line: int
    was: str
    text: str

    def __str__(self) -> str:
        return f"{self.family}: {self.kind}, line {self.line}: {self.was}  ->  {self.text or 'nothing'}"


@dataclass(frozen=True)
class Facts:
    """What errors ask of a kernel: registers with addresses of shared memory, those used as such, bytes of a slot."""

    shared: frozenset[str]
    direct: frozenset[str]
    slot: int


Plant = Callable[[str, Facts], Iterator[str]]
_MBARRIER_BYTES = 8


def _gone(*patterns: str) -> Plant:
    """The instruction is not there."""

    def plant(line: str, facts: Facts) -> Iterator[str]:
        if any(re.match(pattern, line) for pattern in patterns):
            yield ""

    return plant


def _changed(pattern: str, change: Callable[[re.Match[str]], str | None]) -> Plant:
    """What the pattern matches becomes something else, unless that is None."""

    def plant(line: str, facts: Facts) -> Iterator[str]:
        for match in re.finditer(pattern, line):
            text = change(match)
            if text is not None:
                yield line[: match.start()] + text + line[match.end() :]

    return plant


def _other_slot(line: str, facts: Facts) -> Iterator[str]:
    """The address of one access to shared memory, or one that a description is made of, is a slot further."""
    if not facts.slot:
        return
    step = _MBARRIER_BYTES if line.startswith("mbarrier") or "mbarrier.try_wait" in line else facts.slot
    for number, match in enumerate(re.finditer(r"\[(%r\d+)(?:\+(\d+))?\]", line)):
        if match[1] in facts.shared:
            bytes_ = _MBARRIER_BYTES if number and line.startswith("cp.async.bulk") else step
            yield f"{line[: match.start()]}[{match[1]}+{int(match[2] or 0) + bytes_}]{line[match.end() :]}"
    made = re.match(r"add\.s32 (%r\d+), (%r\d+), (\d+);", line)
    if made and made[2] in facts.shared and made[1] not in facts.direct:
        yield f"add.s32 {made[1]}, {made[2]}, {int(made[3]) + facts.slot};"


def _either_condition(line: str, facts: Facts) -> Iterator[str]:
    match = re.match(r"and\.pred (%p\d+), (%p\d+), (%p\d+);", line)
    if match:
        yield f"mov.pred {match[1]}, {match[2]};"
        yield f"mov.pred {match[1]}, {match[3]};"
    match = re.match(r"selp\.b32 (%r\d+), (?:0, (%r\d+)|(%r\d+), 0), %p\d+;", line)
    if match:
        yield f"mov.b32 {match[1]}, {match[2] or match[3]};"


def _one_term(line: str, facts: Facts) -> Iterator[str]:
    match = re.match(r"xor\.b32 (%r\d+), (%r\d+), (%r\d+);", line)
    if match:
        yield f"mov.b32 {match[1]}, {match[2]};"
        yield f"mov.b32 {match[1]}, {match[3]};"


def _more(match: re.Match[str]) -> str:
    return f"{match[1]} {int(match[2]) + 1};"


ERRORS: dict[str, Plant] = {
    "no barrier": _gone(r"bar\.sync|barrier\."),
    "no wait": _gone(r"cp\.async\.wait|wgmma\.wait_group"),
    "a wait leaves one more": _changed(r"^(cp\.async\.wait_group|wgmma\.wait_group\.sync\.aligned) (\d+);", _more),
    "no commit": _gone(r"cp\.async\.commit_group|wgmma\.commit_group"),
    "no fence": _gone(r"fence\.", r"wgmma\.fence"),
    "no copy": _gone(r"cp\.async\.(ca|cg|bulk)"),
    "no store to shared memory": _gone(r"st\.shared"),
    "other slot": _other_slot,
    "no term of a swizzle": _one_term,
    "a bit of a swizzle": _changed(
        r"^xor\.b32 (%r\d+), (%r\d+), (\d+);",
        lambda match: f"xor.b32 {match[1]}, {match[2]}, {int(match[3]) & (int(match[3]) - 1)};",
    ),
    "no mask": _changed(r"@!?%p\d+ (?=(ld|st)\.global)", lambda match: ""),
    "no condition of a mask": _either_condition,
    "no bound of a copy": _changed(r"(?<=\], )(16|8|4), %r\d+;", lambda match: f"{match[1]};"),
    "no mbarrier": _gone(r"mbarrier\.init"),
    "no arrival": _gone(r"mbarrier\.arrive"),
    "no wait for an mbarrier": _gone(r"\{.*mbarrier\.try_wait"),
    "other parity": _changed(
        r"complete; wait: (.*), (%r\d+);(?= @)",
        lambda match: f"complete; .reg .b32 other; xor.b32 other, {match[2]}, 1; wait: {match[1]}, other;",
    ),
    "one arrival more": _changed(
        r"^(mbarrier\.init.*), (%r\d+);",
        lambda match: f"{{ .reg .b32 more; add.s32 more, {match[2]}, 1; {match[1]}, more; }}",
    ),
    "fewer bytes": _changed(
        r"^(mbarrier\.arrive\.expect_tx.*), (%r\d+);",
        lambda match: f"{{ .reg .b32 fewer; sub.s32 fewer, {match[2]}, 16; {match[1]}, fewer; }}",
    ),
    "other lane": _changed(
        r"^(shfl\.sync\.bfly\.b32 .*), (\d+), 31, -1;",
        lambda match: f"{match[1]}, {int(match[2]) // 2 or 2}, 31, -1;",
    ),
}


def mutants(name: str) -> list[Mutant]:
    """Every error at every site of a kernel, in the order of its lines."""
    lines = code_of(name).ptx.splitlines()
    facts = _facts([_plain(line) for line in lines], FAMILIES[name].slot)
    return [
        Mutant(name, kind, number, line, text)
        for number, line in enumerate((_plain(line) for line in lines), 1)
        for kind, plant in ERRORS.items()
        for text in plant(line, facts)
        if text != line
    ]


def _plain(line: str) -> str:
    return " ".join(line.split("//")[0].split())


def _facts(lines: Sequence[str], slot: int) -> Facts:
    shared: set[str] = set()
    for _ in range(3):  # registers of loops
        for line in lines:
            made = re.match(r"(?:add\.s32|mov\.b32) (%r\d+), ([^,;]+)(?:, ([^,;]+))?;", line)
            if made and {made[2], made[3]} & (shared | {"shared"}):
                shared.add(made[1])
    direct = frozenset(found for line in lines for found in re.findall(r"\[(%r\d+)", line))
    return Facts(frozenset(shared), direct, slot)


# What is found --------------------------------------------------------------------------------------------------------


@cache
def _unharmed(name: str) -> tuple[tuple[bytes, ...], int]:
    """The arguments after a run of the kernel as it was, which finds nothing, and the instructions."""
    findings, arguments, instructions = run(name, code_of(name).ptx)
    assert not findings, findings
    return tuple(each.tobytes() for each in arguments), instructions


def seen(mutant: Mutant) -> str:
    """How an error shows: a kind of finding, "refused", "wrong result"; "" where it does not."""
    lines = code_of(mutant.family).ptx.splitlines()
    lines[mutant.line - 1] = mutant.text
    wanted, instructions = _unharmed(mutant.family)
    try:
        findings, arguments, _ = run(mutant.family, "\n".join(lines), PATIENCE * instructions)
    except CompileError:
        return "refused"
    if findings:
        return findings[0].kind
    return "" if tuple(each.tobytes() for each in arguments) == wanted else "wrong result"


_COPIES = "copies ahead.*|parts of k|multiply-adds|attention"
_NO_COPY_LEFT = (
    "A trip commits the slice two ahead and then waits for all but that group. Behind the loop the groups still open "
    "are those of slices beyond k, which hold no copy."
)
_NOT_STORED = (
    "The bound of columns of b in a slice that other rows follow: what is read beyond it lies in b, and enters only "
    "columns of c that are beyond the bound of c, which are not stored."
)
_LATER_RELEASE = (
    "Slot s + 1 is released for this turn after slot s, and no product between the two needs the box that is waited "
    "for: the wait is longer, and ends."
)
_FRESH_SLOT = "The first turn of a slot: nothing was in it, its mbarrier and the next one let go at once."
_NOBODY_WAITS = "The release of the last slot behind the last product: no box follows that waits for it."
_ONE_BLOCK = (
    "It orders the making of mbarriers before uses by other blocks of a cluster. The cluster is one block, whose "
    "threads are ordered by the barrier behind it."
)

EQUIVALENT: list[tuple[str, str, str, str]] = [
    (_COPIES, "no wait", r"cp\.async\.wait_group 0;", _NO_COPY_LEFT),
    (_COPIES, "a wait leaves one more", r"cp\.async\.wait_group 0;", _NO_COPY_LEFT),
    ("copies ahead", "no bound of a copy", r"\[%r\d+(\+2048)?\], .* 16, %r", _NOT_STORED),
    ("multiply-adds", "no bound of a copy", r"\[%r\d+(\+1024)?\], .* 8, %r", _NOT_STORED),
    ("registers ahead", "no mask", r"mov.b32 %r\d+, 0; mov.b32 .* ld\.global\.nc\.v2\.b32 .*\+0\]", _NOT_STORED),
    ("boxes.*", "no fence", r"fence\.mbarrier_init\.release\.cluster", _ONE_BLOCK),
    ("boxes and four warps|boxes, all warps alike", "other slot", r"mbarrier\.try_wait", _LATER_RELEASE),
    ("boxes, a block per tile", "other slot", r"mbarrier\.try_wait", _FRESH_SLOT),
    ("boxes, a block per tile", "no wait for an mbarrier", r"mbarrier\.try_wait", _FRESH_SLOT),
    ("boxes, a block per tile", "other slot", r"mbarrier\.arrive\.shared", _NOBODY_WAITS),
    ("boxes, a block per tile", "no arrival", r"mbarrier\.arrive\.shared", _NOBODY_WAITS),
    (
        "boxes and four warps", "a bit of a swizzle", r"xor\.b32 .*, 48;",
        "It is 48 less the first column of the tile, 48 or 16; without the bit, 32 or 0. A thread's first two pairs of "
        "columns are left of 16 and are not tested, its last two lie between 16 and 32.",
    ),
]  # fmt: skip
"""Errors that change nothing: family and kind, a pattern of the line, and why. Found errors are not excused by it."""


def reason(mutant: Mutant) -> str:
    """Why an error changes nothing, from `EQUIVALENT`; "" where it is not listed."""
    for family, kind, was, why in EQUIVALENT:
        if re.fullmatch(family, mutant.family) and mutant.kind == kind and re.search(was, mutant.was):
            return why
    return ""


def plant(chosen: Sequence[Mutant]) -> dict[str, Any]:
    """Counts by family and by kind of error, how errors showed, and those that did not."""
    families: dict[str, Counter[str]] = {}
    kinds: dict[str, Counter[str]] = {}
    shown, survivors = Counter[str](), []
    for mutant in chosen:
        how = seen(mutant)
        outcome = "found" if how else "equivalent" if reason(mutant) else "survived"
        families.setdefault(mutant.family, Counter())[outcome] += 1
        kinds.setdefault(mutant.kind, Counter())[outcome] += 1
        if how:
            shown[how] += 1
        else:
            survivors.append({"mutant": str(mutant), "reason": reason(mutant)})
    found = sum(each["found"] for each in families.values())
    return {
        "planted": len(chosen), "found": found, "share": round(found / max(1, len(chosen)), 4),
        "families": {name: dict(each) for name, each in families.items()},
        "kinds": {name: dict(each) for name, each in kinds.items()},
        "shown": dict(shown.most_common()), "survivors": survivors,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__.split("\n\n")[0])
    parser.add_argument("--family", choices=FAMILIES, help="only this kernel")
    parser.add_argument("--kind", choices=ERRORS, help="only errors of this kind")
    parser.add_argument("--sample", type=int, help="so many errors, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = [options.family] if options.family else list(FAMILIES)
    chosen = [each for name in names for each in mutants(name) if options.kind in (None, each.kind)]
    if options.sample is not None:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    result = plant(chosen)
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        for title in ("families", "kinds"):
            for name, counts in result[title].items():
                print(f"{name:28}" + "  ".join(f"{what} {count}" for what, count in sorted(counts.items())))
            print()
        print("how they show:", ", ".join(f"{how} {count}" for how, count in result["shown"].items()), "\n")
        for each in result["survivors"]:
            print(each["mutant"], f"\n    {each['reason'] or 'SURVIVED'}")
        print(f"{result['found']} of {result['planted']} found: {100 * result['share']:.1f} %")
    return int(any(not each["reason"] for each in result["survivors"]))


if __name__ == "__main__":
    sys.exit(main())
