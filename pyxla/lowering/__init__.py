"""A call becomes a node of XLA's graph: the key of its computation, the computation, the operands."""
