"""Ops over several devices: shard without a mesh; mesh/ runs in its own process."""
