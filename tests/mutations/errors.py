"""Every kind of error, `ERRORS`, at every site of a kernel: `mutants`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from tests.mutations.kernels import FAMILIES, code_of


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
    """What errors ask of a kernel: registers with addresses of shared memory, those used as such, bytes of a slot.

    Masks in `always` are true by definition: to leave them out is no error.
    """

    shared: frozenset[str]
    direct: frozenset[str]
    slot: int
    always: frozenset[str]


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
    if "mapa" in line:
        yield line.replace("[there]", f"[there+{_MBARRIER_BYTES}]")
    made = re.match(r"add\.s32 (%r\d+), (%r\d+), (\d+);", line)
    if made and made[2] in facts.shared and made[1] not in facts.direct:
        yield f"add.s32 {made[1]}, {made[2]}, {int(made[3]) + facts.slot};"


def _no_mask(line: str, facts: Facts) -> Iterator[str]:
    for match in re.finditer(r"@!?(%p\d+) (?=(ld|st|atom|red|cp)\.)", line):
        if match[1] not in facts.always:
            yield line[: match.start()] + line[match.end() :]


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


def _other_blocks(line: str, facts: Facts) -> Iterator[str]:
    """A copy reaches one of two blocks only."""
    match = re.match(r"(cp\.async\.bulk.*\.multicast::cluster.*), %rs\d+;", line)
    for mask in (1, 2) if match else ():
        yield f"{{ .reg .b16 mask; mov.b16 mask, {mask}; {match[1]}, mask; }}"


def _more(match: re.Match[str]) -> str:
    return f"{match[1]} {int(match[2]) + 1};"


ERRORS: dict[str, Plant] = {
    "no barrier": _gone(r"bar\.sync|barrier\."),
    "no wait": _gone(r"cp\.async\.(bulk\.)?wait|wgmma\.wait_group"),
    "a wait leaves one more": _changed(
        r"^(cp\.async\.(?:bulk\.)?wait_group(?:\.read)?|wgmma\.wait_group\.sync\.aligned) (\d+);", _more
    ),
    "no commit": _gone(r"cp\.async\.(bulk\.)?commit_group|wgmma\.commit_group"),
    "no fence": _gone(r"fence\.", r"wgmma\.fence"),
    "no copy": _gone(r"cp\.async\.(ca|cg|bulk\.tensor)"),
    "no store to shared memory": _gone(r"(@!?%p\d+ )?(st\.shared|stmatrix)"),
    "no registers handed over": _gone(r"setmaxnreg"),
    "no atomic": _gone(r"(@!?%p\d+ )?(atom|red)\."),
    "not atomic": _changed(
        r"red\.relaxed\.\w+\.(\w+)\.add\.(u32) (\[.*\]), (%r\d+);",
        lambda match: (
            f"{{ .reg .b32 old; ld.{match[1]}.{match[2]} old, {match[3]}; add.{match[2]} old, old, {match[4]}; "
            f"st.{match[1]}.{match[2]} {match[3]}, old; }}"
        ),
    ),
    "other slot": _other_slot,
    "no term of a swizzle": _one_term,
    "a bit of a swizzle": _changed(
        r"^xor\.b32 (%r\d+), (%r\d+), (\d+);",
        lambda match: f"xor.b32 {match[1]}, {match[2]}, {int(match[3]) & (int(match[3]) - 1)};",
    ),
    "no mask": _no_mask,
    "no condition of a mask": _either_condition,
    "no bound of a copy": _changed(r"(?<=\], )(16|8|4), %r\d+;", lambda match: f"{match[1]};"),
    "no mbarrier": _gone(r"mbarrier\.init"),
    "no arrival": _gone(r"(\{.*)?mbarrier\.arrive"),
    "arrival in the own block": _changed(
        r"mapa\.\S+ there, (%r\d+), %r\d+;", lambda match: f"mov.b32 there, {match[1]};"
    ),
    "other blocks": _other_blocks,
    "no wait for an mbarrier": _gone(r"\{.*mbarrier\.try_wait"),
    "other parity": _changed(
        r"complete; wait: (.*), (%r\d+);(?= @)",
        lambda match: f"complete; .reg .b32 other; xor.b32 other, {match[2]}, 1; wait: {match[1]}, other;",
    ),
    "one arrival more": _changed(
        r"^(mbarrier\.init.*), (%r\d+);",
        lambda match: f"{{ .reg .b32 more; add.s32 more, {match[2]}, 1; {match[1]}, more; }}",
    ),
    "one arrival fewer": _changed(
        r"^(mbarrier\.init.*), (%r\d+);",
        lambda match: f"{{ .reg .b32 fewer; sub.s32 fewer, {match[2]}, 1; {match[1]}, fewer; }}",
    ),
    "fewer bytes": _changed(
        r"^(mbarrier\.arrive\.expect_tx.*), (%r\d+);",
        lambda match: f"{{ .reg .b32 fewer; sub.s32 fewer, {match[2]}, 16; {match[1]}, fewer; }}",
    ),
    "cut, not rounded": _changed(
        r"^cvt\.rna\.tf32\.f32 (%r\d+), (%r\d+);", lambda match: f"mov.b32 {match[1]}, {match[2]};"
    ),
    "a high part with all bits": _changed(r"^selp\.b32 (%r\d+), -8192, ", lambda match: f"selp.b32 {match[1]}, -1, "),
    "other lane": _changed(
        r"^(shfl\.sync\.bfly\.b32 .*), (\d+), 31, -1;",
        lambda match: f"{match[1]}, {int(match[2]) // 2 or 2}, 31, -1;",
    ),
}


@cache
def mutants(name: str) -> tuple[Mutant, ...]:
    """Every error at every site of a kernel, in the order of its lines."""
    lines = [_plain(line) for line in code_of(name).ptx.splitlines()]
    entries = [0, *(number for number, line in enumerate(lines) if ".entry" in line), len(lines)]
    return tuple(
        Mutant(name, kind, number, line, text)
        for start, end in pairwise(entries)
        for facts in (_facts(lines[start:end], FAMILIES[name].slot),)
        for number, line in enumerate(lines[start:end], start + 1)
        for kind, plant in ERRORS.items()
        for text in plant(line, facts)
        if text != line
    )


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
    defined = [
        found for line in lines for found in re.findall(r"^(?:mov|setp\.\S+|and|or|not|xor)\S* (%p\d+), ?(.*);", line)
    ]
    constant = {name for name, value in defined if value == "-1"}
    always = constant - {name for name, value in defined if value != "-1"}
    return Facts(frozenset(shared), direct, slot, frozenset(always))
