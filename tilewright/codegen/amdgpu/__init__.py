"""Tile programs in distributed form to code objects of AMD GPUs. Nothing here has been run on a device."""
