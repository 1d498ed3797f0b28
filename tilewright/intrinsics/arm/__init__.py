"""Records of Arm CPUs and GPUs: data only."""

PREFERENCE = 2
ARCHITECTURES = ("aarch64",)
