"""What a kernel does with the GPU: the counters of one call, and what its machine code says."""
