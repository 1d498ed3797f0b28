"""Errors planted in the PTX of small kernels, and what the emulator says of them (`python -m tests.mutations`)."""
