"""Generated programs kept and compared: the proof that a refactoring changes nothing (`python -m tests.replay`)."""
