"""Every operator of torch's core set has an importer, a decomposition, or a reason why it has none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests import torch_export
from tilewright.frontend.torch.refusals import REASONS, refusal
from tilewright.frontend.torch.registry import COMPLEX, load_all

torch = pytest.importorskip("torch")


def overloads() -> Iterator[Any]:
    """Every functional overload of ATen that returns something other than sizes."""
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace == "aten" and hasattr(torch.ops.aten, packet):
            found = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
            if found is None or found._schema.is_mutable or overload.endswith("out"):
                continue
            if not all(str(each.type) in ("int", "SymInt") for each in found._schema.returns):
                yield found


def test_core_operators_are_covered() -> None:
    known = load_all().keys() | COMPLEX.keys() | {str(each) for each in torch.export.default_decompositions()}
    missing = [
        str(each)
        for each in overloads()
        if torch.Tag.core in each.tags
        and str(each) not in known
        and each._schema.name.partition("::")[2] not in REASONS
        and "backward" not in str(each)
    ]
    assert not missing


def test_reasons_are_for_operators_that_exist_and_have_no_importer() -> None:
    imported = {name.split(".")[1] for name in load_all()}
    for name in REASONS:
        assert hasattr(torch.ops.aten, name), name
        assert name not in imported


def test_a_refusal_says_why_and_what_to_do() -> None:
    assert refusal("aten.rand.default").startswith("random numbers (")
    assert refusal("aten.airy.default") == "this operator has no importer"


def test_composite_operators_that_are_registered_later_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what tests have in place of torch's list."""
    torch.export.default_decompositions()  # imports what has it
    for name in torch_export.IMPORTERS:  # so that it is put back
        monkeypatch.setattr(sys.modules[name], torch_export.NAME, getattr(sys.modules[name], torch_export.NAME))
    assert torch_export.remember_operators()
    listed = getattr(sys.modules[torch_export.IMPORTERS[0]], torch_export.NAME)
    before = listed()
    assert listed() == before
    library = torch.library.Library("listed_later", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
    assert {str(each) for each in listed() - before} == {"listed_later.twice.default"}
    library._destroy()
