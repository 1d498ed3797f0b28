"""Named fusion dataflows of spec 1, section 6.2: trees with open factors, one dataflow per file."""
