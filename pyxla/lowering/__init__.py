"""Turns a call into a node of torch_xla's graph: the key of its computation, the computation, the operands."""
