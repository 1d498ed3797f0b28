"""The short way into a module for tensors of torch that can be used as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from operator import call
from typing import Any

from tilewright.runtime.fastcall import FastCall
from tilewright.runtime.manifest import Manifest, TensorSpec
from tilewright.runtime.outputs import pooled
from tilewright.runtime.tensors import address_reader, cpu_device, empty, is_recording, torch_dtype, written


class TensorCall:
    """Reads addresses, makes outputs and runs, in as few steps as there are tensors. torch is loaded.

    A tensor that has to be copied or refused, and a module that runs in another thread, are left to the long way.
    """

    def __init__(self, manifest: Manifest, fast: FastCall, limit_bytes: int) -> None:
        self._run = fast.run
        self._inputs = [address_reader(spec) for spec in manifest.inputs]
        self._outputs = [address_reader(spec) for spec in manifest.outputs]
        self._makers = [_maker(spec, limit_bytes) for spec in manifest.outputs]

    def __call__(self, tensors: Sequence[Any], out: Any) -> Sequence[Any] | None:
        """The results; None, with nothing done, where not everything fits."""
        if len(tensors) != len(self._inputs) or is_recording():
            return None
        addresses = list(map(call, self._inputs, tensors))
        if out is None:
            if min(addresses) < 0:
                return None
            results: Sequence[Any] = list(map(call, self._makers))
            addresses += [tensor.data_ptr() or -1 for tensor in results]  # none in modes of torch without memory
        else:
            results = out if isinstance(out, (tuple, list)) else (out,)
            if len(results) != len(self._outputs):
                return None
            addresses += map(call, self._outputs, results)
        if min(addresses) < 0 or not self._run(tuple(addresses)):
            return None
        if out is not None:
            written(results)
        return results


def _maker(spec: TensorSpec, limit_bytes: int) -> Callable[[], Any]:
    """Makes a tensor for an output."""
    if pooled(spec.bytes, limit_bytes):
        return lambda: empty(spec, True, limit_bytes).owner
    library = sys.modules["torch"]
    return partial(library.empty, spec.shape, dtype=torch_dtype(spec.dtype), device=cpu_device())
