"""The operator library: builders that append the computes of one operator to a `GraphBuilder`.

One file per family; every builder takes the graph builder, tensors, attributes by keyword and a name for its
result, and returns the result. `catalogue` lists the operators of the specifications by their short names.
"""
