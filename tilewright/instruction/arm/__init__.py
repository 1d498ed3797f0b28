"""Records of Arm CPUs and GPUs: data only."""

PREFERENCE = 2
