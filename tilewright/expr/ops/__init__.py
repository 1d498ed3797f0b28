"""The operator library: builders that append the computes of one operator to a `GraphBuilder`.

One file per family; every builder takes tensors, attributes by keyword and a name for its result, and returns the
result. The computes go to the graph builder of the tensors; a builder without tensors takes it as its first
argument. `catalogue` lists the operators of the specifications by their short names.
"""
