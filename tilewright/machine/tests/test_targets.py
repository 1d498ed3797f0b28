"""The tables of what LLVM is told, held against the LLVM that is installed."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache

import pytest

from tilewright.machine import targets
from tilewright.machine.features import BY_ARCHITECTURE, NEEDS

TRIPLES = {
    "x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu", "nvptx64": targets.NVIDIA,
    "amdgcn": targets.AMD,
}  # fmt: skip
TABLES = {"x86_64": targets.X86, "aarch64": targets.AARCH64, "nvptx64": targets.PTX_SINCE, "amdgcn": targets.AMD_MODES}

SETUP = """
import sys
import llvmlite.binding as llvm
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
target = llvm.Target.from_triple(sys.argv[1])
"""
COMPILE = (
    SETUP
    + """
empty = "define void @f(ptr addrspace(1) %p) { store i32 1, ptr addrspace(1) %p\\n ret void }"
for told in sys.argv[2:]:
    cpu, _, features = told.partition(" ")
    machine = target.create_target_machine(cpu=cpu, features=features)
    module = llvm.parse_assembly(f'target triple = "{sys.argv[1]}" {empty}'.replace("\\\\n", "\\n"))
    module.data_layout = str(machine.target_data)
    print(told, machine.emit_assembly(module).count("target sm_"), flush=True)
"""
)


def in_child(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)


@cache
def told(architecture: str) -> tuple[frozenset[str], frozenset[str]]:
    """The processors and the features that LLVM lists."""
    text = in_child(SETUP + 'target.create_target_machine(cpu="help")', TRIPLES[architecture]).stderr
    processors, features = text.split("Available features")
    words = (frozenset(re.findall(r"^  (\S+) +- ", part, re.MULTILINE)) for part in (processors, features))
    return next(words), next(words)


@pytest.mark.parametrize("architecture", TRIPLES)
def test_llvm_knows_every_name_of_the_tables(architecture: str) -> None:
    processors, features = told(architecture)
    assert set(TABLES[architecture]) <= processors
    if architecture == "amdgcn":
        assert set().union(*targets.AMD_MODES.values()) <= features
    elif architecture == "nvptx64":
        assert {f"ptx{version}" for version in targets.PTX_VERSIONS} <= features
        newest = max(int(name[3:]) for name in features if name.startswith("ptx"))
        assert newest == targets.PTX_VERSIONS[-1], "LLVM writes newer PTX: extend targets.PTX_VERSIONS"
    else:
        assert BY_ARCHITECTURE[architecture] <= features


def test_the_tables_lack_no_processor_that_has_code() -> None:
    assert {name for name in told("nvptx64")[0] if targets.capability(name) >= 70} == set(targets.PTX_SINCE)
    assert told("aarch64")[0] == targets.AARCH64, "LLVM knows more: extend targets.AARCH64"
    left = told("x86_64")[0] - targets.X86
    assert "64-bit code requested" in in_child(COMPILE, TRIPLES["x86_64"], f"{min(left)} ").stderr


@pytest.mark.parametrize("architecture", TRIPLES)
def test_every_processor_of_the_tables_compiles(architecture: str) -> None:
    asked = [f"{cpu} " for cpu in sorted(TABLES[architecture])]
    if architecture == "nvptx64":
        asked += [f"{cpu} +ptx{version}" for cpu, version in sorted(targets.PTX_SINCE.items())]
    if architecture == "amdgcn":
        asked += [f"{cpu} {sign}{mode}" for cpu, modes in targets.AMD_MODES.items() for mode in modes for sign in "+-"]
    done = in_child(COMPILE, TRIPLES[architecture], *asked)
    assert done.returncode == 0, done.stderr[-500:]
    assert "not a recognized" not in done.stderr
    assert len(done.stdout.splitlines()) == len(asked)


def test_llvm_ends_the_process_just_below_the_table() -> None:
    """What the check is for: without it the caller would be gone, with no exception."""
    for cpu in ("sm_75", "sm_90a", "sm_120a"):
        older = max(version for version in targets.PTX_VERSIONS if version < targets.PTX_SINCE[cpu])
        done = in_child(COMPILE, targets.NVIDIA, f"{cpu} +ptx{older}")
        assert done.returncode != 0
        assert "Minimum required PTX version" in done.stderr
        assert targets.misfit(targets.NVIDIA, cpu, [f"+ptx{older}"]) is not None
        assert targets.misfit(targets.NVIDIA, cpu, [f"+ptx{targets.PTX_SINCE[cpu]}"]) is None


@pytest.mark.parametrize("architecture", NEEDS)
def test_needs_are_features_and_end(architecture: str) -> None:
    known, needs = BY_ARCHITECTURE[architecture], NEEDS[architecture]
    assert known >= set(needs)
    for name in needs:
        reached, left = set[str](), [name]
        while left:
            reached.update(more := set(needs.get(left.pop(), ())) - reached)
            left += more
        assert name not in reached
        assert reached <= known


def test_units_are_those_of_a_generation() -> None:
    assert targets.units("sm_75") == ["wmma", "ldmatrix", "mma"]
    assert "wgmma" in targets.units("sm_90a")
    assert {"tma", "setmaxnreg"} <= set(targets.units("sm_100a"))
    assert not {"wgmma", "setmaxnreg"} & {*targets.units("sm_90"), *targets.units("sm_120")}
    assert targets.units("gfx908") == ["mfma"]
    assert targets.units("gfx1201") == ["wmma"]
    assert targets.units("gfx1030") == []
