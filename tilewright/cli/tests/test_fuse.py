"""`tilewright fuse` as a user types it: plans, JSON, and what is wrong with bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import CliRunner
from tilewright.cli.main import app
from tilewright.operator.rules.cpu_fused import LEAST_GAIN

CHAIN = ("--expr", "C[m,l] += A[m,k]*B[k,l]; E[m,n] += C[m,l]*D[l,n]")
SIZES = ("--size", "m=512,n=64", "--size", "k=64,l=512")
CPU = ("--machine", "x86-64-v4")


def run(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["fuse", *arguments], prog_name="tilewright")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.output


def value(*arguments: str, status: int = 0) -> Any:
    result = CliRunner().invoke(app, ["fuse", *arguments, "--json"], prog_name="tilewright")
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


def test_plans_of_an_expression() -> None:
    text = run(*CHAIN, *SIZES, *CPU, "--plans", "3")
    lines = text.splitlines()
    assert lines[0] == "C + E on x86-64-v4: 4 loops, 24 orders"
    assert lines[1].split() == ["order", "policy", "links", "in", "softmax", "us", "bound"]
    assert len(lines[2:5]) == 3
    assert lines[5] == ""
    for part in ("best: order", "apart: ", "fusion of C + E:", "second: ", "refused: ", "op C", "op E", "compute "):
        assert part in text


def test_json_has_what_the_text_says() -> None:
    (chain,) = value(*CHAIN, *SIZES, *CPU)["chains"]
    plans = chain["plans"]
    assert chain["chain"] == "C + E"
    assert 1 < len(plans) <= 8
    assert [plan["seconds"] for plan in plans] == sorted(plan["seconds"] for plan in plans)
    assert set(plans[0]["tiles"]) == {"L1", "L2", "L3"}
    assert set(plans[0]["moved_elements"]["L3"]) == {"A", "B", "D", "E"}
    assert chain["apart"]["seconds"] == pytest.approx(sum(chain["apart"]["kernels"].values()))
    assert chain["decision"]["chosen"] in (plans[0]["reason"], "apart") or "order" in chain["decision"]["chosen"]
    assert plans[0]["fuse"] is (plans[0]["seconds"] < chain["apart"]["seconds"])


def test_the_decision_of_the_compiler_is_shown_for_a_cpu_with_both_predictions() -> None:
    chain = ("--workload", "gemm-chain-G2", "--machine", "znver5", "--threads", "1")
    text = run(*chain).split("what `tilewright compile` decides for znver5, 1 thread:\n")[1]
    compiled = value(*chain)["compiled"]
    (decision,) = compiled["decisions"]
    assert compiled["threads"] == 1
    assert decision["subject"] == "fusion of C + E"
    assert decision["chosen"].startswith("one kernel")
    assert decision["cost"]["cycles"] < decision["runner_up_cost"]["cycles"]
    for cost in ("cost", "runner_up_cost"):
        assert f"{decision[cost]['cycles']:.0f}" in text


def test_the_compiler_says_why_it_keeps_products_apart() -> None:
    found = value("--workload", "conv-chain-C6", *CPU, "--threads", "2")["compiled"]["decisions"]
    assert [(each["subject"], each["chosen"]) for each in found] == [("fusion of conv1 + conv2", "a kernel each")]
    others = [
        (found[0]["runner_up"], found[0]["runner_up_cost"]),
        *((r["candidate"], r["cost"]) for r in found[0]["refused"]),
    ]
    (cost,) = [cost for candidate, cost in others if candidate.startswith("one kernel, ")]
    assert cost["cycles"] * LEAST_GAIN > found[0]["cost"]["cycles"]
    assert "it found no two that could be one" in run(*CHAIN, *SIZES, *CPU, "--dtype", "f16")  # sums of f16 alone


def test_only_cpus_have_a_decision_of_the_compiler() -> None:
    assert value(*CHAIN, *SIZES, "--machine", "edge", "--dtype", "f16")["compiled"] is None


def test_what_is_compiled_for_a_gpu() -> None:
    compiled = value("--workload", "gemm-chain-G3", "--machine", "sm_90a", "--dtype", "f16")["compiled"]
    (decision,) = compiled["decisions"]
    assert compiled["threads"] is None
    assert decision["chosen"].startswith("one kernel")
    assert decision["cost"]["cycles"] < decision["runner_up_cost"]["cycles"]
    assert "decides for" not in run(*CHAIN, *SIZES, "--machine", "edge", "--dtype", "f16")
    assert "edge is no CPU" in run(*CHAIN, *SIZES, "--machine", "edge", "--threads", "2", status=2)


def test_a_workload_with_a_softmax() -> None:
    (chain,) = value("--workload", "gemm-chain-G1-softmax", "--machine", "sm_80", "--dtype", "f16")["chains"]
    assert {plan["softmax"] for plan in chain["plans"]} <= {"", "online"}
    assert chain["plans"][0]["tiles"]["SHARED"]["k"] == 64


def test_chains_of_a_model(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from bench.cases.definition import node, normal, onnx_model

    inputs = {"x": normal(0, 64, 32), "a": normal(1, 32, 48), "b": normal(2, 48, 16)}
    nodes = [node("MatMul", ["x", "a"], "h"), node("Relu", ["h"], "r"), node("MatMul", ["r", "b"], "y")]
    import numpy as np

    path = tmp_path / "chain.onnx"
    path.write_bytes(onnx_model(nodes, inputs, ("y", (64, 16), np.float32)).SerializeToString())
    found = value(str(path), *CPU)
    assert [chain["chain"] for chain in found["chains"]] == ["h + y"]
    alone = tmp_path / "alone.onnx"
    alone.write_bytes(
        onnx_model(nodes[:1], {n: inputs[n] for n in "xa"}, ("h", (64, 48), np.float32)).SerializeToString()
    )
    assert run(str(alone), *CPU, status=1) == "no chain of products\n"


@pytest.mark.parametrize(
    ("arguments", "place", "fact", "help"),
    [
        ((), "fuse", "give one chain", "MODEL, --expr TEXT or --workload NAME"),
        ((*CHAIN, "--workload", "gemm-chain-G1"), "fuse", "give one chain", "MODEL"),
        (("--workload", "gemm-chain-G99"), "workload", "unknown workload 'gemm-chain-G99'", "gemm-chain-G1 to"),
        (("--workload", "gemm-chain-G1", "--size", "m=4"), "--size", "sizes are those of loops", "leave it out"),
        ((*CHAIN, *SIZES, "--shape", "x=1"), "--shape", "shapes are those of inputs", "leave it out"),
        ((*CHAIN, *SIZES, "--dtype", "f13"), "--dtype", "unknown dtype 'f13'", "one of"),
        ((*CHAIN, "--size", "m=4"), "--expr:1:1", "loop l stands alone", "give a size for l"),
        ((*CHAIN, *SIZES, "--size", "z=4"), "--size", "'z' is not a loop", "loops: k, l, m, n"),
        ((*CHAIN, "--size", "m"), "--size", "'m' is not a size", "write n=16"),
        ((*CHAIN, *SIZES, "--machine", "nowhere"), "", "nowhere", ""),
        (("--expr", "C[m,l] += A[m,k]*B[k,l]", "--size", "m=4,l=4,k=4"), "C", "C is the only product", "two or more"),
        (("--expr", "C[m] = A[m]", "--size", "m=4"), "", "no expression is compute-intensive", "product"),
        (("--expr", "C[m,l] += "), "--expr:1", "", ""),
        (
            ("--expr", "C[m,l] += A[m,k]*B[k,l]; E[m,n] += C[m,l]*C[l,n]", "--size", "m=4,l=4,k=4,n=4"),
            "E", "E needs all of C", "end the chain with C",
        ),
    ],
)  # fmt: skip
def test_bad_input_says_where_what_and_what_would_be_legal(
    arguments: tuple[str, ...], place: str, fact: str, help: str
) -> None:
    machine = () if "--machine" in arguments else CPU
    text = run(*arguments, *machine, status=2)
    error = value(*arguments, *machine, status=2)["error"] if place == "" else None
    assert place in text
    assert fact in text
    assert help in text
    assert "error[" in text
    assert error is None or fact in error["message"]


def test_rows_between_convolutions_are_kept_where_that_is_asked_for() -> None:
    """C6 in the memory of a core of an NPU."""
    arguments = ("--workload", "conv-chain-C6", "--machine", "ascend-910", "--dtype", "f16")
    (again,), (kept,) = (value(*arguments, *options)["chains"] for options in ((), ("--keep-halo",)))
    assert not any("halo" in plan["policy"] for plan in again["plans"])
    assert "halo along" in kept["plans"][0]["policy"]
    assert kept["plans"][0]["seconds"] <= again["plans"][0]["seconds"]
