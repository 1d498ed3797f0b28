"""Frontends: models of other tools as graphs of tensor expressions."""
