"""Records of x86-64 instructions: data only."""

PREFERENCE = 1
ARCHITECTURES = ("x86_64",)
