"""Compiling again and again keeps nothing: neither objects of Python nor of LLVM."""

from __future__ import annotations

import gc
import weakref
from collections import Counter

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite.binding import ffi

from tilewright.compiler.compile import compile_graph
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops.elementwise import binary
from tilewright.options import Options
from tilewright.runtime.loader import load_ir

F32 = np.float32


def compile_and_run() -> None:
    b = GraphBuilder()
    x, y = b.input("x", (5, 33), "f32"), b.input("y", (5, 33), "f32")
    module = compile_graph(b.finish([binary(x, y, "add")]), threads=1, options=Options(cache=False))
    assert (module(np.ones((5, 33), F32), np.ones((5, 33), F32)) == 2).all()


def test_every_object_of_llvm_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object of LLVM that dies in Python without a `_dispose` of its own stays in memory."""
    forgotten: list[str] = []
    monkeypatch.setattr(ffi.ObjectRef, "_dispose", lambda self: forgotten.append(type(self).__name__))
    compile_and_run()
    gc.collect()
    assert not set(forgotten) - {"Target", "ValueRef"}  # owned by LLVM's registry, and by modules


def test_code_is_unloaded_with_its_linker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A linker keeps something of all that it has ever linked, so none may outlive its code."""
    compile_and_run()  # what is loaded once stays: the pool, the function of fast calls
    gc.collect()
    linkers: list[weakref.ref[object]] = []
    create = llvm.create_lljit_compiler

    def counted(**options: bool) -> object:
        linkers.append(weakref.ref(linker := create(**options)))
        return linker

    monkeypatch.setattr(llvm, "create_lljit_compiler", counted)
    text = "define i64 @seven() {\n  ret i64 7\n}"
    code = load_ir(text, ["seven"])
    other = load_ir(text, ["seven"])
    assert code.address("seven") != other.address("seven")
    compile_and_run()
    gc.collect()
    assert [linker() is not None for linker in linkers] == [True, True, False]
    del code, other
    gc.collect()
    assert not any(linker() for linker in linkers)


def test_no_object_of_python_stays() -> None:
    def counted() -> Counter[str]:
        gc.collect()
        kinds = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
        return Counter({kind: count for kind, count in kinds.items() if not kind.startswith("builtins.")})

    counts, compilations = [], 5
    for _ in range(3):
        for _ in range(compilations):
            compile_and_run()
        counts.append(counted())
    first, second, third = counts
    grown = (second - first) & (third - second)  # what grows once is a cache
    assert not [kind for kind, count in grown.items() if count >= compilations]
