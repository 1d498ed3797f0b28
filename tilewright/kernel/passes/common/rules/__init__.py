"""Local simplifications, one file per kind of operation; `canonicalise` applies them all."""
