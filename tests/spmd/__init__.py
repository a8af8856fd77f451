"""Ops over several devices: shard without a mesh; mesh/ runs in a process of its own."""
