"""What one new process does: `worker.py import`, `worker.py product` or `worker.py network MODEL`; prints JSON.

CPU seconds are those of the whole process from its start. It imports only what every version of Tilewright has, so that
the runner can point it at another checkout by PYTHONPATH.
"""

from __future__ import annotations

import inspect
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

DTYPES = {"f32": "float32", "i64": "int64"}  # of the inputs of networks here


def product() -> None:
    """A small matrix product, compiled and called."""
    import numpy as np

    import tilewright
    from tilewright.expr.graph import GraphBuilder
    from tilewright.expr.ops import linalg

    b = GraphBuilder("product")
    x, w = b.input("x", (16, 32), "f32"), b.input("w", (8, 32), "f32")
    module = tilewright.compile(b.finish([built(linalg.linear, b, x, w)]))
    found = module(np.ones((16, 32), np.float32), np.ones((8, 32), np.float32))
    assert (found == 32).all()


def built(builder: Callable[..., Any], graph: object, *tensors: object) -> Any:
    """What a builder of `expr.ops` makes of tensors; that of an older checkout takes the graph builder first."""
    takes_graph = next(iter(inspect.signature(builder).parameters)) == "b"
    return builder(graph, *tensors) if takes_graph else builder(*tensors)


def network(model: str) -> None:
    """A network from its file, compiled and called once."""
    import numpy as np

    import tilewright

    module = tilewright.compile(model)
    module(*(np.ones(spec.shape, DTYPES[spec.dtype]) for spec in module.manifest.inputs))


def main(arguments: list[str]) -> dict[str, float]:
    start = time.perf_counter()
    if arguments == ["import"]:
        import tilewright  # noqa: F401
    elif arguments == ["product"]:
        product()
    else:
        network(arguments[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"cpu": time.process_time(), "wall": time.perf_counter() - start, "megabytes": peak}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
