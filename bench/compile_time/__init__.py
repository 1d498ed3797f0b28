"""How long networks take to compile, by phase: `python -m bench.compile_time`."""
