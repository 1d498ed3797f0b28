"""TileFlow (MICRO 2023): its model of tile trees beside the measurements that it was validated with."""
