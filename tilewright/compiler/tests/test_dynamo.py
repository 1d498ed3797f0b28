"""The `torch.compile` backend: results, weights as constants, fallback to eager mode."""

from __future__ import annotations

import copy
import importlib.metadata
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.covering import FULL, some
from tilewright.compiler import dynamo
from tilewright.errors import InvalidArgument

torch = pytest.importorskip("torch")
logging.getLogger("torch.__trace").setLevel(logging.WARNING)

TOLERANCE = 1e-5  # a few sums of up to 40 products of order one in f32, each side in its own order


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counting:
    """The backend, with the subgraphs it was asked for and the functions it gave for them."""

    def __init__(self) -> None:
        self.runs: list[Any] = []

    def __call__(self, gm: Any, inputs: Any, **kwargs: Any) -> Any:
        self.runs.append(dynamo.backend(gm, inputs, **kwargs))
        return self.runs[-1]


def network() -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 40), torch.nn.BatchNorm1d(40), torch.nn.ReLU(inplace=True), torch.nn.Linear(40, 4)]
    return torch.nn.Sequential(*layers).eval()


def assert_same(module: Any, compiled: Any, *inputs: Any) -> None:
    expected, found = module(*inputs), compiled(*inputs)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_entry_point_gives_the_backend() -> None:
    found = importlib.metadata.entry_points(group="torch_dynamo_backends", name="tilewright")
    for entry in found:  # one where the package is installed
        assert entry.load() is dynamo.backend
    if not found:
        torch._dynamo.register_backend(dynamo.backend, name="tilewright")
    assert "tilewright" in torch._dynamo.list_backends(exclude_tags=())
    module = network()
    with torch.inference_mode():
        assert_same(module, torch.compile(module, backend="tilewright"), torch.randn(3, 8))


def test_networks_agree_with_eager_mode(caplog: pytest.LogCaptureFixture) -> None:
    from examples.networks.bert import Encoder
    from examples.networks.resnet import basic_block

    torch.manual_seed(0)
    cases = [
        (torch.nn.TransformerEncoderLayer(6, 2, 10, batch_first=True).eval(), torch.randn(2, 5, 6)),
        *([(Encoder(1).eval(), torch.randn(1, 5, 768))] if FULL else []),
        (torch.nn.Sequential(basic_block(5, 8, 2), basic_block(8, 8, 1)).eval(), torch.randn(2, 5, 9, 7)),
    ]
    for module, x in cases:
        with torch.inference_mode():
            assert_same(module, torch.compile(module, backend=dynamo.backend, fullgraph=True), x)
    assert not caplog.records


def test_recurrent_layers_are_compiled_where_dynamo_traces_them(caplog: pytest.LogCaptureFixture) -> None:
    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(
                [torch.nn.LSTM(5, 7, bidirectional=True), torch.nn.GRU(14, 6, num_layers=2), torch.nn.RNN(6, 3)]
            )

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)[0].relu()
            return x

    torch.manual_seed(0)
    module, counting = Recurrent().eval(), Counting()
    with torch._dynamo.config.patch(allow_rnn=True), torch.inference_mode():
        assert_same(module, torch.compile(module, backend=counting, fullgraph=True), torch.randn(9, 2, 5))
    (run,) = counting.runs
    assert isinstance(run, dynamo._Subgraph)
    assert not caplog.records


def test_weights_are_constants_and_their_changes_are_seen(caplog: pytest.LogCaptureFixture) -> None:
    module, count, x = network(), Counting(), torch.randn(3, 8)
    compiled = torch.compile(module, backend=count)
    with torch.no_grad():
        assert_same(module, compiled, x)
        (run,) = count.runs
        assert len(run.static) == 8
        assert run.compiled == 1
        assert_same(module, compiled, x + 1)
        assert run.compiled == 1
        module[0].weight.add_(1.0)
        assert_same(module, compiled, x)
        module[3].weight.data = torch.randn(4, 40)
        assert_same(module, compiled, x)
        module.load_state_dict(network().state_dict())
        assert_same(module, compiled, x)
        assert run.compiled == 4
        assert len(run.variants) == 1  # the others can never fit again
    assert not caplog.records


def test_layers_that_share_code_keep_their_own_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [network() for _ in range(3)]
    for layer in layers[1:]:
        layer[0].weight = torch.nn.Parameter(torch.randn(40, 8))
    count, x = Counting(), torch.randn(2, 8)
    call = torch.compile(lambda layer, x: layer(x), backend=count)
    monkeypatch.setattr(dynamo, "_MOST_VARIANTS", 2)
    with torch.no_grad():
        for layer in (*layers[:2], *layers[:2]):
            torch.testing.assert_close(call(layer, x), layer(x), rtol=TOLERANCE, atol=TOLERANCE)
        (run,) = count.runs
        assert [len(run.variants), run.compiled, run.general] == [2, 2, None]
        for layer in (*layers, layers[0]):
            torch.testing.assert_close(call(layer, x), layer(x), rtol=TOLERANCE, atol=TOLERANCE)
        assert run.general is not None  # weights are inputs now
    assert len(count.runs) == 1


def test_results_may_be_views_literals_and_strided() -> None:
    def several(x: Any, y: Any) -> Any:
        a, b = (x @ y).chunk(2, 1)
        return x.view(-1), (x @ y).t(), 3, a, b, y[1:], None, x.sum(1)[:, None].expand(3, 2)

    x, y = torch.randn(3, 4), torch.randn(4, 6)
    count = Counting()
    compiled = torch.compile(several, backend=count)
    with torch.no_grad():
        found, expected = compiled(x, y), several(x, y)
    assert isinstance(count.runs[0], dynamo._Subgraph)
    for got, want in zip(found, expected, strict=True):
        if isinstance(want, torch.Tensor):
            assert torch.allclose(got, want, atol=TOLERANCE)
            assert got.stride() == want.stride() or 0 in want.stride()
        else:
            assert got == want
    assert found[0].data_ptr() == x.data_ptr()
    assert found[5].data_ptr() == y[1:].data_ptr()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.view(-1)[2:],
        lambda x: torch.arange(x.shape[1], dtype=torch.bfloat16)[:, None] - torch.arange(3),
        lambda x: (torch.arange(x.shape[1]).sin().reshape(2, 4).T, x.T),
    ],
)
def test_views_alone_and_what_no_input_is_needed_for(function: Any, caplog: pytest.LogCaptureFixture) -> None:
    x, compiled = torch.randn(3, 8), torch.compile(function, backend=dynamo.backend)
    with torch.no_grad():
        assert_same(function, compiled, x)
        first, second = compiled(x), compiled(x)
    torch.testing.assert_close(first, second)
    if not isinstance(first, tuple) and first.untyped_storage().data_ptr() != x.untyped_storage().data_ptr():
        assert first.data_ptr() != second.data_ptr(), "results of two calls share memory"
    assert not caplog.records


def test_what_is_computed_from_weights_alone_follows_them(caplog: pytest.LogCaptureFixture) -> None:
    class Table(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4, 5))

        def forward(self) -> Any:
            return self.weight.softmax(1) @ self.weight.T

    module = Table()
    compiled = torch.compile(module, backend=dynamo.backend)
    with torch.no_grad():
        assert_same(module, compiled)
        module.weight.mul_(2)
        assert_same(module, compiled)
    assert not caplog.records


def test_numbers_of_other_types() -> None:
    def mixed(x: Any, i: Any) -> Any:
        return (x.bfloat16() @ x.bfloat16().T).float().sum(1) + i, i.argmax(), x > 0

    x, i = torch.randn(3, 8), torch.arange(3)
    with torch.no_grad():
        found, expected = torch.compile(mixed, backend=dynamo.backend)(x, i), mixed(x, i)
    assert [t.dtype for t in found] == [t.dtype for t in expected]
    assert torch.allclose(found[0], expected[0], rtol=2**-7, atol=0.1)
    assert torch.equal(found[1], expected[1])
    assert torch.equal(found[2], expected[2])


@pytest.mark.parametrize(
    ("reason", "make", "grad", "dynamic"),
    [
        (r"gradients are wanted\n.*no_grad\(\)", network, True, False),
        (r"airy_ai", lambda: lambda x: torch.special.airy_ai(x), False, True),
        ("changes a tensor in place that outlives the call", lambda: network().train(), False, False),
        (r"(?s)2 nodes:.*lgamma.*airy_ai", lambda: lambda x: torch.special.airy_ai(x.lgamma()), False, False),
        (r"aten\.randn_like.*no importer|aten\.rand", lambda: lambda x: x + 0 * torch.rand_like(x), False, False),
        ("returns complex numbers", lambda: lambda x: x.to(torch.complex64) * 2, False, False),
        ("share memory", lambda: lambda x: (lambda y: (y, y[1:]))(x * 2), False, False),
    ],
)
def test_fallback_runs_in_eager_mode_and_says_why(
    reason: str, make: Any, grad: bool, dynamic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    function, x = make(), torch.randn(3, 8)
    count = Counting()
    compiled = torch.compile(function, backend=count, dynamic=dynamic)
    reference = copy.deepcopy(function)
    with torch.set_grad_enabled(grad), caplog.at_level(logging.WARNING, logger="tilewright.dynamo"):
        expected = reference(x)
        found = compiled(x)
        compiled(x)
    torch.testing.assert_close(found, expected)
    assert len(caplog.records) == len(count.runs) == 1
    assert "runs in eager mode" in caplog.text
    assert re.search(reason, caplog.text), caplog.text


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_that_change_get_a_module_each(dynamic: bool | None, caplog: pytest.LogCaptureFixture) -> None:
    module, count = network(), Counting()
    compiled = torch.compile(module, backend=count, dynamic=dynamic)
    with torch.no_grad():
        for batch in (2, 3, 7, 3):
            assert_same(module, compiled, torch.randn(batch, 8))
        module[0].weight.add_(1.0)
        assert_same(module, compiled, torch.randn(7, 8))
    by_shape = count.runs[-1]
    assert isinstance(by_shape, dynamo._ByShape)
    assert by_shape.others is None
    (record,) = caplog.records
    assert re.fullmatch(
        r"sizes or numbers change: a subgraph of \d operators is compiled for each, up to 16", record.message
    )


def test_instances_of_other_widths_and_numbers_that_change_are_compiled(caplog: pytest.LogCaptureFixture) -> None:
    count = Counting()
    call = torch.compile(lambda layer, x, n: (torch.relu(layer(x)) * n, n + 1, x.shape[0]), backend=count)
    with torch.no_grad():
        for width, n in ((5, 2), (7, 3), (9, 4)):
            layer, x = torch.nn.Linear(width, width).eval(), torch.randn(3, width)
            found, following, rows = call(layer, x, n)
            torch.testing.assert_close(found, torch.relu(layer(x)) * n, rtol=TOLERANCE, atol=TOLERANCE)
            assert (following, rows) == (n + 1, 3)
    assert "eager" not in caplog.text


@pytest.mark.parametrize("extents", some([(3, 5, 5, 7, 5, 3), (5, 5, 5, 5, 5, 5)], 1))
def test_floats_that_change_are_inputs(extents: tuple[int, ...], caplog: pytest.LogCaptureFixture) -> None:
    """They ran in eager mode beside fixed sizes."""

    def scaled(x: Any, n: float, i: Any) -> Any:
        y = torch.clamp(x * n + (2 - n) / 4, min=-n)
        return torch.where(y > n, n, y) / (n * 3), torch.full((2,), n), i * n, x.masked_fill(x > n, -n)

    count = Counting()
    compiled = torch.compile(scaled, backend=count)
    i = torch.arange(3)
    with torch.no_grad():
        for extent, n in zip(extents, (1.5, 2.5, 0.0, -0.0, -3.25, 1e-3), strict=True):
            x = torch.linspace(-3, 2, extent)
            for found, expected in zip(compiled(x, n, i), scaled(x, n, i), strict=True):
                torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=0, equal_nan=True)
        by_shape = count.runs[-1]
        assert len(by_shape.subgraphs) == len(set(extents[1:]))
        assert not by_shape.fixed
    assert "eager" not in caplog.text


def test_numbers_that_compare_equal_have_modules_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    """-0.0 ran the module of 0.0, and each call with NaN compiled another. `alpha` has to be known."""
    count = Counting()
    compiled = torch.compile(lambda x, n: 1 / torch.add(x * 0, x, alpha=n), backend=count)
    with torch.no_grad():
        for extent, n in ((3, 1.5), (5, 2.5), (5, 0.0), (5, -0.0)):
            x = torch.linspace(-3, 2, extent)
            torch.testing.assert_close(compiled(x, n), 1 / (x * 0 + x * n), rtol=TOLERANCE, atol=0)
        by_shape = count.runs[-1]
        assert by_shape.fixed
        assert len(by_shape.subgraphs) == 3
        for _ in range(3):  # not through Dynamo, which has a graph of its own for NaN
            assert by_shape(5, x, torch.tensor(float("nan"), dtype=torch.float64))[0].isnan().all()
    assert len(by_shape.subgraphs) == 4
    (record,) = caplog.records
    assert record.message.startswith("sizes or numbers change: a subgraph of")


def test_sizes_beyond_the_most_run_in_eager_mode_and_say_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dynamo, "_MOST_SHAPES", 2)
    count = Counting()
    compiled = torch.compile(lambda x: torch.relu(x) + 1, backend=count, dynamic=True)
    with torch.no_grad():
        for extent in (3, 5, 7, 9, 3):
            assert_same(lambda x: torch.relu(x) + 1, compiled, torch.randn(extent, 2))
    assert len(count.runs[-1].subgraphs) == 2
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "sizes or numbers change", "a subgraph of 2 operators runs in eager mode",
    ]  # fmt: skip


def test_unknown_setting_is_an_error() -> None:
    gm = torch.fx.symbolic_trace(torch.nn.ReLU())
    with pytest.raises(InvalidArgument, match="no setting is called blocks"):
        dynamo.backend(gm, [torch.randn(3)], options={"blocks": 3})
    run = dynamo.backend(gm, [torch.randn(3)], options={"threads": 1})
    assert run.settings == {"threads": 1}
