"""Rewrites of the graph, one pass per file, in the order of `table`."""
