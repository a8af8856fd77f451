"""An op becomes torch.ops.xla_gpu.<op>: what custom_op registers with torch, and who finds the op files."""
