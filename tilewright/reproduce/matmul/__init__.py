"""Matrix products on GPUs, optimisation by optimisation: the ablation of a publication, and cases worked out."""
