"""The chain solver: block order, tile sizes and what stays on chip, for linear chains of compute-intensive operators.

Source: Chimera (HPCA 2023), corrected and completed as spec 1, section 3, says.
"""
