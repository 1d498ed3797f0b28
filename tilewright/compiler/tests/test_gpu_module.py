"""`compile(…, machine=GPU)`: a module like any other, from the emulator; its file, its place in the cache."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tilewright import Options
from tilewright.compiler import compile as compiling
from tilewright.compiler import gpu
from tilewright.compiler.plan import Plan
from tilewright.compiler.program import Placement
from tilewright.errors import InvalidMachine
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, elementwise, linalg, norm, pool
from tilewright.machine.description import Gpu
from tilewright.runtime.cuda.module import DeviceModule
from tilewright.runtime.module import Module

RNG = np.random.default_rng(0)
IMAGE = RNG.standard_normal((1, 3, 6, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def network() -> Graph:
    """Constants, several kernels, an arena."""
    b = GraphBuilder("net")
    x = b.input("x", (1, 3, 6, 6), "f32")
    w = b.constant(RNG.standard_normal((4, 3, 3, 3)).astype(np.float32))
    y = elementwise.relu(conv.conv(x, w, pads=1))
    return b.finish([norm.softmax(pool.global_average_pool(y), axis=1, name="probabilities")])


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(cache_dir=tmp_path / "cache", device="emulator")


def test_a_module_is_called_saved_and_loaded(network: Graph, options: Options, tmp_path: Path) -> None:
    module = tilewright.compile(network, machine="sm_80", options=options)
    assert isinstance(module, DeviceModule)
    wanted = evaluate(network, [IMAGE])[0]
    for _ in range(3):  # enqueued, recorded, replayed
        np.testing.assert_allclose(module(IMAGE), wanted, rtol=2e-5, atol=1e-6)
    path = tmp_path / "net.twm"
    module.save(path)
    with zipfile.ZipFile(path) as file:
        assert ".visible .entry" in file.read("code.ptx").decode()
        assert "code.o" not in file.namelist()
    loaded = tilewright.load(path, options=options)
    assert loaded.manifest == module.manifest
    assert loaded.explain(all=True) == module.explain(all=True) != ""
    np.testing.assert_array_equal(loaded(IMAGE), module(IMAGE))
    assert [time.kernel for time in loaded.profile(IMAGE, repeats=1)] == [
        each.kernel for each in module.manifest.launches
    ]


def test_the_cache_knows_the_machine(network: Graph, options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    generate = gpu.generate

    def noted(plan: Plan, placement: Placement, machine: Gpu, options: Options) -> object:
        made.append(machine.name)
        return generate(plan, placement, machine, options)

    monkeypatch.setattr(gpu, "generate", noted)
    first = tilewright.compile(network, machine="sm_80", options=options)
    again = tilewright.compile(network, machine="sm_80", options=options)
    other = tilewright.compile(network, machine="sm_90", options=options)
    assert made == ["sm_80", "sm_90"]
    assert first.artifact.code == again.artifact.code
    assert ".target sm_90" in other.artifact.code.decode()
    np.testing.assert_array_equal(first(IMAGE), again(IMAGE))


def test_a_module_for_a_gpu_is_rebuilt_for_the_host(network: Graph, options: Options) -> None:
    module = tilewright.compile(network, machine="sm_80", options=options)
    here = Module(compiling.rebuilt(module.artifact, "host", 1, options), threads=1)
    np.testing.assert_allclose(here(IMAGE), module(IMAGE), rtol=2e-5, atol=1e-6)


def test_a_graph_that_computes_nothing_new(options: Options) -> None:
    b = GraphBuilder("copy")
    graph = b.finish([elementwise.relu(b.input("x", (0, 3), "f32"))])
    assert tilewright.compile(graph, machine="sm_80", options=options)(np.zeros((0, 3), np.float32)).shape == (0, 3)


def test_only_some_gpus_have_code(network: Graph) -> None:
    for name in ("gfx942", "edge"):
        with pytest.raises(InvalidMachine):
            tilewright.compile(network, machine=name)


def test_products_whose_operands_the_copy_engine_moves(options: Options, tmp_path: Path) -> None:
    few = tmp_path / "few.yaml"  # of so few multiprocessors that blocks are large
    few.write_text("name: few\nextends: sm_90a\nmultiprocessors: 2\n")
    b = GraphBuilder("product")
    x, w = b.input("x", (256, 64), "f16"), b.input("w", (64, 128), "f16")
    module = tilewright.compile(b.finish([linalg.matmul(x, w)]), machine=few, options=options)
    (kernel,) = module.manifest.kernels
    assert sorted(seen.argument for seen in kernel.tensor_maps) == [0, 1, 2]
    module.save(tmp_path / "product.twm")
    loaded = tilewright.load(tmp_path / "product.twm", options=options)
    assert loaded.manifest == module.manifest
    arrays = [RNG.integers(-3, 4, shape).astype(np.float16) for shape in ((256, 64), (64, 128))]
    wanted = (arrays[0].astype(np.float32) @ arrays[1].astype(np.float32)).astype(np.float16)
    np.testing.assert_array_equal(loaded(*arrays), wanted)
