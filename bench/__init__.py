"""Benchmarks: cases timed for Tilewright and its peers, beside what the machine can reach at most.

`python -m bench --help` says how to run them; `bench/README.md` how they measure.
"""
