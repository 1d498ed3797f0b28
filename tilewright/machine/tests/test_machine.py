"""Machine files, detection and errors."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.errors import InvalidMachine
from tilewright.machine import (
    Accelerator,
    Cpu,
    Gpu,
    host,
    machine_from_json,
    missing_features,
    names,
    reading,
    registry,
    resolve,
    resolve_cpu,
)
from tilewright.machine import features as feature_tables
from tilewright.machine.detect import SYSTEM, base_machine, described, host_limited_to, named_machine
from tilewright.machine.reading import FILES
from tilewright.machine.roofline import LaunchModel


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "machine.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", names())
def test_every_machine_reads_and_round_trips(name: str) -> None:
    machine = resolve(name)
    assert machine.name == name
    stored = json.loads(json.dumps(machine.to_json()))
    assert machine_from_json(stored) == machine
    assert machine_from_json(stored).digest() == machine.digest()


def test_names_and_digests_are_distinct() -> None:
    assert names()[0] == "host"
    assert len({resolve(name).digest() for name in names()}) == len(names()) >= 13


def test_digest_is_the_same_in_another_process() -> None:
    code = "from tilewright.machine import resolve; print(resolve('znver5').digest())"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(FILES.parents[2])},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.strip() == resolve("znver5").digest()


def test_machines_are_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        resolve("znver5").name = "other"  # type: ignore[misc]


def test_znver5_facts() -> None:
    machine = resolve_cpu("znver5")
    assert (machine.vector_bits, machine.vector_registers, machine.fma_units) == (512, 32, 2)
    assert machine.loads_per_cycle == 2
    assert [(cache.bytes, cache.ways) for cache in machine.caches[:2]] == [(49152, 12), (1048576, 16)]
    assert {"avx512vnni", "avx512bf16", "avx512vl"} <= machine.features
    assert machine.intrinsics[-1] == "vdpbf16ps_16x2_bf16_f32"


def test_znver4_runs_one_512_bit_operation_a_cycle() -> None:
    machine, next_one = resolve_cpu("znver4"), resolve_cpu("znver5")
    assert (machine.vector_bits, machine.fma_units, machine.loads_per_cycle) == (512, 1, 1)
    assert next_one.features - machine.features == {"avx512vp2intersect", "avxvnni"}
    assert machine.features < next_one.features
    assert base_machine("x86_64", "znver4", machine.features).name == "znver4"


def test_znver1_runs_one_256_bit_operation_a_cycle() -> None:
    machine, later = resolve_cpu("znver1"), resolve_cpu("znver3")
    assert (machine.vector_bits, machine.fma_units, machine.loads_per_cycle) == (256, 1, 1)
    assert machine.arithmetic_per_cycle == 1
    assert resolve_cpu("x86-64-v3").features < machine.features < later.features
    assert base_machine("x86_64", "znver1", machine.features).name == "znver1"


def test_znver3_facts() -> None:
    machine = resolve_cpu("znver3")
    assert (machine.vector_bits, machine.vector_registers, machine.fma_units) == (256, 16, 2)
    assert [(cache.bytes, cache.ways) for cache in machine.caches[:2]] == [(32768, 8), (524288, 8)]
    assert resolve_cpu("x86-64-v3").features < machine.features < resolve_cpu("znver4").features
    assert base_machine("x86_64", "znver3", machine.features).name == "znver3"


def test_levels_extend_each_other() -> None:
    v2, v3, v4 = (resolve_cpu(f"x86-64-v{level}") for level in (2, 3, 4))
    assert v2.features < v3.features < v4.features
    assert [machine.vector_bits for machine in (v2, v3, v4)] == [128, 256, 512]
    assert "+fma" not in v2.llvm.features.split(",")
    assert "-fma" in v2.llvm.features.split(",")
    assert "+fma" in v3.llvm.features.split(",")
    assert "-avx512f" in v3.llvm.features.split(",")


def test_gpu_facts() -> None:
    a100, h200 = resolve("sm_80"), resolve("sm_90a")
    assert isinstance(a100, Gpu)
    assert isinstance(h200, Gpu)
    assert (a100.ptx_version, h200.ptx_version) == ((7, 8), (8, 0))
    assert (a100.shared_bytes_per_block, h200.shared_bytes_per_block) == (166912, 232448)
    peak = 2 * h200.fma_per_cycle["f16"] * h200.multiprocessors * h200.clock_hz
    assert peak == pytest.approx(989e12, rel=0.01)  # published dense f16 peak
    assert resolve("gfx942").warp_sizes == (64,)  # type: ignore[attr-defined]


def test_what_a_gpu_waits_for_has_defaults(tmp_path: Path) -> None:
    given = "copy_cycles: 500\nblock_cycles: 900\nlaunch_seconds: 2.0e-6\ndram: {latency_seconds: 5.0e-7}\n"
    base, machine = resolve("sm_80"), resolve(write(tmp_path, f"name: mine\nextends: sm_80\n{given}"))
    assert isinstance(base, Gpu)
    assert isinstance(machine, Gpu)
    assert (base.copy_cycles, base.block_cycles, base.dram.latency_seconds) == (700, 700, 7e-7)
    assert (machine.copy_cycles, machine.block_cycles, machine.dram.latency_seconds) == (500, 900, 5e-7)
    assert (base.launch_seconds, machine.launch_seconds) == (1.5e-6, 2e-6)
    assert machine.dram.bytes_per_second == base.dram.bytes_per_second


def test_accelerator_facts_of_specification() -> None:
    edge, cloud = resolve("edge"), resolve("cloud")
    assert isinstance(edge, Accelerator)
    assert isinstance(cloud, Accelerator)
    assert edge.units == 4 * 32 * 32
    assert cloud.units == 4 * 256 * 256
    total = {
        level.name: level.read_words_per_cycle * cloud.instances(level.name)
        for level in cloud.levels
        if level.read_words_per_cycle
    }
    assert (total["DRAM"], total["L2"], total["L1"]) == (192, 950, 4800)
    assert edge.instances("L1") * edge.levels[1].read_words_per_cycle == 600  # type: ignore[operator]
    with pytest.raises(KeyError):
        edge.instances("L2")


def test_every_triple_is_known_to_llvm_and_no_feature_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    for name in names():
        machine = resolve(name)
        if isinstance(machine, Cpu | Gpu):
            target = llvm.Target.from_triple(machine.llvm.triple)
            target.create_target_machine(cpu=machine.llvm.cpu, features=machine.llvm.features)
    assert "not a recognized" not in capfd.readouterr().err


def test_host_has_exactly_the_features_llvm_reports() -> None:
    machine = host()
    assert machine.name == "host"
    reported = {name for name, present in llvm.get_host_cpu_features().items() if present}
    assert machine.features <= reported | feature_tables.BASELINE[machine.architecture]
    if machine.architecture == "x86_64":
        assert set(llvm.get_host_cpu_features()) <= feature_tables.X86, "LLVM knows more: extend features.X86"
        for name in reported - machine.features:
            assert not set(feature_tables.NEEDS["x86_64"][name]) <= machine.features
    assert machine.llvm.cpu == llvm.get_host_cpu_name()
    assert missing_features(machine, machine) == []


@pytest.mark.skipif(not (SYSTEM / "cpu/cpu0/cache/index0").exists(), reason="the system does not describe caches")
def test_host_caches_are_those_of_the_system() -> None:
    first = host().caches[0]
    kib = int((SYSTEM / "cpu/cpu0/cache/index0/size").read_text().strip().rstrip("K"))
    assert (first.name, first.bytes) == ("L1", kib * 1024)


def fake_system(root: Path, *, threads: int, siblings: int) -> Path:
    """A /sys/devices/system with one package, `threads` processors and `siblings` of them per core."""
    cpu = root / "cpu"
    cpu.mkdir()
    (cpu / "online").write_text(f"0-{threads - 1}\n")
    for processor in range(threads):
        topology = cpu / f"cpu{processor}/topology"
        topology.mkdir(parents=True)
        core = processor // siblings
        (topology / "physical_package_id").write_text("0\n")
        (topology / "core_id").write_text(f"{core}\n")
        (topology / "thread_siblings_list").write_text(f"{core * siblings}-{core * siblings + siblings - 1}\n")
    for index, (level, kind, size, shared) in enumerate([
        (1, "Data", "32K", f"0-{siblings - 1}"), (1, "Instruction", "32K", f"0-{siblings - 1}"),
        (2, "Unified", "2M", f"0-{siblings - 1}"), (3, "Unified", "16M", f"0-{threads - 1}"),
    ]):  # fmt: skip
        cache = cpu / f"cpu0/cache/index{index}"
        cache.mkdir(parents=True)
        for name, value in [("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared),
                            ("coherency_line_size", 64), ("ways_of_associativity", 8)]:  # fmt: skip
            (cache / name).write_text(f"{value}\n")
    (cpu / "cpu0/cpufreq").mkdir()
    (cpu / "cpu0/cpufreq/cpuinfo_max_freq").write_text("3600000\n")
    return root


def test_hyperthreads_are_not_cores(tmp_path: Path) -> None:
    v3 = resolve_cpu("x86-64-v3").features
    system = fake_system(tmp_path, threads=8, siblings=2)
    machine = described("x86_64", "x86_64-unknown-linux-gnu", "haswell", v3, system)
    assert machine.cores == 4
    assert [(cache.name, cache.bytes, cache.shared_by) for cache in machine.caches] == [
        ("L1", 32 << 10, 1), ("L2", 2 << 20, 1), ("L3", 16 << 20, 4)
    ]  # fmt: skip
    assert machine.clock_hz == 3.6e9
    assert (machine.vector_bits, machine.vector_registers) == (256, 16)


@pytest.mark.skipif(host().architecture != "x86_64", reason="levels of x86-64")
def test_the_host_can_be_limited_to_an_older_level() -> None:
    level = resolve_cpu("x86-64-v2")
    limited = host_limited_to(level)
    assert limited.features == level.features
    assert (limited.vector_bits, limited.vector_registers) == (128, 16)
    assert limited.intrinsics == level.intrinsics
    assert limited.llvm.cpu == host().llvm.cpu
    assert [cache.bytes for cache in limited.caches] == [cache.bytes for cache in host().caches]
    newer = replace(level, name="newer", features=frozenset({*host().features, "sha512"}))
    with pytest.raises(InvalidMachine, match="cannot be limited to newer: it lacks sha512"):
        host_limited_to(newer)
    with pytest.raises(InvalidMachine, match="cannot be limited to aarch64: it is of x86_64"):
        host_limited_to(resolve_cpu("aarch64"))


def test_detection_without_a_system_keeps_the_base_file(tmp_path: Path) -> None:
    v4 = resolve_cpu("x86-64-v4")
    machine = described("x86_64", "x86_64-apple-darwin", "skylake-avx512", v4.features, tmp_path)
    assert machine.caches == v4.caches
    assert machine.cores >= 1
    assert machine.llvm.triple == "x86_64-apple-darwin"


def test_a_masked_feature_takes_its_dependents_and_intrinsics_along(tmp_path: Path) -> None:
    full = resolve_cpu("znver5").features
    machine = described("x86_64", "x86_64-unknown-linux-gnu", "znver5", full - {"avx512f"}, tmp_path)
    assert not [name for name in machine.features if name.startswith("avx512")]
    assert (machine.vector_bits, machine.vector_registers) == (256, 16)
    assert machine.intrinsics == (
        "fma_4_f32_f32", "fma_2_f64_f64", "fma_8_f32_f32", "fma_4_f64_f64", "vpdpbusd_8x4_u8s8_s32",
    )  # fmt: skip
    assert machine.fma_units == 2


def test_base_is_the_most_specific() -> None:
    znver5 = resolve_cpu("znver5").features
    assert base_machine("x86_64", "znver5", znver5).name == "znver5"
    assert base_machine("x86_64", "sapphirerapids", znver5).name == "x86-64-v4"
    assert base_machine("x86_64", "znver2", resolve_cpu("x86-64-v3").features).name == "x86-64-v3"
    assert base_machine("x86_64", "core2", frozenset()).name == "x86-64-v2"
    assert base_machine("aarch64", "neoverse-n1", frozenset({"neon", "fp-armv8"})).name == "aarch64"


def test_arm_host_with_dot_products(tmp_path: Path) -> None:
    features = frozenset({"neon", "fp-armv8", "dotprod", "not-in-our-table"})
    machine = described("aarch64", "aarch64-unknown-linux-gnu", "neoverse-n1", features, tmp_path)
    assert machine.features == {"neon", "fp-armv8", "dotprod"}
    assert "sdot_4x4_s8s8_s32" in machine.intrinsics
    assert machine.vector_registers == 32


def test_missing_features() -> None:
    v3, v4, arm = (resolve_cpu(name) for name in ("x86-64-v3", "x86-64-v4", "aarch64"))
    assert missing_features(v3, v4) == []
    assert missing_features(v4, v3) == ["avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"]
    assert missing_features(arm, v4) == ["aarch64"]


def test_user_file_extends(tmp_path: Path) -> None:
    path = write(tmp_path, "name: mine\nextends: znver5\ncores: 8\ndram: {bytes_per_second: 100e9}\n"
                 "features: {remove: [avx512bf16]}\nintrinsics: {remove: [vdpbf16ps_16x2_bf16_f32]}\n")  # fmt: skip
    machine, base = resolve_cpu(path), resolve_cpu("znver5")
    assert (machine.name, machine.cores, machine.dram.bytes_per_second) == ("mine", 8, 100e9)
    assert machine.dram.bytes_per_second_per_core == base.dram.bytes_per_second_per_core
    assert base.features - machine.features == {"avx512bf16"}
    assert "-avx512bf16" in machine.llvm.features
    assert machine == resolve(str(path))


def test_null_takes_an_entry_away(tmp_path: Path) -> None:
    path = write(tmp_path, "name: mine\nextends: sm_80\nfma_per_cycle: {tf32: null, f16: 512}\n")
    machine, base = resolve(path), resolve("sm_80")
    assert isinstance(machine, Gpu)
    assert isinstance(base, Gpu)
    assert set(base.fma_per_cycle) - set(machine.fma_per_cycle) == {"tf32"}
    assert (machine.fma_per_cycle["f16"], base.fma_per_cycle["f16"]) == (512, 1024)


def test_matrix_schedules_are_facts_of_an_architecture(tmp_path: Path) -> None:
    rdna3, rdna4, ampere = (resolve(name) for name in ("gfx1100", "gfx1201", "sm_80"))
    assert rdna3.matrix_schedules.vector_distribution  # type: ignore[attr-defined]
    assert rdna4.matrix_schedules.size_class_seeds["matmul"]["large"] == (8, 16, 4, 1024)  # type: ignore[attr-defined]
    assert not ampere.matrix_schedules.reduction_rows  # type: ignore[attr-defined]
    wrong = write(tmp_path, "name: mine\nextends: sm_80\nmatrix_schedules: {reduction_row: true}\n")
    with pytest.raises(InvalidMachine, match="did you mean reduction_rows"):
        resolve(wrong)


def test_user_file_extends_host_and_other_file(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("name: base\nextends: host\ncores: 1\n")
    machine = resolve_cpu(write(tmp_path, "name: mine\nextends: ./base.yaml\nfma_units: 1\n"))
    assert (machine.name, machine.cores, machine.fma_units) == ("mine", 1, 1)
    assert machine.features == host().features


WRONG = [
    ("name: a\nextends: znver5\ncores: 0\n", ":3", "cores is 0"),
    ("name: a\nextends: znver5\ncores: many\n", ":3", "cores is 'many'"),
    ("name: a\nextends: znver5\ncores: true\n", ":3", "cores is True"),
    ("name: a\nextends: znver5\ncors: 2\n", ":3", "did you mean cores?"),
    ("name: a\nextends: znver5\nllvm: {cpuu: x}\n", ":3", "did you mean cpu?"),
    ("name: a\nextends: znver5\nclock_hz: .inf\n", ":3", "clock_hz is '.inf'"),
    ("name: a\nextends: znver5\nclock_hz: 1e999\n", ":3", "clock_hz is inf"),
    ("name: a\nextends: znver5\nvector_bits: 384\n", ":3", "128, 256 or 512"),
    ("name: a\nextends: znver5\nfeatures: {add: [avx513]}\n", "", "close: avx512"),
    ("name: a\nextends: znver5\nfeatures: {remove: [avx513]}\n", ":3", "no 'avx513' to remove"),
    ("name: a\nextends: znver5\nfeatures: {remove: [avx2]}\n", "", "'avx512f' but not 'avx2'"),
    ("name: a\nextends: znver5\nfeatures: {drop: [avx2]}\n", ":3", "{add: [names], remove: [names]}"),
    ("name: a\nextends: x86-64-v3\nvector_bits: 512\n", "", "vector_bits is 512 but features lacks 'avx512f'"),
    ("name: a\nextends: x86-64-v3\nintrinsics: [vdpbf16ps_16x2_bf16_f32]\n", "", "lacks 'avx512bf16'"),
    ("name: a\nextends: x86-64-v3\nfeatures: [sse4.2, sse4.2]\n", "", "twice"),
    ("name: a\nextends: x86-64-v3\nfeatures: [64bit]\n", "", "features lacks 'cmov'"),
    ("name: a\nextends: x86-64-v3\nllvm: {features: +avx512f}\n", "", "made from `features`"),
    ("name: a\nextends: x86-64-v3\nllvm: {triple: riscv64-linux-gnu}\n", "", "starts with none of"),
    ("name: a\nextends: x86-64-v3\ncaches: [{name: L1, bytes: -1, line_bytes: 64, shared_by: 1}]\n", ":3", "-1"),
    ("name: a\nextends: x86-64-v3\ncaches: []\n", ":3", "caches"),
    ("name: a\nextends: sm_80\ncaches: [{name: L2, bytes: 4096, line_bytes: 128, shared_by: 1, bytes_per_cycle: 6}]\n",
     "", "l2_port_bytes_per_cycle"),
    ("name: a\nextends: znver6\n", ":2", "did you mean znver5"),
    ("name: a\nextends: [znver5]\n", ":2", "no name"),
    ("name: a\nkind: tpu\n", ":2", "one of cpu, gpu, accelerator"),
    ("name: a\n", "", "kind is None"),
    ("name: a\nkind: cpu\n", "", "llvm is missing"),
    ("name: a\nname: b\n", ":2", "stands twice"),
    ("name: &x a\nkind: *x\n", "", "anchors"),
    ("name: !!python/object/apply:os.system [ls]\n", ":1", "tag"),
    ("name: !mine a\n", ":1", "tag"),
    ("name: [a\n", "", "is not YAML"),
    ("? [a]\n: 1\n", ":1", "a key is not a word"),
    ("- a\n", "", "is not a mapping"),
    ("", "", "is not a mapping"),
    ("a: 1\n---\nb: 1\n", "", "is not YAML"),
    ("[" * 5000, "", "nested too deeply"),
    ("\x00", "", "is not YAML"),
    ("name: a\nextends: sm_80\nshared_bytes_per_block: 999_999\n", "", "shared bytes must grow"),
    ("name: a\nextends: sm_80\nwarp_sizes: [33]\n", "", "no multiple of 33"),
    ("name: a\nextends: sm_80\nwarp_sizes: [64]\n", ":3", "code for sm_80 is made for 32 lanes"),
    ("name: a\nextends: sm_80\nload_bits: 8\n", ":3", "64 or 128"),
    ("name: a\nextends: sm_80\nregisters_per_multiprocessor: 64\n", ":3", "8160 that one warp may take"),
    ("name: a\nextends: sm_80\nfeatures: [cp_asinc]\n", ":3", "'cp_asinc', a unit that sm_80 lacks"),
    ("name: a\nextends: sm_80\nfeatures: {add: [tma]}\n", ":3", "it has: wmma, ldmatrix, mma, cp_async"),
    ("name: a\nextends: sm_90\nfeatures: {add: [wgmma]}\n", ":3", "'wgmma', a unit that sm_90 lacks"),
    ("name: a\nextends: gfx942\nfeatures: [wmma]\n", ":3", "'wmma', a unit that gfx942 lacks"),
    ("name: a\nextends: edge\ndirect_paths: [[L1, DRM]]\n", "", "close: DRAM"),
    ("name: a\nextends: edge\nlevels: [{name: L1, technology: sram, capacity_bytes: 1}]\n", "", "only dram"),
    ("name: a\nextends: edge\nlevels: [{name: D, technology: dram}, {name: L, technology: sram}]\n", "", "capacity"),
    ("name: a\nextends: ./machine.yaml\n", ":2", "circle"),
]  # fmt: skip


WRONG += [  # what LLVM is told: it would end the process, or go on without
    (f"name: a\nextends: {base}\nllvm: {{{facts}}}\n", ":3", fault)
    for base, facts, fault in [
        ("sm_90a", "features: +ptx78", "llvm.features has '+ptx78', a PTX version older than sm_90a"),
        ("sm_90a", "features: +ptx78", "= help: +ptx80, or a newer one"),
        ("sm_80", "cpu: sm_120a", "llvm.features has '+ptx78', a PTX version older than sm_120a"),
        ("sm_80", "features: +ptx99", "'+ptx99', which is no PTX version that LLVM writes"),
        ("sm_80", "features: +foo", "'+foo', which is no PTX version"),
        ("sm_80", "features: '+ptx78,+ptx80'", "several PTX versions: +ptx78, +ptx80"),
        ("sm_80", "cpu: sm_8", "llvm.cpu is 'sm_8', which is no processor of nvptx64 that is known here"),
        ("sm_80", "cpu: sm_900", "did you mean sm_90"),
        ("sm_80", "triple: nvptx-nvidia-cuda", "did you mean nvptx64-nvidia-cuda"),
        ("gfx942", "features: +wavefrontsize32", "'+wavefrontsize32', which is no mode of gfx942"),
        ("gfx942", "features: +xnak", "did you mean +xnack"),
        ("gfx1100", "features: +xnack", "one of +cumode, -cumode"),
        ("gfx942", "cpu: gfx94", "did you mean gfx942"),
        ("gfx942", "triple: amdgcn-amd-amdpal", "did you mean amdgcn-amd-amdhsa"),
        ("znver5", "cpu: zenver5", "did you mean znver5"),
        ("aarch64", "cpu: neoverse-n9", "did you mean neoverse-n"),
        ("x86-64-v3", "cpu: i386", "'i386', which is no processor of x86_64"),
        ("x86-64-v3", "triple: x86_64-unknown-linux-xcoff", "which is no system with code"),
    ]
] + [
    ("name: a\nextends: x86-64-v3\nllvm: {triple: nvptx64-nvidia-cuda, cpu: sm_80}\n", "",
     "for a cpu the triple is one of aarch64, x86_64"),
    ("name: a\nextends: sm_80\nllvm: {triple: x86_64-linux-gnu, cpu: znver5, features: ''}\n", "", "is no system"),
    ("name: a\nextends: znver5\nfeatures: {remove: [sse3]}\n", "", "but not 'sse3', which it needs"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "fault"), WRONG)
def test_errors_name_file_line_and_fault(tmp_path: Path, text: str, line: str, fault: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InvalidMachine) as caught:
        resolve(path)
    assert str(path) + line in caught.value.where or caught.value.where.startswith(str(path) + line)
    assert fault in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidMachine, match="no such file"):
        resolve("./absent.yaml")
    with pytest.raises(InvalidMachine, match="directory"):
        resolve(tmp_path)
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (1 << 21))
    with pytest.raises(InvalidMachine, match="the limit is"):
        resolve(large)
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff\n")
    with pytest.raises(InvalidMachine, match="not UTF-8 text at byte 6"):
        resolve(tmp_path / "latin.yaml")


def test_unknown_names_show_close_ones() -> None:
    with pytest.raises(InvalidMachine, match="did you mean znver5"):
        resolve("zenver5")
    with pytest.raises(InvalidMachine, match="one of host, aarch64"):
        resolve("qqqqqq")
    with pytest.raises(InvalidMachine, match="a CPU is needed"):
        resolve_cpu("sm_80")


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    text = (
        "name: a\nextends: znver5\ncores: 0\nclock_hz: -1\ncors: 2\nllvm: {cpu: [x]}\ncaches: [{name: L1, ways: 0.5}]\n"
    )
    with pytest.raises(InvalidMachine) as caught:
        resolve(write(tmp_path, text))
    for fault in (
        "cores is 0", "clock_hz is -1", "cors is not a field", "llvm.cpu is ['x']", "caches.0.ways is 0.5",
        "caches.0.bytes is missing",
    ):  # fmt: skip
        assert fault in caught.value.message


@pytest.mark.parametrize("value", [None, [], "x", {"kind": ["cpu"]}, {"kind": "cpu", "llvm": 3}])
def test_json_that_is_no_machine(value: Any) -> None:
    with pytest.raises(InvalidMachine):
        machine_from_json(value)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=tries(30, full=150), deadline=None)
@given(st.sampled_from(["znver5", "sm_80", "edge"]), st.data())
def test_changed_descriptions_round_trip_or_are_refused(name: str, draw: st.DataObject) -> None:
    value = resolve(name).to_json()
    field = draw.draw(st.sampled_from([*value, "unknown"]))
    value[field] = draw.draw(PLAIN | st.sampled_from(list(value.values())))
    try:
        machine = machine_from_json(value)
    except InvalidMachine:
        return
    assert machine_from_json(json.loads(json.dumps(machine.to_json()))) == machine


@settings(max_examples=tries(25, full=100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_files_are_refused_or_read(tmp_path: Path, draw: st.DataObject) -> None:
    content = (FILES / f"{draw.draw(st.sampled_from(['x86-64-v2', 'edge', 'gfx942']))}.yaml").read_bytes()
    start = draw.draw(st.integers(0, len(content)))
    length = draw.draw(st.integers(0, 20))
    damaged = content[:start] + draw.draw(st.binary(max_size=6)) + content[start + length :]
    path = tmp_path / "damaged.yaml"
    path.write_bytes(damaged)
    try:
        machine = resolve(path)
    except InvalidMachine as error:
        where = error.where
    else:
        where = str(path)
        assert machine_from_json(machine.to_json()) == machine
    assert where.startswith(str(path))


@settings(max_examples=tries(15, full=60), deadline=None)
@given(
    cores=st.integers(1, 512), clock_hz=st.none() | st.floats(1e6, 1e11), registers=st.integers(1, 64),
    removed=st.sets(st.sampled_from(sorted(
        resolve_cpu("znver5").features - resolve_cpu("x86-64-v4").features - {"aes", "pclmul", "sse4a"}
    ))),
)  # fmt: skip
def test_round_trip(cores: int, clock_hz: float | None, registers: int, removed: set[str]) -> None:
    value = resolve("znver5").to_json()
    value |= {"cores": cores, "vector_registers": registers, "intrinsics": ["fma_4_f32_f32"]}
    value["features"] = sorted(set(value["features"]) - removed)
    value["llvm"].pop("features")
    value.pop("clock_hz")
    if clock_hz is not None:
        value["clock_hz"] = clock_hz
    machine = machine_from_json(value)
    again = machine_from_json(json.loads(json.dumps(machine.to_json())))
    assert again == machine
    assert again.digest() == machine.digest()
    assert hash(again) == hash(machine)


def test_the_host_reads_files_of_cpus_only(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def noted(path: Path) -> reading.Document:
        read.append(path.stem)
        return reading.read_document(path)

    monkeypatch.setattr(registry, "read_document", noted)
    registry._listed_machine.cache_clear()
    named_machine.cache_clear()
    base = base_machine("x86_64", "znver5", frozenset())
    assert base.name == "znver5"
    assert read
    assert {registry.resolve(name).kind for name in read} == {"cpu"}


def test_what_a_shared_cache_does_not_hold_comes_from_memory() -> None:
    machine = resolve_cpu("znver5")
    *inner, last = machine.caches
    shared = replace(machine, caches=(*inner, replace(last, held_bytes=last.bytes // 4)))
    moved = last.bytes // 2
    whole, part = (LaunchModel(each, 1, moved).time(0.0, 1, moved) for each in (machine, shared))
    assert (whole.bound, part.bound) == (last.name, "memory")
    assert part.seconds > whole.seconds


def test_what_trips_move_together_need_not_fit_a_cache() -> None:
    """An LSTM of 100 steps that reads 256 KiB in each was predicted to read 26 MB from memory."""
    machine = resolve("znver3")
    assert isinstance(machine, Cpu)
    size = 1 << 18
    model = LaunchModel(machine, 1, 2 * size)
    moved = size * 1000
    assert moved > machine.caches[-1].bytes
    assert model.time(0.0, 1, moved, trips=1000).bound != "memory"
    assert model.time(0.0, 1, moved, trips=1).bound == "memory"


def test_beyond_l2_bytes_come_from_the_level_that_holds_them() -> None:
    machine = resolve_cpu("znver1")
    rates = [machine.rate_beyond_l2(bytes_) for bytes_ in (1 << 10, 8 << 20, (8 << 20) + 1)]
    assert rates == [19, 19, 13.5 / 2.5], "of memory what one core reads"
    held = replace(machine.caches[2], held_bytes=1 << 20)
    shared = replace(machine, caches=(*machine.caches[:2], held))
    assert shared.rate_beyond_l2((1 << 20) + 1) == 13.5 / 2.5


def test_what_only_reads_from_memory_does_so_at_the_rate_of_reading() -> None:
    """A product of one row on all cores was predicted at the rate of copies."""
    described = resolve_cpu("znver1")
    dram = replace(described.dram, bytes_per_second=2e10, copy_bytes_per_second=1e10)
    machine, moved = replace(described, dram=dram), 1 << 28
    read, copied = (
        LaunchModel(machine, machine.cores, 0).time(0.0, machine.cores, moved, reads=reads).seconds
        for reads in (True, False)
    )
    assert copied == pytest.approx(2 * read, rel=0.01)


def test_cycles_that_no_instruction_takes_are_refused() -> None:
    """Predicted cycles were infinite, and could not be rounded."""
    facts = resolve("znver1").to_json() | {"issue_cycles": {"fma_8_f32_f32": 1e304}}
    with pytest.raises(InvalidMachine, match="1e\\+304 of 'fma_8_f32_f32', at most 1,000,000"):
        machine_from_json(facts)
