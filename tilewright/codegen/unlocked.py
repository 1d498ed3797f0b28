"""The two calls of LLVM that take long, without the lock that llvmlite holds around each; and what a fork waits for.

LLVM runs in several threads at once where each has a context and a machine of its own. llvmlite lets one thread at a
time into LLVM all the same. Here its functions are called through a handle of this package's own on the same library,
so that nothing changes for others that use llvmlite. Where llvmlite has no such handle, or functions with other
arguments, its own methods are called, which take the lock.

The child of a fork has copies of LLVM's data, but none of the threads that may have been changing them. So a fork waits
until no thread is in LLVM.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite.binding import ffi

_FORK_WAIT_SECONDS = 10.0  # for threads in LLVM: more than it takes for one module
_POLL_SECONDS = 0.001
#: The lock inside llvmlite's: no callbacks of others run when it is taken. Reentrant.
llvm_lock: Any = getattr(getattr(ffi.lib, "_lock", None), "_lock", None)

_entry: Any = threading.RLock()  # held while a thread enters, and by a thread that forks
_inside: list[int] = []  # the threads in a call without the lock; twice if the handler of a signal is too


def run(manager: Any, module: Any, builder: Any) -> None:
    """`manager.run(module, builder)` for a module pass manager. No other thread may use the module's context."""
    function = _function("LLVMPY_RunNewModulePassManager", 3)
    if function is None:
        manager.run(module, builder)
        return
    with _without_lock():
        function(manager, module, builder)


def emit_object(machine: Any, module: Any) -> bytes:
    """`machine.emit_object(module)`. No other thread may use the machine or the module's context.

    Raises RuntimeError where LLVM cannot.
    """
    function = _function("LLVMPY_TargetMachineEmitToMemory", 4)
    if function is None:
        return bytes(machine.emit_object(module))
    with ffi.OutputString() as error:
        with _without_lock():
            buffer = function(machine, module, 1, error)  # 1: an object, not assembly
        if not buffer:
            raise RuntimeError(str(error))
    try:
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


@functools.cache
def _function(name: str, arguments: int) -> Callable[..., Any] | None:
    """A function of llvmlite's library without its lock; None where that is not as expected."""
    try:
        locked = getattr(ffi.lib, name)
        function = ctypes.CDLL(ffi.lib._name, handle=ffi.lib._handle)[name]
        if len(locked.argtypes) != arguments:
            return None
        function.argtypes, function.restype = locked.argtypes, locked.restype
    except (AttributeError, TypeError):
        return None
    return function


@contextmanager
def _without_lock() -> Iterator[None]:
    me = threading.get_ident()
    with _entry:
        _inside.append(me)
    try:
        yield
    finally:
        _inside.remove(me)


def _before_fork() -> None:
    """Wait until no thread is in LLVM. Bounded: such a thread may wait for a lock that the thread that forks holds."""
    deadline = time.monotonic() + _FORK_WAIT_SECONDS
    _entry.acquire(timeout=_FORK_WAIT_SECONDS)
    while any(thread != threading.get_ident() for thread in _inside) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    if llvm_lock is not None:
        llvm_lock.acquire(timeout=max(0.0, deadline - time.monotonic()))


def _after_fork() -> None:
    for lock in (llvm_lock, _entry):
        if lock is not None and lock._is_owned():
            lock.release()


def _after_fork_in_child() -> None:
    _inside[:] = [thread for thread in _inside if thread == threading.get_ident()]
    for lock in (llvm_lock, _entry):
        if lock is not None and lock._is_owned():
            lock.release()
        elif lock is not None:  # the wait was too long; the thread that holds the lock is not in the child
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
