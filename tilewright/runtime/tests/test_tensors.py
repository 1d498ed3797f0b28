"""Arrays without memory, and arrays that say something else than what they are: errors, never a crash."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tilewright.errors import InvalidArgument
from tilewright.runtime import fastcall
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.module import Module

Make = Callable[..., Artifact]
SHAPE = (6, 4)


@pytest.fixture
def module(add_artifact: Make) -> Module:
    return Module(add_artifact(SHAPE), threads=1)


def resized(torch: Any, size: int, rows: int = 6) -> Any:
    tensor = torch.zeros(rows, 4)[rows - 6 :]
    tensor.untyped_storage().resize_(size)
    return tensor


def seen_by(transform: Callable[..., Any], given: Any) -> Any:
    """What a function sees that torch transforms: a wrapper, which outlives the transformation here."""
    seen = []
    transform(lambda tensor: (seen.append(tensor), tensor.sum())[1])(given)
    return seen[0]


def fake(torch: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(torch.zeros(SHAPE))


def wrapper(torch: Any) -> Any:
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, SHAPE, dtype=torch.float32)

        @classmethod
        def __torch_dispatch__(cls, function: Any, *_: Any) -> Any:
            raise KeyError(f"nothing for {function}")

    return Wrapper()


WITHOUT_MEMORY: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a storage resized to nothing": (lambda torch: resized(torch, 0), "has no memory"),
    "a storage resized to less": (lambda torch: resized(torch, 40), "takes 96 bytes of a storage of 40"),
    "less behind an offset": (lambda torch: resized(torch, 100, rows=8), "takes 128 bytes of a storage of 100"),
    "FakeTensor": (fake, "has no memory"),
    "meta": (lambda torch: torch.zeros(SHAPE, device="meta"), "on meta"),
    "a tensor of zeros": (lambda torch: torch._efficientzerotensor(SHAPE), "has no memory"),
    "functional": (lambda torch: torch._to_functional_tensor(torch.zeros(SHAPE)), "has no memory"),
    "vmap": (lambda torch: seen_by(torch.func.vmap, torch.zeros(3, *SHAPE)), "has no memory: .*storage"),
    "grad": (lambda torch: seen_by(torch.func.grad, torch.zeros(SHAPE)), "has no memory: .*storage"),
    "nested": (lambda torch: torch.nested.nested_tensor([torch.zeros(6, 4)]), "a nested tensor"),
    "jagged": (lambda torch: torch.nested.nested_tensor([torch.zeros(6, 4)], layout=torch.jagged), "NestedTensor"),
    "sparse": (lambda torch: torch.zeros(SHAPE).to_sparse_csr(), "torch.sparse_csr"),
    "oneDNN": (lambda torch: torch.zeros(SHAPE).to_mkldnn(), "torch._mkldnn"),
    "a subclass that wraps": (wrapper, "cannot be viewed as a plain tensor"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", WITHOUT_MEMORY)
def test_tensors_without_memory(kind: str, module: Module) -> None:
    torch = pytest.importorskip("torch")
    make, message = WITHOUT_MEMORY[kind]
    given, good = make(torch), torch.ones(SHAPE)
    with pytest.raises(InvalidArgument, match=message) as caught:
        module(good, given)
    assert caught.value.where == "input 'b'"
    with pytest.raises(InvalidArgument, match=message) as caught:
        module(good, good, out=given)
    assert caught.value.where == "output 'c'"


def test_modes_in_which_new_tensors_have_no_memory(module: Module) -> None:
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    good, message = torch.ones(SHAPE), "makes a FakeTensor without memory"
    with FakeTensorMode(), pytest.raises(InvalidArgument, match=message):
        module(good, good)
    with torch.device("meta"):
        assert (module(good, good) == 2.5).all()


def subclasses(torch: Any) -> Iterator[type]:
    class Shape(torch.Tensor):
        shape = torch.Size((6000, 4))

    class Address(torch.Tensor):
        def data_ptr(self) -> int:
            return 16

    class Contiguous(torch.Tensor):
        def is_contiguous(self, *_: Any) -> bool:
            return True

    class Refuses(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_: Any) -> Any:
            return NotImplemented

    yield from (Shape, Address, Contiguous, Refuses, torch.nn.Parameter)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["jit.trace", "make_fx"])
def test_a_call_that_torch_records_is_refused(way: str, module: Module) -> None:
    torch = pytest.importorskip("torch")
    from torch.fx.experimental.proxy_tensor import make_fx

    good = torch.ones(SHAPE)
    record = torch.jit.trace if way == "jit.trace" else (lambda call, examples: make_fx(call)(*examples))
    with pytest.raises(InvalidArgument, match="torch records its operations"):
        record(lambda a, b: module(a, b), (good, good.clone()))
    assert (module(good, good) == 2.5).all()


def test_what_subclasses_override_is_not_believed(module: Module) -> None:
    torch = pytest.importorskip("torch")
    rows = torch.arange(24.0).reshape(SHAPE)
    columns = rows.t().contiguous().t()
    with torch.no_grad():
        for kind in subclasses(torch):
            for given in (rows, columns):
                assert torch.equal(module(given.as_subclass(kind), torch.zeros(SHAPE)), rows + 0.5)
            out = torch.zeros(SHAPE).as_subclass(kind)
            assert module(rows, rows, out=out) is out
            with torch._C.DisableTorchFunctionSubclass():
                assert torch.equal(out.as_subclass(torch.Tensor), 2 * rows + 0.5)
            with pytest.raises(InvalidArgument, match="not contiguous"):
                module(rows, rows, out=columns.clone().as_subclass(kind))


def test_bits_that_torch_keeps_beside_the_elements(module: Module) -> None:
    torch = pytest.importorskip("torch")
    numbers = torch.complex(torch.zeros(SHAPE), torch.ones(SHAPE))
    assert (module(numbers.conj().imag, torch.zeros(SHAPE)) == -0.5).all()
    with pytest.raises(InvalidArgument, match="not contiguous"):
        module(torch.zeros(SHAPE), torch.zeros(SHAPE), out=numbers.conj().imag)


def test_empty_tensors_need_no_memory(add_artifact: Make) -> None:
    torch = pytest.importorskip("torch")
    module = Module(add_artifact((0, 4)), threads=1)
    empty = torch.zeros(0, 4)
    assert module(empty, empty).shape == (0, 4)
    assert module(empty, empty, out=empty) is empty


def test_torch_counts_what_is_written_to_out(module: Module) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.ones(SHAPE, requires_grad=True)
    out = torch.ones(SHAPE)
    product = (weight * out).sum()
    module(torch.ones(SHAPE), torch.ones(SHAPE), out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    with torch.inference_mode():
        out = torch.ones(SHAPE)
    assert (module(torch.ones(SHAPE), torch.ones(SHAPE), out=out) == 2.5).all()


@pytest.mark.parametrize("strides", [(16, 0), (0, 4), (-16, 4), (16, -4), (3, 5), (4, 24), (0, 0), (17, 4)])
def test_strides_of_any_kind(strides: tuple[int, int], module: Module) -> None:
    memory = np.random.default_rng(0).integers(0, 100, 400).astype(np.uint8)
    array = np.ndarray(SHAPE, np.float32, memory, 200, strides)
    ones = np.ones(SHAPE, np.float32)
    assert np.array_equal(module(array, ones), array.copy() + ones + np.float32(0.5), equal_nan=True)
    with pytest.raises(InvalidArgument, match="not contiguous"):
        module(ones, ones, out=array)


class Exports:
    """An array that gives another one by DLPack, which nothing else holds."""

    def __init__(self, make: Callable[[], np.ndarray]) -> None:
        self.make = make

    def __dlpack__(self, **options: Any) -> Any:
        return self.make().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_memory_that_a_capsule_alone_holds_lives_as_long_as_the_call(
    module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view was dropped before the call, and its memory with it."""
    freed: list[bool] = []

    class Watched(np.ndarray):
        def __del__(self) -> None:
            freed.append(True)

    run = Module._run

    def watch(*arguments: Any) -> None:
        gc.collect()
        assert not freed
        run(*arguments)

    monkeypatch.setattr(Module, "_run", watch)
    ones = np.ones(SHAPE, np.float32)
    out = Exports(lambda: np.zeros(SHAPE, np.float32).view(Watched))
    assert module(ones, Exports(lambda: ones.copy().view(Watched)), out=out) is out
    gc.collect()
    assert len(freed) == 2


def test_tensors_that_fit_take_the_short_way(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    if not fastcall.available():
        pytest.skip("not on this interpreter")
    a, b, out = torch.rand(SHAPE), torch.rand(SHAPE), torch.empty(SHAPE)
    expected = module(a.numpy(), b.numpy())

    def long_way(*_: Any) -> Any:
        raise AssertionError("the long way was taken")

    with monkeypatch.context() as patch:
        patch.setattr(Module, "_call_any", long_way)
        version = out._version
        results = [module(a, b), module(a, b, out=out), module(a, b, out=[out]), module(torch.nn.Parameter(a), b)]
        assert out._version == version + 2
        for given in ((a, b.numpy()), (a, b.T), (a, b[:3]), (a, b.double()), (a,)):
            with pytest.raises(AssertionError, match="the long way"):
                module(*given)
    for result in results:
        np.testing.assert_array_equal(result.numpy(), expected)


def test_what_is_no_tensor_is_no_address(module: Module) -> None:
    torch = pytest.importorskip("torch")
    a = torch.rand(SHAPE)
    for given, out in (((a, a.data_ptr()), None), ((a, a), a.data_ptr()), ((a, a), [None])):
        with pytest.raises(InvalidArgument, match="got a"):
            module(*given, out=out)
    with pytest.raises(InvalidArgument, match="out shares memory with input"):
        module(a, torch.rand(SHAPE), out=a)
