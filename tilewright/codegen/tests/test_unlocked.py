"""Calls of LLVM without llvmlite's lock: the same code, beside other threads, and not across a fork."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import llvmlite.binding as llvm
import pytest

from tilewright.codegen import unlocked
from tilewright.codegen.optimise import target_machine

TEXT = """
define i32 @f(i32 %x) {
  %a = add i32 %x, 1
  %b = add i32 %a, 2
  ret i32 %b
}
"""


def compiled() -> bytes:
    module, machine = parsed()
    with llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()) as builder:
        unlocked.run(combining(), module, builder)
    assert "add i32 %x, 3" in str(module)
    return unlocked.emit_object(machine, module)


def parsed() -> tuple[Any, Any]:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(TEXT, context=llvm.create_context())
    return module, target_machine(llvm.get_process_triple(), reloc="pic", codemodel="small")


def combining() -> Any:
    manager = llvm.create_new_module_pass_manager()
    manager.add_instruction_combine_pass()
    return manager


def test_llvmlite_is_as_expected() -> None:
    """Otherwise the lock is taken, and networks compile on one core."""
    assert unlocked._function("LLVMPY_RunNewModulePassManager", 3) is not None
    assert unlocked._function("LLVMPY_TargetMachineEmitToMemory", 4) is not None


def test_the_code_is_the_same_with_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    without = compiled()
    monkeypatch.setattr(unlocked, "_function", lambda name, arguments: None)
    assert compiled() == without


def test_functions_that_are_not_as_expected_are_not_called() -> None:
    assert unlocked._function("LLVMPY_RunNewModulePassManager", 4) is None
    assert unlocked._function("LLVMPY_NoSuchFunction", 3) is None


def test_passes_run_while_another_thread_has_the_lock() -> None:
    module, machine = parsed()
    manager = combining()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    thread = threading.Thread(target=unlocked.run, args=(manager, module, builder))
    with unlocked.llvm_lock:
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    assert "add i32 %x, 3" in str(module)


FORKS_BESIDE_LLVM = """
import os, threading, time, warnings
from tilewright.codegen import unlocked
warnings.simplefilter("ignore", DeprecationWarning)
inside, left = threading.Event(), []
def work():
    with unlocked._without_lock():
        inside.set()
        time.sleep(0.2)
        left.append(1)
thread = threading.Thread(target=work)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    with unlocked._without_lock():
        os._exit(10 * len(left) + len(unlocked._inside))
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(unlocked._inside))
"""
FORKS_INSIDE = """
import os
from tilewright.codegen import unlocked
with unlocked._without_lock():
    child = os.fork()
if child == 0:
    os._exit(len(unlocked._inside))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(unlocked._inside))
"""
STAYS_INSIDE = """
import os, threading, warnings
from tilewright.codegen import unlocked
warnings.simplefilter("ignore", DeprecationWarning)
unlocked._FORK_WAIT_SECONDS = 0.05
inside, ends = threading.Event(), threading.Event()
def work():
    with unlocked._without_lock():
        inside.set()
        ends.wait()
thread = threading.Thread(target=work)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    os._exit(len(unlocked._inside))
ends.set()
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(unlocked._inside))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize(
    ("script", "printed"), [(FORKS_BESIDE_LLVM, "11 0"), (FORKS_INSIDE, "0 0"), (STAYS_INSIDE, "0 0")]
)
def test_a_fork_waits_for_other_threads_in_llvm(script: str, printed: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == printed.split(), done.stderr[-2000:]
