import torch_xla.runtime

# Before the first tensor.
torch_xla.runtime.use_spmd()
