"""Rewrites of the statements of a kernel, for all machines: one file per rewrite. Rules ask which of them pay."""
