"""LLVM's machines: what is refused before LLVM is asked."""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest

from tilewright.codegen.optimise import target_machine
from tilewright.errors import InvalidProgram, Unsupported


def test_an_llvm_that_is_too_old_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm, "llvm_version_info", (20, 1, 8))
    with pytest.raises(Unsupported, match=r"LLVM 20, code is made with 22") as caught:
        target_machine("nvptx64-nvidia-cuda", cpu="sm_80")
    assert "llvmlite>=0.50" in str(caught.value)


def test_a_target_that_llvm_has_not() -> None:
    with pytest.raises(InvalidProgram, match="no target 'abacus'"):
        target_machine("abacus")
