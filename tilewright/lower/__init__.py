"""Decisions to tile programs: the only way from levels 1-3 into `kernel`."""
