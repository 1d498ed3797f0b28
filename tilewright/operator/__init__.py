"""Level 2: how the loops of one kernel are split, ordered and bound."""
