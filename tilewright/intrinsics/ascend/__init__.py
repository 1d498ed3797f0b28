"""Records of Ascend processors: data only."""

PREFERENCE = 5
