"""`tilewright explain`: every choice of a compilation in words."""

from __future__ import annotations

import json
from pathlib import Path

from tilewright.cli.arguments import (
    AsJson,
    Cluster,
    Disable,
    InputPrecision,
    InputPrecisionName,
    Machine,
    ModelFile,
    Route,
    RouteName,
    Shapes,
    Threads,
    given_decisions,
    is_stored,
    options_of,
    refuse_for_stored,
    shapes_of,
)
from tilewright.cli.console import show_json
from tilewright.cli.models import plan_model, read_artifact
from tilewright.decision import Decision
from tilewright.errors import InvalidFile
from tilewright.options import Options

EPILOG = """\
\b
example: tilewright explain model.twm
         tilewright explain model.onnx --machine other.yaml --json
exit status: 0 explained, 2 bad usage or input, 3 a missing package
"""


def explain(
    model: ModelFile,
    machine: Machine = "host",
    threads: Threads = None,
    shape: Shapes = None,
    disable: Disable = None,
    route: RouteName = Route.AUTO,
    input_precision: InputPrecisionName = InputPrecision.IEEE,
    cluster: Cluster = Options.cluster,
    as_json: AsJson = False,
) -> None:
    """Say what was chosen, why, what came second, and what was refused by which rule.

    Of a .twm: the decisions stored in it; its code is not loaded. Of an .onnx: those of a compilation now.
    """
    if is_stored(model):
        given = given_decisions(machine, threads, disable, route, input_precision, cluster)
        refuse_for_stored(model, {"--shape": bool(shape)} | given)
        decisions = _stored(model)
    else:
        options = options_of(disable, route=route.value, input_precision=input_precision.value, cluster=cluster)
        decisions = plan_model(model, shapes_of(shape), machine, threads, options)[0].decisions
    if as_json:
        show_json([decision.to_json() for decision in decisions])
    else:
        for decision in decisions:
            print(decision.explain())


def _stored(path: Path) -> list[Decision]:
    plan = read_artifact(path).plan
    try:
        return [Decision.from_json(decision) for decision in json.loads(plan).get("decisions", ())]
    except (AttributeError, TypeError, KeyError) as error:
        raise InvalidFile(f"its plan is malformed: {error}", where=str(path), help="compile the model again") from error
