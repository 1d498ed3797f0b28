"""What searches take: how soon they converge is read off the best values, and time is that of the processor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.errors import InvalidArgument
from tilewright.reproduce.experiment import find
from tilewright.reproduce.pictures import Curves
from tilewright.reproduce.tileflow.search import Convergence, Report


def test_a_search_converges_when_it_is_near_its_best() -> None:
    assert Convergence((None, 300.0, 104.0, 104.0, 100.0), 0.1, 4).converged == 3
    assert Convergence((None, None), 0.1, 0).converged == 2
    assert Convergence((7.0,), 0.1, 1).converged == 1


def test_both_searches_have_their_figures() -> None:
    report = find("tileflow-search").run(layers=["mlp-mixer-512"], trials=300)
    assert isinstance(report, Report)
    assert len(report.factors.best) == 300
    assert len(report.trees.best) == 6
    assert report.factors.legal == 300 >= report.trees.legal
    figures = report.to_json()["searches"]
    assert figures["factors"]["best"] == report.factors.best[-1] == min(filter(None, report.factors.best))
    by_subject = {claim.subject: claim for claim in report.claims}
    assert by_subject["time of a tree"].ours == pytest.approx(1e3 * figures["factors"]["seconds_each"])
    assert by_subject["genomes with legal factors, of 6"].ours == report.trees.legal
    legal = replace(report, trees=Convergence((50.0,), 2.0, 1), factors=Convergence((100.0,), 0.1, 1))
    by_subject = {claim.subject: claim for claim in legal.claims}
    assert by_subject["time of 50 generations of 20 genomes"].ours == pytest.approx(755 * 2.0 / 60)
    assert by_subject["best whole tree over the best of TileFlow's dataflow"].ours == 0.5
    (picture,) = report.pictures
    assert isinstance(picture, Curves)
    factors = picture.lines["factors of TileFlow's dataflow"]
    assert (factors[0][0], factors[-1]) == (1, (300, report.factors.final))
    (alone,) = legal.pictures[0].lines["genomes"]  # type: ignore[union-attr]
    assert alone == (200, 50.0)  # the first genome, of so many trees


def test_another_network_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no shape 'lenet'"):
        find("tileflow-search").run(layers=["lenet"])
