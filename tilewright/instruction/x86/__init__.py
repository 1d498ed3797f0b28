"""Records of x86-64 instructions: data only."""

PREFERENCE = 1
