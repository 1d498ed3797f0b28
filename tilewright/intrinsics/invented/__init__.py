"""Records of accelerators that nobody has built: data only."""

PREFERENCE = 6
