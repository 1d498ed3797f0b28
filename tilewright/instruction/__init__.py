"""Level 3: intrinsics as records, and which loops of an expression they execute."""
