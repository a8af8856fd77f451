"""In a process with four devices: run by tests/spmd/test_shard.py."""
