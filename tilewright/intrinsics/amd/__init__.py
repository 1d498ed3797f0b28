"""Records of AMD GPUs: data only."""

PREFERENCE = 4
