"""The YAML of TileFlow's published artifact (MICRO 2023): its runs as tile files and machines."""
