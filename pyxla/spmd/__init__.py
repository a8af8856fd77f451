"""Ops over several devices: shard, and what torch_xla lacks for it."""
