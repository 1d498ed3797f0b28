"""Chimera (HPCA 2023): block orders and data movement of chains of operators, computed and counted."""
