"""Drives the levels: a model in, a module out."""
