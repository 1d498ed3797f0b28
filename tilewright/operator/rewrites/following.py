"""Sums that follow other reductions, by all rewrites that find some: what one pass can compute, whoever decides it."""

from __future__ import annotations

from tilewright.operator.rewrites.one_pass_moments import one_pass_moments
from tilewright.operator.rewrites.online_softmax import online_softmax
from tilewright.operator.statements import Statements

REWRITES = (online_softmax, one_pass_moments)


def with_following(statements: Statements) -> Statements:
    """The statements, in which every sum that can follow another reduction does. Their values are the same."""
    for rewrite in REWRITES:
        statements = rewrite(statements)
    return statements
