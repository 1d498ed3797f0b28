"""Kernels of Triton, as its compiler hands them over: stored ones, and fresh ones where Triton is installed."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.command_line import CliRunner
from tilewright.cli.main import app
from tilewright.emulator import Result, load_compiled, parse, run
from tilewright.errors import CompileError, InvalidArgument

pytest_plugins = ["tilewright.emulator.pytest_plugin"]
FOLDER = Path(__file__).parent / "triton"
RANDOM = np.random.default_rng(0)
Emulate = Callable[..., Result]


@pytest.fixture(params=["stored", "fresh"])
def kernel(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """Gives kernels by name, as they are stored, or compiled here by Triton."""
    if request.param == "stored":
        return lambda name: load_compiled(FOLDER / f"{name}.json")
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    from tilewright.emulator.tests.triton_kernels import compiled

    return compiled


def test_a_sum(kernel: Callable[[str], Any], emulate: Emulate) -> None:
    x, y = RANDOM.standard_normal((2, 992)).astype(np.float32)
    out = np.zeros_like(x)
    result = emulate(kernel("add_sm80"), grid=(4,), args=[x, y, out, 992])
    np.testing.assert_array_equal(out, x + y)
    assert result.counts.to_json()["global_requests"] > 0


@pytest.mark.parametrize("grid", [4, np.int64(4), (4,), [4, 1], np.array([4, 1, 1])])
def test_a_number_is_a_grid_along_x(grid: Any, emulate: Emulate) -> None:
    x, out = np.ones(992, np.float32), np.zeros(992, np.float32)
    emulate(load_compiled(str(FOLDER / "add_sm80.json")), grid=grid, args=[x, x, out, 992])
    assert (out == 2).all()


@pytest.mark.parametrize("name", ["grid", "block", "cluster"])
@pytest.mark.parametrize(
    "value",
    [4.0, "4", "", b"\x04", None, True, (4.0,), [True], lambda meta: (4,), {"x": 4}, {4: 1}, {4}, np.ones(1), 10**400],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_extent_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"of type {type(value).__name__}") as raised:
        run(load_compiled(FOLDER / "add_sm80.json"), **{"grid": 4, name: value})
    assert raised.value.where == name
    assert raised.value.help == "a whole number, or one to three as (4, 2, 1)"


@pytest.mark.parametrize("name", ["grid", "block"])
def test_no_blocks_or_threads_are_refused(name: str) -> None:
    """A block of 0 threads was taken for one that is left out."""
    with pytest.raises(InvalidArgument, match="1 or more"):
        run(load_compiled(FOLDER / "add_sm80.json"), **{"grid": 4, name: 0})


def test_a_softmax(kernel: Callable[[str], Any], emulate: Emulate) -> None:
    x = RANDOM.standard_normal((5, 304)).astype(np.float32)
    out = np.zeros_like(x)
    emulate(kernel("softmax_sm80"), grid=(5,), args=[x, out, 304])
    wide = np.exp(x.astype(np.float64))
    # exp2 of a rounded argument, a sum of 304 terms as a tree, a division: 16 units of 2^-24
    np.testing.assert_allclose(out, wide / wide.sum(axis=1, keepdims=True), rtol=16 * 2.0**-24)


@pytest.mark.parametrize(("name", "tile"), [("matmul_sm80", (64, 32)), ("matmul_sm90", (64, 64))])
def test_products_on_tensor_cores(
    kernel: Callable[[str], Any], emulate: Emulate, name: str, tile: tuple[int, int]
) -> None:
    m, n, k = 80, 96, 208
    a, b = (RANDOM.integers(-3, 4, shape).astype(np.float16) for shape in ((m, k), (k, n)))
    c, made = np.zeros((m, n), np.float32), kernel(name)
    assert ("wgmma.mma_async" if "90" in name else "mma.sync") in made.asm["ptx"]
    grid = (-(-m // tile[0]), -(-n // tile[1]))
    if "90" in name and "fence.proxy.async" not in made.asm["ptx"]:
        # Triton 3.6 has no fence between cp.async and wgmma, which PTX ISA asks for and an H200 does not miss.
        found = run(made, grid=grid, args=[a, b, c, m, n, k])
        assert {each.kind for each in found.diagnostics} == {"missing-fence"}
    else:
        emulate(made, grid=grid, args=[a, b, c, m, n, k])
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32))


def test_tensors_of_torch_are_changed_in_place(emulate: Emulate) -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(256, dtype=torch.float32)
    emulate(load_compiled(FOLDER / "add_sm80.json"), args=[x, x, x, 256])
    assert torch.equal(x, 2 * torch.arange(256, dtype=torch.float32))
    with pytest.raises(InvalidArgument, match=r"p1: .*a Tensor is no array(?s:.*)a view as integers"):
        run(load_compiled(FOLDER / "add_sm80.json"), args=[x, x.bfloat16(), x, 256])


def test_missing_shared_memory_is_a_diagnostic_that_says_so() -> None:
    x = RANDOM.standard_normal((1, 304)).astype(np.float32)
    text = (FOLDER / "softmax_sm80.ptx").read_text()
    for given in (None, 4):
        result = run(parse(text), args=[x, np.zeros_like(x), 304], shared_bytes=given)
        first = result.diagnostics[0]
        assert first.kind == "out-of-bounds"
        assert f"; the launch gives {given or 0} to global_smem (shared_bytes, --shared)" in first.message
    assert not run(parse(text), args=[x, np.zeros_like(x), 304], shared_bytes=16).diagnostics
    static = text.replace(".extern .shared .align 16 .b8 global_smem[];", ".shared .align 16 .b8 global_smem[4];")
    assert static != text
    first = run(parse(static), args=[x, np.zeros_like(x), 304]).diagnostics[0]
    assert first.message.endswith("of shared memory, which has 4")


def test_the_fixture_fails_with_every_diagnostic(emulate: Emulate) -> None:
    kernel = load_compiled(FOLDER / "softmax_sm80.json")
    racy = replace(kernel, asm={"ptx": re.sub(r"bar\.sync\s+0;", "", kernel.asm["ptx"])})
    x = RANDOM.standard_normal((1, 304)).astype(np.float32)
    with pytest.raises(pytest.fail.Exception, match=r"^\d+ diagnostics?\nPTX:\d+:\d+: race: reads byte"):
        emulate(racy, args=[x, np.zeros_like(x), 304])


def test_scratch_memory_and_clusters_of_programs() -> None:
    """Each program gets the bytes that the metadata names, behind the arguments of the source."""
    text = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 scratch, .param .u64 profile) .reqntid 32
{
    .reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .pred %p<2>;
    ld.param.u64 %rd0, [out]; ld.param.u64 %rd1, [scratch]; ld.param.u64 %rd5, [profile];
    mov.u32 %r0, %ctaid.x; mov.u32 %r1, %tid.x; mad.lo.u32 %r2, %r0, 32, %r1;
    mul.wide.u32 %rd2, %r2, 4; add.s64 %rd3, %rd1, %rd2; add.s64 %rd4, %rd0, %rd2;
    st.global.u32 [%rd3], %r2; ld.global.u32 %r3, [%rd3];
    setp.ne.u64 %p0, %rd5, 0; selp.b32 %r3, 0, %r3, %p0;
    mov.u32 %r4, %cluster_nctaid.x; add.u32 %r3, %r3, %r4;
    st.global.u32 [%rd4], %r3; ret;
}
"""
    metadata = {
        "name": "k",
        "num_warps": 1,
        "num_ctas": 2,
        "shared": 0,
        "global_scratch_size": 128,
        "profile_scratch_size": 0,
    }
    out = np.zeros(192, np.int32)
    result = run(SimpleNamespace(asm={"ptx": text}, metadata=metadata), grid=(3,), args=[out])
    assert not result.diagnostics
    np.testing.assert_array_equal(out, np.arange(192) + 2)
    metadata["global_scratch_size"] = 64
    result = run(SimpleNamespace(asm={"ptx": text}, metadata=metadata), grid=(3,), args=[out])
    assert {diagnostic.kind for diagnostic in result.diagnostics} == {"out-of-bounds"}


ADD = load_compiled(FOLDER / "add_sm80.json")
X = np.zeros(256, np.float32)
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: run("k"), r"kernel: .*a str is no kernel\n.*parse\(text\), or a kernel that Triton"),
    (lambda: run(replace(ADD, asm={"amdgcn": "", "hsaco": ""})), r"kernel\.asm: .*holds amdgcn, hsaco, no ptx"),
    (lambda: run(replace(ADD, metadata={"name": "add", "num_warps": 4})), r"metadata has no shared\n.*name, num_warps"),
    (lambda: run(replace(ADD, metadata={**ADD.metadata, "num_warps": -1})), r"metadata\.num_warps is -1"),
    (lambda: run(replace(ADD, metadata={**ADD.metadata, "name": "sub"})), r"no entry 'sub' in the PTX text\n.*add"),
    (lambda: run(ADD, args=[X, X, X, 256, 256]), r"5 arguments, add has 4\n.*without those that are constexpr"),
    (lambda: run(ADD, args=[X, X, X]), r"p3: .*is missing\n.*only pointers"),
    (lambda: run(ADD, grid=(1, 1, 1, 1), args=[X, X, X, 1]), r"grid: .*4 extents: \(1, 1, 1, 1\)\n.*one to three"),
    (lambda: run(ADD, block=(32,), args=[X, X, X, 1]), r"block \(32, 1, 1\)\n.*the kernel requires \(128, 1, 1\)"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_what_is_no_kernel_or_no_launch(number: int) -> None:
    call, message = WRONG[number]
    with pytest.raises(CompileError, match=message):
        call()


def test_the_command_runs_what_is_in_the_cache_of_triton(tmp_path: Path) -> None:
    for suffix in ("json", "ptx"):
        shutil.copy(FOLDER / f"softmax_sm80.{suffix}", tmp_path / f"softmax.{suffix}")
    x = RANDOM.standard_normal((2, 304)).astype(np.float32)
    np.savez(tmp_path / "in.npz", p0=x, p1=np.zeros_like(x), p2=np.int32(304))
    options = ["--grid", "2", "--args", str(tmp_path / "in.npz"), "-o", str(tmp_path / "out.npz")]
    done = CliRunner().invoke(app, ["emulate", str(tmp_path / "softmax.json"), *options])
    assert done.exit_code == 0, done.output
    assert "0 diagnostics" in done.output
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["p1"].sum(axis=1), 1, rtol=1e-6)
    done = CliRunner().invoke(app, ["emulate", str(tmp_path / "softmax.ptx"), *options])
    assert done.exit_code == 1
    assert "the launch gives 0 to global_smem (shared_bytes, --shared)" in done.output
    for text, message in (("[]", "holds a list"), ("{", "no JSON"), (json.dumps({"name": "softmax"}), "no num_warps")):
        (tmp_path / "softmax.json").write_text(text)
        done = CliRunner().invoke(app, ["emulate", str(tmp_path / "softmax.json"), *options])
        assert done.exit_code == 2
        assert message in done.output
