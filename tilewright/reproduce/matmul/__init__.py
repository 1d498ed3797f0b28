"""Matrix products on GPUs, optimisation by optimisation: the ladder of a publication, and cases worked out."""
