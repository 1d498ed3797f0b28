"""Records of NVIDIA GPUs: data only."""

PREFERENCE = 3
