"""Whole networks on a GPU, beside torch: `python -m bench.gpu.networks --help`."""
