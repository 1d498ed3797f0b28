"""Reports of small runs that tests of several files look at: each is made once in a process."""

from __future__ import annotations

from functools import cache

from tilewright.reproduce.amos import mappings
from tilewright.reproduce.chimera import cpu, orders, traffic
from tilewright.reproduce.experiment import Report, find
from tilewright.reproduce.matmul import ablation
from tilewright.reproduce.tileflow import accuracy


@cache
def amos_mappings() -> mappings.Report:
    return mappings.report()


@cache
def chimera_orders() -> orders.Report:
    return orders.report(("G10", "G11", "C6"))


@cache
def chimera_traffic() -> traffic.Report:
    return traffic.report(trials=10, extent=256, chains=("G10", "G12"))


@cache
def chimera_cpu() -> cpu.Report:
    return cpu.report(("G10",), turns=1)


@cache
def matmul_ablation() -> ablation.Report:
    return ablation.report(sizes=(1024, 4096), device="emulator")


@cache
def tileflow_accuracy() -> accuracy.Report:
    found = find("tileflow-accuracy").run()
    assert isinstance(found, accuracy.Report)
    return found


@cache
def tileflow_edge() -> Report:
    return find("tileflow-edge").run(layers=["mlp-mixer-512"], trials=30)


@cache
def tileflow_cloud() -> Report:
    return find("tileflow-cloud").run(layers=["mlp-mixer-512", "C7"], trials=120)
