"""Experiments with their data: what publications report, and what we compute or measure beside it."""
