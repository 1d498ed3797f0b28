"""What a new process waits for: `python -m bench.startup`."""
