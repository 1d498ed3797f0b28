"""Outcomes as JSON lines, as lines on a terminal and as a table in Markdown."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.models.outcome import WAYS, Outcome, newest

PACKAGES = ("torch", "torchvision", "timm", "transformers", "onnx", "onnxruntime", "numpy", "llvmlite")
SLOW_COMPILE_SECONDS = 8.0


def environment() -> dict[str, Any]:
    """The machine, the versions, and the commit that is checked out."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
    run = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return {"processor": model, "cores": os.cpu_count(), "commit": run.stdout.strip(), "versions": dict(_versions())}


def _versions() -> Iterable[tuple[str, str]]:
    for name in PACKAGES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def append(path: Path, value: Any) -> None:
    """One more line of JSON."""
    with path.open("a") as file:
        file.write(json.dumps(value) + "\n")


def read(path: Path) -> tuple[dict[str, Any], list[Outcome]]:
    """The last environment in a file, and the newest outcome of each architecture and way."""
    values = [json.loads(line) for line in path.read_text().splitlines()]
    environments = [value for value in values if "name" not in value]
    kept = [
        Outcome(**(value | {"slowest": tuple(map(tuple, value["slowest"]))})) for value in values if "name" in value
    ]
    return (environments[-1] if environments else {}), newest(kept)


def as_json(outcome: Outcome) -> dict[str, Any]:
    return asdict(outcome)


def line(outcome: Outcome) -> str:
    """One line for a terminal."""
    said = outcome.notes if outcome.state == "right" else f"{outcome.stage} {outcome.reason}".strip()
    figures = (
        f"error {_figure(outcome.error, '8.1e')}  ratio {_figure(outcome.ratio, '5.2f')}  "
        f"compile {_figure(outcome.cpu_seconds, '5.1f')} s  {_figure(_mib(outcome), '5.0f')} MiB"
    )
    return f"{outcome.name:32} {outcome.way:8} {outcome.state:8} {figures}  {said}"


def summary(outcomes: Sequence[Outcome]) -> list[str]:
    """How many are right in each way, and the median ratio."""
    found = []
    for way in WAYS:
        tried = [outcome for outcome in outcomes if outcome.way == way and outcome.state != "skipped"]
        if not tried:
            continue
        right = [outcome for outcome in tried if outcome.state == "right"]
        ratios = [outcome.ratio for outcome in right if outcome.ratio is not None]
        middle = f"; median ratio {statistics.median(ratios):.2f}" if ratios else ""
        unseen = sum(outcome.stage == "export" for outcome in tried)
        exported = f", {unseen} more that torch does not export" if unseen else ""
        slow = sum((outcome.cpu_seconds or 0) > SLOW_COMPILE_SECONDS for outcome in tried)
        compiled = f"{slow} compile in more than {SLOW_COMPILE_SECONDS:g} s"
        found.append(f"{way}: {len(right)} of {len(tried) - unseen} right{exported}{middle}; {compiled}")
    return found


def markdown(environment: dict[str, Any], outcomes: Sequence[Outcome]) -> str:
    """Both ways of each architecture in one row, then every reason."""
    rows: dict[str, dict[str, Outcome]] = {}
    for outcome in outcomes:
        rows.setdefault(outcome.name, {})[outcome.way] = outcome
    versions = ", ".join(f"{name} {version}" for name, version in environment.get("versions", {}).items())
    text = [
        "# Architectures",
        "",
        f"Up to commit {environment.get('commit')}, one thread of {environment.get('processor')}; {versions}.",
        "Written by `python -m tests.models --table FILE`. Compile time is processor time; memory is its rise",
        "during the compilation. A ratio is the time of onnxruntime, or of eager mode, by ours.",
        "",
        *(f"- {line}" for line in summary(outcomes)),
        "",
        "| architecture | ONNX | error | compile s | MiB | ratio | torch.compile | error | compile s | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, ways in rows.items():
        onnx, compiled = ways.get("onnx"), ways.get("compile")
        cells = [
            *(_state(onnx), _of(onnx, "error", ".0e"), _of(onnx, "cpu_seconds", ".1f")),
            *(_figure(_mib(onnx), ".0f"), _of(onnx, "ratio", ".2f"), _state(compiled)),
            *(_of(compiled, "error", ".0e"), _of(compiled, "cpu_seconds", ".1f"), _of(compiled, "ratio", ".2f")),
        ]
        text.append(f"| {name} | {' | '.join(cells)} |")
    reasons = [outcome for outcome in outcomes if outcome.state in ("failed", "wrong")]
    if reasons:
        text += ["", "## Reasons", ""]
        text += [f"- {each.name}, {each.way}, {each.stage or 'result'}: {_flat(each.reason)}" for each in reasons]
    return "\n".join(text) + "\n"


def _state(outcome: Outcome | None) -> str:
    return outcome.state if outcome else ""


def _of(outcome: Outcome | None, field: str, form: str) -> str:
    return _figure(getattr(outcome, field) if outcome else None, form)


def _mib(outcome: Outcome | None) -> float | None:
    return None if outcome is None or outcome.peak_bytes is None else outcome.peak_bytes / 2**20


def _figure(number: float | None, form: str) -> str:
    return "–" if number is None else format(number, form)


def _flat(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
