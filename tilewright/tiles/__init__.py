"""The tile tree: which loops run where, around which expressions; its notation, legality and resources."""
